/* Sets with sockets that the child of a fork goes on to use. The output is the same with and
 * without the preload library.
 *
 * Usage: inherited_sets ADDRESS [PART] | inherited_sets ADDRESS serve|ask PORT
 * PART: one of the names in `parts` below, or all of them. `serve`: goes to the background when its
 * stack has started, and answers one connection, which `ask` makes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#include "children.h"

enum { MOMENT = 100, PATIENCE = 20000 };

static int control(int set, int op, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(set, op, fd, &event);
}

static void watch(int set, int fd, uint32_t events, uint64_t data) {
    need(control(set, EPOLL_CTL_ADD, fd, events, data) == 0, "epoll_ctl");
}

static int new_set(void) {
    int set = epoll_create1(0);
    need(set >= 0, "epoll_create1");
    return set;
}

/* Says which member has events: one at a time. */
static void say_event(int set, int time) {
    struct epoll_event event = {0};
    int count = epoll_wait(set, &event, 1, time);
    printf("epoll_wait: %d, data %llu, events %#x\n", count, (unsigned long long)event.data.u64,
           event.events);
    fflush(stdout);
}

static void say_text(int fd) {
    char text[16] = {0};
    say("read", read(fd, text, sizeof text - 1));
    printf("text: %s\n", text);
    fflush(stdout);
}

static void send_text(int fd, const char *text) {
    need(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "write");
}

/* -- a child waits for connections of its parent, and for a pipe */

static void connections(void) {
    struct pair one = connection(), other = connection();
    struct signal_pipe pipes = signal_pipe(), seen = signal_pipe();
    int set = new_set();
    watch(set, one.here, EPOLLIN, 1);
    watch(set, other.here, EPOLLIN | EPOLLRDHUP, 2);
    watch(set, pipes.ends[0], EPOLLIN, 3);
    send_text(one.there, "early");
    pid_t pid = child();
    if (pid == 0) {
        close(one.there), close(other.there);
        say_event(set, PATIENCE);
        say_text(one.here);
        say_event(set, 0);
        let_go_on(seen);
        say_event(set, PATIENCE);
        say_text(other.here);
        send_text(pipes.ends[1], "x");
        say_event(set, PATIENCE);
        say_text(pipes.ends[0]);
        /* It adds one of its own, and takes one out. */
        struct pair own = connection();
        watch(set, own.here, EPOLLIN, 4);
        send_text(own.there, "own");
        say_event(set, PATIENCE);
        say("epoll_ctl", control(set, EPOLL_CTL_DEL, own.here, 0, 0));
        say_event(set, 0);
        let_go_on(seen);
        say_event(set, PATIENCE);
        say_text(other.here);
        exit(0);
    }
    close(one.here), close(other.here);
    await(seen);
    send_text(other.there, "later");
    await(seen);
    close(other.there);
    reap(pid);
    close(one.there), close(set);
}

/* -- a child serves at a listener of its parent, whose stack has started */

static void serve(int set, int listening, int count) {
    for (int served = 0; served < count;) {
        struct epoll_event event;
        need(epoll_wait(set, &event, 1, PATIENCE) == 1, "epoll_wait");
        if (event.data.fd == listening) {
            int accepted = accept(listening, NULL, NULL);
            need(accepted >= 0, "accept");
            watch(set, accepted, EPOLLIN, accepted);
            continue;
        }
        char text[16];
        ssize_t len = read(event.data.fd, text, sizeof text);
        need(len >= 0, "read");
        if (len > 0) {
            need(write(event.data.fd, text, len) == len, "write");
        } else {
            close(event.data.fd);
            served++;
        }
    }
}

static void ask(const struct sockaddr_in *at, int count) {
    for (int asked = 0; asked < count; asked++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        need(connect(fd, (const struct sockaddr *)at, sizeof *at) == 0, "connect");
        char text[8] = {0};
        send_text(fd, "1234");
        say("answer", read_all(fd, text, 4));
        need(strcmp(text, "1234") == 0, "the text");
        close(fd);
    }
}

