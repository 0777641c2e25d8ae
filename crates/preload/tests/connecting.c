/* Sockets that connect while their program forks or executes another one. The output is the same
 * with and without the preload library.
 *
 * Usage: connecting ADDRESS [PART] | connecting ADDRESS go_on|is_refused NUMBER
 * PART: one of the names in `parts` below, or all of them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#include "children.h"

/* Most connections that a full listener lets wait, and times in ms. */
enum { FILLERS = 8, MOMENT = 100, PATIENCE = 20000 };

/* A listener whose queue is full, and a socket that connects to it: its SYN is dropped, and sent
 * again after a second. */
struct attempt {
    int listening;
    int fillers[FILLERS], count;
    int fd;
    in_port_t port;
};

static int short_poll(int fd, short events, int time) {
    struct pollfd entry = {.fd = fd, .events = events};
    int count = poll(&entry, 1, time);
    need(count >= 0, "poll");
    return count ? entry.revents : 0;
}

static int begin(const struct sockaddr_in *to) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    need(fd >= 0, "socket");
    need(connect(fd, (const struct sockaddr *)to, sizeof *to) == 0 || errno == EINPROGRESS,
         "connect");
    return fd;
}

static struct attempt attempt(void) {
    struct attempt made = {.listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    need(bind(made.listening, (struct sockaddr *)&at, sizeof at) == 0, "bind");
    need(listen(made.listening, 0) == 0, "listen");
    at = name_of(made.listening);
    for (;;) {
        made.fd = begin(&at);
        if (!short_poll(made.fd, POLLOUT, MOMENT)) {
            made.port = name_of(made.fd).sin_port;
            return made;
        }
        need(made.count < FILLERS, "a full queue");
        made.fillers[made.count++] = made.fd;
    }
}

static void close_fillers(struct attempt *made) {
    while (made->count > 0)
        close(made->fillers[--made->count]);
}

/* What others than the process that accepts do with the listener. */
static void leave_listener(struct attempt *made) {
    close_fillers(made);
    close(made->listening);
}

/* Takes the connections that wait, and that of `fd` among or behind them. */
static int accept_behind(struct attempt *made) {
    struct sockaddr_in peer = {0};
    int there = -1;
    while (there < 0 || peer.sin_port != made->port) {
        socklen_t len = sizeof peer;
        if (there >= 0)
            close(there);
        there = accept(made->listening, (struct sockaddr *)&peer, &len);
        need(there >= 0, "accept");
    }
    close_fillers(made);
    close(made->listening);
    return there;
}

static void say_error(int fd) {
    int error = -1;
    socklen_t len = sizeof error;
    need(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0, "SO_ERROR");
    printf("SO_ERROR: %s\n", error ? strerrorname_np(error) : "none");
    fflush(stdout);
}

static void say_poll(int fd, int time) {
    printf("poll: %#x\n", short_poll(fd, POLLIN | POLLOUT | POLLRDHUP, time));
    fflush(stdout);
}

static void say_pending(int fd, const struct attempt *made) {
    struct sockaddr_in to = name_of(made->listening), peer;
    socklen_t len = sizeof peer;
    char byte;
    say_poll(fd, 0);
    say_error(fd);
    say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
    say("getpeername", getpeername(fd, (struct sockaddr *)&peer, &len));
    say("read", read(fd, &byte, 1));
    say("write", write(fd, "x", 1));
}

/* The two ends of a connection greet each other, and `fd` ends it. */
static void greet(int fd) {
    char text[8] = {0};
    say_poll(fd, PATIENCE);
    say_error(fd);
    say("write", write(fd, "from", 4));
    need(short_poll(fd, POLLIN, PATIENCE) & POLLIN, "an answer");
    say("read", read(fd, text, sizeof text - 1));
    need(strcmp(text, "back") == 0, "the answer");
    struct sockaddr_in peer = {0};
    socklen_t len = sizeof peer;
    say("getpeername", getpeername(fd, (struct sockaddr *)&peer, &len));
    need(peer.sin_addr.s_addr == inet_addr(host), "the peer");
    need(shutdown(fd, SHUT_WR) == 0, "shutdown");
}

static void answer(int there) {
    char text[8] = {0};
    need(read_all(there, text, 4) == 4 && strcmp(text, "from") == 0, "a greeting");
    need(write(there, "back", 4) == 4, "write");
    need(read(there, text, 1) == 0, "the end");
    close(there);
}

/* -- a child looks at an attempt as it goes on, and has the connection then */

static void connected(void) {
    struct attempt made = attempt();
    struct signal_pipe seen = signal_pipe();
    pid_t pid = child();
    if (pid == 0) {
        say_pending(made.fd, &made);
        leave_listener(&made);
        let_go_on(seen);
        greet(made.fd);
        exit(0);
    }
    await(seen);
    int there = accept_behind(&made);
    answer(there);
    reap(pid);
    /* The parent has it as well, and waits for its end. */
    need(short_poll(made.fd, POLLIN, PATIENCE) & POLLIN, "the end");
    char byte;
    say("read", read(made.fd, &byte, 1));
    close(made.fd);
}

/* -- at once: nothing but connect(2) was called before */

static void connected_at_once(void) {
    int listening = listener();
    struct sockaddr_in to = name_of(listening);
    int fd = begin(&to);
    pid_t pid = child();
    if (pid == 0) {
        close(listening);
        greet(fd);
        exit(0);
    }
    close(fd);
    answer(accept(listening, NULL, NULL));
    close(listening);
    reap(pid);
}

/* -- the child is the only one that has it, and waits by a set */

static void connected_alone(void) {
    struct attempt made = attempt();
    pid_t pid = child();
    if (pid == 0) {
        leave_listener(&made);
        int set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLOUT | EPOLLIN | EPOLLET, .data.fd = made.fd};
        need(epoll_ctl(set, EPOLL_CTL_ADD, made.fd, &event) == 0, "epoll_ctl");
        say("epoll_wait", epoll_wait(set, &event, 1, 0));
        say("epoll_wait", epoll_wait(set, &event, 1, PATIENCE));
        printf("events: %#x\n", event.events);
        greet(made.fd);
        exit(0);
    }
    close(made.fd);
    answer(accept_behind(&made));
    reap(pid);
}