static void listener_and_connection(void) {
    int listening = listener(), set = new_set();
    watch(set, listening, EPOLLIN, listening);
    struct sockaddr_in at = name_of(listening);
    int early = connected_to(listening), accepted = accept(listening, NULL, NULL);
    watch(set, accepted, EPOLLIN, accepted);
    pid_t pid = child();
    if (pid == 0) {
        close(early);
        serve(set, listening, 3);
        exit(0);
    }
    close(listening), close(accepted), close(set);
    send_text(early, "early");
    char text[8] = {0};
    say("answer", read_all(early, text, 5));
    ask(&at, 2);
    close(early);
    reap(pid);
}

/* -- as daemon(3): the parent is gone, and the child serves */

static void in_background(void) {
    struct signal_pipe told = signal_pipe();
    struct sockaddr_in at;
    pid_t pid = child();
    if (pid == 0) {
        int listening = listener(), set = new_set();
        watch(set, listening, EPOLLIN, listening);
        at = name_of(listening);
        /* Its stack starts. */
        need(epoll_wait(set, &(struct epoll_event){0}, 1, 0) == 0, "epoll_wait");
        need(write(told.ends[1], &at, sizeof at) == sizeof at, "write");
        need(daemon(1, 1) == 0, "daemon");
        /* On the stack nothing listens between the end of the parent and this. */
        need(epoll_wait(set, &(struct epoll_event){0}, 1, 0) == 0, "epoll_wait");
        let_go_on(told);
        serve(set, listening, 2);
        say("served", 2);
        let_go_on(told);
        exit(0);
    }
    need(read(told.ends[0], &at, sizeof at) == sizeof at, "read");
    reap(pid);
    await(told);
    ask(&at, 2);
    await(told);
}

/* -- what a child changes before it waits */

static void changes(void) {
    struct pair pair = connection();
    int other = dup(pair.here), set = new_set();
    watch(set, pair.here, EPOLLIN, 1);
    watch(set, other, EPOLLIN | EPOLLET, 2);
    send_text(pair.there, "text");
    pid_t pid = child();
    if (pid == 0) {
        say("add", control(set, EPOLL_CTL_ADD, pair.here, EPOLLIN, 7));
        say("modify", control(set, EPOLL_CTL_MOD, pair.here, EPOLLIN, 8));
        say("delete", control(set, EPOLL_CTL_DEL, other, 0, 0));
        say("delete", control(set, EPOLL_CTL_DEL, other, 0, 0));
        say_event(set, PATIENCE);
        say("modify", control(set, EPOLL_CTL_MOD, pair.here, EPOLLIN | EPOLLONESHOT, 9));
        say_event(set, PATIENCE);
        say_event(set, 0);
        say_text(pair.here);
        exit(0);
    }
    reap(pid);
    finish(pair);
    close(other), close(set);
}

/* -- as event_reinit of libevent: the child makes a set of its own */

static void set_anew(void) {
    struct pair pair = connection();
    struct signal_pipe seen = signal_pipe();
    int set = new_set();
    watch(set, pair.here, EPOLLIN, 1);
    pid_t pid = child();
    if (pid == 0) {
        close(set);
        set = new_set();
        watch(set, pair.here, EPOLLIN, 2);
        say_event(set, 0);
        let_go_on(seen);
        say_event(set, PATIENCE);
        say_text(pair.here);
        exit(0);
    }
    await(seen);
    send_text(pair.there, "text");
    reap(pid);
    /* The parent's set is as it was. */
    send_text(pair.there, "more");
    say_event(set, PATIENCE);
    say_text(pair.here);
    finish(pair);
    close(set);
}

/* -- a set in a set, and poll(2) on it, by a child's child */