/* -- a child's child, of a child that does nothing with it */

static void connected_in_grandchild(void) {
    struct attempt made = attempt();
    pid_t pid = child();
    if (pid == 0) {
        leave_listener(&made);
        pid_t inner = child();
        if (inner == 0) {
            greet(made.fd);
            exit(0);
        }
        close(made.fd);
        reap(inner);
        exit(0);
    }
    close(made.fd);
    answer(accept_behind(&made));
    reap(pid);
}

/* -- a blocking socket: read(2) in the child waits for a connection that the parent begins */

static void connected_while_blocking(void) {
    struct attempt made = attempt();
    need(fcntl(made.fd, F_SETFL, 0) == 0, "F_SETFL");
    pid_t pid = child();
    if (pid == 0) {
        leave_listener(&made);
        say("write", write(made.fd, "from", 4));
        char text[8] = {0};
        say("read", read(made.fd, text, 4));
        exit(0);
    }
    close(made.fd);
    answer(accept_behind(&made));
    reap(pid);
}

/* -- the attempt fails, before the child looks or behind that */

static void say_refused(int fd) {
    say_poll(fd, PATIENCE);
    say_error(fd);
    say_error(fd);
    char byte;
    say("read", read(fd, &byte, 1));
}

static void refused(void) {
    struct attempt made = attempt();
    struct signal_pipe seen = signal_pipe();
    pid_t pid = child();
    if (pid == 0) {
        leave_listener(&made);
        say_poll(made.fd, 0);
        let_go_on(seen);
        say_refused(made.fd);
        exit(0);
    }
    await(seen);
    leave_listener(&made);
    reap(pid);
    close(made.fd);
}

static void refused_alone(void) {
    struct attempt made = attempt();
    struct signal_pipe over = signal_pipe();
    pid_t pid = child();
    if (pid == 0) {
        leave_listener(&made);
        await(over);
        char byte;
        say("read", read(made.fd, &byte, 1));
        say_error(made.fd);
        say("read", read(made.fd, &byte, 1));
        exit(0);
    }
    close(made.fd);
    leave_listener(&made);
    pause_ms(2000);
    let_go_on(over);
    reap(pid);
}

static void refused_before(void) {
    int listening = listener();
    struct sockaddr_in nowhere = name_of(listening);
    close(listening);
    int fd = begin(&nowhere);
    pause_ms(MOMENT);
    listening = listener();
    struct sockaddr_in to = name_of(listening);
    pid_t pid = child();
    if (pid == 0) {
        close(listening);
        say_refused(fd);
        /* The attempt is over; the socket can be connected again. */
        say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
        need(connect(fd, (struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS,
             "connect");
        greet(fd);
        exit(0);
    }
    close(fd);
    answer(accept(listening, NULL, NULL));
    close(listening);
    reap(pid);
}

/* -- another program goes on with it */

static void execute(const char *how, int fd) {
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    need(fcntl(fd, F_SETFD, 0) == 0, "F_SETFD");
    execl("/proc/self/exe", "connecting", host, how, number, NULL);
    _exit(1);
}

static void executed(void) {
    struct attempt made = attempt();
    pid_t pid = child();
    if (pid == 0)
        execute("go_on", made.fd);
    close(made.fd);
    answer(accept_behind(&made));
    reap(pid);
}

static void executed_at_once(void) {
    int listening = listener();
    fcntl(listening, F_SETFD, FD_CLOEXEC);
    struct sockaddr_in to = name_of(listening);
    int fd = begin(&to);
    pid_t pid = vfork();
    if (pid == 0)
        execute("go_on", fd);
    need(pid > 0, "vfork");
    close(fd);
    answer(accept(listening, NULL, NULL));
    close(listening);
    reap(pid);
}

static void executed_by_vfork(void) {
    struct attempt made = attempt();
    pid_t pid = vfork();
    if (pid == 0)
        execute("go_on", made.fd);
    need(pid > 0, "vfork");
    close(made.fd);
    answer(accept_behind(&made));
    reap(pid);
}

static void refused_to_program(void) {
    struct attempt made = attempt();
    pid_t pid = child();
    if (pid == 0)
        execute("is_refused", made.fd);
    close(made.fd);
    leave_listener(&made);
    reap(pid);
}

/* -- and a process that a message passes it to */

static void passed(void) {
    struct attempt made = attempt();
    int pair[2];
    need(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0, "socketpair");
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char byte = 'x';
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    pid_t pid = child();
    if (pid == 0) {
        leave_listener(&made);
        close(made.fd);
        need(recvmsg(pair[1], &message, 0) == 1, "recvmsg");
        int fd;
        memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
        need(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "F_SETFL");
        greet(fd);
        exit(0);
    }
    control.head.cmsg_len = CMSG_LEN(sizeof(int));
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    memcpy(CMSG_DATA(&control.head), &made.fd, sizeof made.fd);
    say("sendmsg", sendmsg(pair[0], &message, 0));
    close(made.fd);
    answer(accept_behind(&made));
    reap(pid);
}

static const struct part parts[] = {
    {"connected", connected},
    {"connected at once", connected_at_once},
    {"connected alone", connected_alone},
    {"connected in a grandchild", connected_in_grandchild},
    {"connected while blocking", connected_while_blocking},
    {"refused", refused},
    {"refused alone", refused_alone},
    {"refused before", refused_before},
    {"executed", executed},
    {"executed at once", executed_at_once},
    {"executed by vfork", executed_by_vfork},
    {"refused to a program", refused_to_program},
    {"passed", passed},
};

int main(int count, char **arguments) {
    alarm(60);
    if (count == 4 && strcmp(arguments[2], "go_on") == 0) {
        host = arguments[1];
        greet(atoi(arguments[3]));
        return 0;
    }
    if (count == 4 && strcmp(arguments[2], "is_refused") == 0) {
        say_refused(atoi(arguments[3]));
        return 0;
    }
    return run_parts(count, arguments, parts, sizeof parts / sizeof *parts, NULL);
}