static void nested(void) {
    struct pair pair = connection();
    int inner = new_set(), outer = new_set();
    watch(inner, pair.here, EPOLLIN, 1);
    watch(outer, inner, EPOLLIN, 2);
    pid_t pid = child();
    if (pid == 0) {
        pid_t last = child();
        if (last == 0) {
            say_event(outer, 0);
            send_text(pair.there, "text");
            say_event(outer, PATIENCE);
            struct pollfd entry = {.fd = inner, .events = POLLIN};
            say("poll", poll(&entry, 1, PATIENCE));
            say_event(inner, PATIENCE);
            say_text(pair.here);
            exit(0);
        }
        reap(last);
        exit(0);
    }
    reap(pid);
    finish(pair);
    close(inner), close(outer);
}

/* -- UDP sockets, and a number that is another file's in the child */

static void others(void) {
    struct pair pair = connection();
    int udp = socket(AF_INET, SOCK_DGRAM, 0), set = new_set();
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    need(bind(udp, (struct sockaddr *)&any, sizeof any) == 0, "bind");
    any = name_of(udp);
    watch(set, udp, EPOLLIN, 1);
    watch(set, pair.here, EPOLLIN, 2);
    send_text(pair.there, "text");
    pid_t pid = child();
    if (pid == 0) {
        say("delete", control(set, EPOLL_CTL_DEL, pair.here, 0, 0));
        struct signal_pipe pipes = signal_pipe();
        need(dup2(pipes.ends[0], pair.here) == pair.here, "dup2");
        watch(set, pair.here, EPOLLIN, 3);
        say_event(set, 0);
        send_text(pipes.ends[1], "pipe");
        say_event(set, PATIENCE);
        say_text(pair.here);
        int from = socket(AF_INET, SOCK_DGRAM, 0);
        need(sendto(from, "udp", 3, 0, (struct sockaddr *)&any, sizeof any) == 3, "sendto");
        say_event(set, PATIENCE);
        say_text(udp);
        exit(0);
    }
    reap(pid);
    finish(pair);
    close(udp), close(set);
}

/* -- a connection that ends before the child waits */

static void ended(void) {
    struct pair pair = connection();
    struct signal_pipe over = signal_pipe();
    int set = new_set();
    watch(set, pair.here, EPOLLIN, 1);
    pid_t pid = child();
    if (pid == 0) {
        close(pair.there);
        await(over);
        say_event(set, PATIENCE);
        char byte;
        say("read", read(pair.here, &byte, 1));
        say("read", read(pair.here, &byte, 1));
        exit(0);
    }
    struct linger none = {.l_onoff = 1};
    need(setsockopt(pair.there, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0, "SO_LINGER");
    close(pair.here), close(set);
    /* The child closes its copy first. */
    pause_ms(MOMENT);
    close(pair.there);
    pause_ms(MOMENT);
    let_go_on(over);
    reap(pid);
}

static const struct part parts[] = {
    {"connections", connections},
    {"listener and connection", listener_and_connection},
    {"in background", in_background},
    {"changes", changes},
    {"set anew", set_anew},
    {"nested", nested},
    {"others", others},
    {"ended", ended},
};

static void serve_in_background(int port) {
    int listening = socket(AF_INET, SOCK_STREAM, 0), set = new_set(), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    at.sin_port = htons(port);
    need(setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0, "SO_REUSEADDR");
    need(bind(listening, (struct sockaddr *)&at, sizeof at) == 0, "bind");
    need(listen(listening, 16) == 0, "listen");
    watch(set, listening, EPOLLIN, listening);
    need(epoll_wait(set, &(struct epoll_event){0}, 1, 0) == 0, "epoll_wait");
    need(daemon(1, 1) == 0, "daemon");
    alarm(60);
    serve(set, listening, 1);
}

int main(int count, char **arguments) {
    if (count == 4) {
        struct sockaddr_in at = {.sin_family = AF_INET};
        host = arguments[1];
        at.sin_addr.s_addr = inet_addr(host);
        at.sin_port = htons(atoi(arguments[3]));
        if (strcmp(arguments[2], "serve") == 0)
            serve_in_background(atoi(arguments[3]));
        else
            ask(&at, 1);
        return 0;
    }
    alarm(60);
    return run_parts(count, arguments, parts, sizeof parts / sizeof *parts, NULL);
}
