/*
 * UDP sockets that several processes have.
 *
 * `serve ADDRESS PORT`: parents and children that read and answer, and for the client a child for
 * each request. `ask ADDRESS PORT`: requests, each sent again until it is answered. Its exit status
 * is 2 while nothing answers. `go_on NUMBER`: the program that a child executes.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "serving.h"

enum { READERS = 3, REQUESTS = 200, ASKED = 5, TIME_MAX = 50, WAIT = 20000, MOMENT = 50000 };

static struct sockaddr_in at;

/* A socket at the server's address, or at a port of its own. */
static int bound(int port) {
    struct sockaddr_in name = at;
    name.sin_port = htons(port);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    check(fd >= 0, "socket");
    int tries = 0;
    /* The end of a process that had the port may come later. */
    while (bind(fd, (struct sockaddr *)&name, sizeof name) != 0) {
        check(errno == EADDRINUSE && tries++ < 200, "bind");
        usleep(MOMENT);
    }
    return fd;
}

static struct sockaddr_in name_of(int fd) {
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    check(getsockname(fd, (struct sockaddr *)&name, &len) == 0, "getsockname");
    return name;
}

static void send_from(int fd, const char *text, struct sockaddr_in to) {
    ssize_t len = sendto(fd, text, strlen(text), 0, (struct sockaddr *)&to, sizeof to);
    check(len == (ssize_t)strlen(text), "sendto");
}

/* Receives a text. Returns its sender. */
static struct sockaddr_in take(int fd, char *text, size_t room, int flags) {
    struct sockaddr_in from;
    socklen_t from_len = sizeof from;
    ssize_t len = recvfrom(fd, text, room - 1, flags, (struct sockaddr *)&from, &from_len);
    check(len >= 0, "recvfrom");
    text[len] = 0;
    return from;
}

static int is_readable(int fd, int time) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    int count = poll(&entry, 1, time);
    check(count >= 0, "poll");
    return count == 1 && entry.revents & POLLIN;
}

static void expect(int fd, const char *expected) {
    char text[64];
    check(is_readable(fd, WAIT), expected);
    take(fd, text, sizeof text, 0);
    if (strcmp(text, expected) != 0)
        fprintf(stderr, "%s instead of %s\n", text, expected);
    check(strcmp(text, expected) == 0, "another text");
}

static void expect_nothing(int fd) {
    char text[64];
    check(recv(fd, text, sizeof text, MSG_DONTWAIT) == -1 && errno == EAGAIN, "nothing waits");
    check(!is_readable(fd, 0), "it is not readable");
}

static pid_t child(void) {
    fflush(stdout);
    pid_t pid = fork();
    check(pid >= 0, "fork");
    if (pid == 0)
        alarm(TIME_MAX);
    return pid;
}

static void reap(pid_t pid, const char *what) {
    int status = -1;
    check(waitpid(pid, &status, 0) == pid && status == 0, what);
    printf("%s\n", what);
}

/* A child that answers a request. */
static pid_t answering_child(int server, struct sockaddr_in from, char *text, const char *more) {
    pid_t pid = child();
    if (pid == 0) {
        strcat(text, more);
        send_from(server, text, from);
        _exit(0);
    }
    return pid;
}

/* As socketserver.ForkingUDPServer: the parent reads, the child answers. */
static void child_answers(int server, int client) {
    char text[64];
    send_from(client, "request", name_of(server));
    struct sockaddr_in from = take(server, text, sizeof text, 0);
    pid_t pid = answering_child(server, from, text, ", answered");
    expect(client, "request, answered");
    reap(pid, "a child answers");
    send_from(client, "second", name_of(server));
    expect(server, "second");
    expect_nothing(server);
}

/* What came before the fork is read once. */
static void early_datagrams(int server, int client) {
    const char *texts[] = {"one", "two", "", "four", "five"};
    for (int place = 0; place < 5; place++)
        send_from(client, texts[place], name_of(server));
    check(is_readable(server, WAIT), "the first has come");
    usleep(MOMENT);
    expect(server, "one");
    pid_t pid = child();
    if (pid == 0) {
        char text[64];
        int len = -1;
        check(ioctl(server, FIONREAD, &len) == 0 && len == 3, "FIONREAD");
        take(server, text, sizeof text, MSG_PEEK);
        check(strcmp(text, "two") == 0, "MSG_PEEK");
        expect(server, "two");
        expect(server, "");
        _exit(0);
    }
    reap(pid, "a child reads what came before");
    expect(server, "four");
    /* The same again, with what is left. */
    pid = child();
    if (pid == 0) {
        expect(server, "five");
        expect_nothing(server);
        _exit(0);
    }
    reap(pid, "another one reads the rest");
    expect_nothing(server);
}

/* Children that read from one socket: each datagram goes to one of them. */
static void prefork(int server, int client) {
    pid_t readers[READERS];
    char text[64];
    for (int place = 0; place < READERS; place++) {
        readers[place] = child();
        if (readers[place] > 0)
            continue;
        int set = epoll_create1(0), last = 0;
        struct epoll_event event = {.events = EPOLLIN};
        if (place == 1) {
            check(epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0, "epoll_ctl");
        }
        while (!last) {
            /* One waits in recvfrom, one in epoll_wait, and one in poll. */
            if (place == 1)
                check(epoll_wait(set, &event, 1, WAIT) == 1, "epoll_wait");
            if (place == 2)
                check(is_readable(server, WAIT), "poll");
            struct sockaddr_in from;
            socklen_t from_len = sizeof from;
            ssize_t len = recvfrom(server, text, sizeof text - 1, place ? MSG_DONTWAIT : 0,
                                   (struct sockaddr *)&from, &from_len);
            if (len < 0) {
                check(errno == EAGAIN && place, "recvfrom");
                continue;
            }
            text[len] = 0;
            last = strcmp(text, "end") == 0;
            send_from(server, text, from);
        }
        _exit(0);
    }
    char seen[REQUESTS] = {0};
    for (int request = 0; request < REQUESTS; request++) {
        snprintf(text, sizeof text, "%d", request);
        send_from(client, text, name_of(server));
        if (request % 4 != 3)
            continue;
        for (int answers = 0; answers < 4; answers++) {
            check(is_readable(client, WAIT), "an answer");
            take(client, text, sizeof text, 0);
            check(!seen[atoi(text)]++, "each is answered once");
        }
    }
    for (int place = 0; place < READERS; place++) {
        send_from(client, "end", name_of(server));
        expect(client, "end");
    }
    for (int place = 0; place < READERS; place++)
        reap(readers[place], "a reader");
    for (int request = 0; request < REQUESTS; request++)
        check(seen[request] == 1, "all are answered");
    expect_nothing(server);
    expect_nothing(client);
}

static void answer_one(int server) {
    char text[64];
    struct sockaddr_in from = take(server, text, sizeof text, 0);
    strcat(text, "!");
    send_from(server, text, from);
}

/* The parent closes the socket; its child has it, and then a grandchild alone. */
static void parent_closes(int client) {
    int server = bound(0);
    struct sockaddr_in name = name_of(server);
    pid_t pid = child();
    if (pid == 0) {
        answer_one(server);
        pid_t grandchild = child();
        if (grandchild == 0) {
            answer_one(server);
            _exit(0);
        }
        check(close(server) == 0, "close");
        reap(grandchild, "a grandchild has it alone");
        exit(0);
    }
    check(close(server) == 0, "close");
    send_from(client, "first", name);
    expect(client, "first!");
    send_from(client, "second", name);
    expect(client, "second!");
    reap(pid, "a child goes on");
    /* Nothing has the port any more. */
    int again = bound(ntohs(name.sin_port));
    send_from(client, "third", name);
    expect(again, "third");
    close(again);
}

/* Children that only close and exit, and one that is killed. */
static void parent_goes_on(int server, int client) {
    pid_t pid = child();
    if (pid == 0)
        _exit(close(server) != 0);
    reap(pid, "a child that closes");
    pid = child();
    if (pid == 0) {
        answer_one(server);
        pause();
    }
    send_from(client, "killed", name_of(server));
    expect(client, "killed!");
    check(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid, "waitpid");
    send_from(client, "then", name_of(server));
    expect(server, "then");
    expect_nothing(server);
}

/* A set of the parent, and one of the child; both are informed. */
static void sets(int server, int client) {
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = server};
    check(epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0, "epoll_ctl");
    pid_t pid = child();
    if (pid == 0) {
        int own = epoll_create1(0);
        check(epoll_ctl(own, EPOLL_CTL_ADD, server, &event) == 0, "epoll_ctl");
        check(epoll_wait(own, &event, 1, WAIT) == 1, "epoll_wait");
        check(event.events == EPOLLIN, "events");
        answer_one(server);
        _exit(0);
    }
    send_from(client, "set", name_of(server));
    check(epoll_wait(set, &event, 1, WAIT) == 1 && event.data.fd == server, "epoll_wait");
    expect(client, "set!");
    reap(pid, "a child with a set");
    expect_nothing(server);
    /* The next one is an edge again. */
    send_from(client, "edge", name_of(server));
    check(epoll_wait(set, &event, 1, WAIT) == 1, "epoll_wait");
    expect(server, "edge");
    close(set);
}

/* A socket with a peer, and its error. */
static void connected(int client) {
    int server = bound(0), closed = bound(0);
    struct sockaddr_in peer = name_of(client), nothing = name_of(closed);
    close(closed);
    check(connect(server, (struct sockaddr *)&peer, sizeof peer) == 0, "connect");
    pid_t pid = child();
    if (pid == 0) {
        struct sockaddr_in name;
        socklen_t len = sizeof name;
        check(send(server, "from a child", 12, 0) == 12, "send");
        expect(server, "to a child");
        check(getpeername(server, (struct sockaddr *)&name, &len) == 0, "getpeername");
        check(name.sin_port == peer.sin_port, "the peer");
        check(bind(server, (struct sockaddr *)&at, sizeof at) == -1 && errno == EINVAL, "bind");
        _exit(0);
    }
    expect(client, "from a child");
    send_from(client, "to a child", name_of(server));
    reap(pid, "a child with a peer");
    check(connect(server, (struct sockaddr *)&nothing, sizeof nothing) == 0, "connect");
    pid = child();
    if (pid == 0) {
        char text[8];
        check(send(server, "x", 1, 0) == 1, "send");
        check(recv(server, text, sizeof text, 0) == -1 && errno == ECONNREFUSED, "ECONNREFUSED");
        _exit(0);
    }
    reap(pid, "a child whose peer does not exist");
    close(server);
}

static int pass(int over, int fd) {
    char byte = 'x', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (fd >= 0) {
        *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET,
                                 .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
        check(sendmsg(over, &message, 0) == 1, "sendmsg");
        return fd;
    }
    check(recvmsg(over, &message, 0) == 1 && !(message.msg_flags & MSG_CTRUNC), "recvmsg");
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* A message passes a socket to a process that was there before it, with what waits for it. */
static void passed_in_a_message(int client) {
    int pair[2];
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    pid_t pid = child();
    if (pid == 0) {
        int server = pass(pair[1], -1);
        struct sockaddr_in name = name_of(client);
        expect(server, "before");
        answer_one(server);
        check(connect(server, (struct sockaddr *)&name, sizeof name) == 0, "connect");
        /* A second copy has the peer. */
        check(write(pair[1], "next", 4) == 4, "write");
        int again = pass(pair[1], -1);
        check(send(again, "to the peer", 11, 0) == 11, "send");
        _exit(0);
    }
    int server = bound(0);
    char text[8];
    send_from(client, "before", name_of(server));
    check(is_readable(server, WAIT), "it has come");
    pass(pair[0], server);
    send_from(client, "passed", name_of(server));
    expect(client, "passed!");
    check(read(pair[0], text, 4) == 4, "read");
    pass(pair[0], server);
    expect(client, "to the peer");
    reap(pid, "a child that was passed a socket");
    send_from(client, "later", name_of(server));
    expect(server, "later");
    close(server);
    close(pair[0]);
    close(pair[1]);
}

/* A program that a child executes goes on with the socket. */
static void executed(int server, int client, char *program) {
    pid_t pid = child();
    if (pid == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", server);
        execl(program, program, "go_on", number, "-", NULL);
        _exit(1);
    }
    send_from(client, "executed", name_of(server));
    expect(client, "executed!");
    reap(pid, "a program that goes on");
    send_from(client, "after", name_of(server));
    expect(server, "after");
}

static void *wait_for_one(void *socket) {
    expect(*(int *)socket, "to a thread");
    return NULL;
}

/* A thread waits in recvfrom(2) while another one forks. */
static void waiting_thread(int server, int client) {
    pthread_t thread;
    check(pthread_create(&thread, NULL, wait_for_one, &server) == 0, "pthread_create");
    usleep(MOMENT);
    pid_t pid = child();
    if (pid == 0)
        _exit(0);
    reap(pid, "a child beside a thread that waits");
    send_from(client, "to a thread", name_of(server));
    check(pthread_join(thread, NULL) == 0, "pthread_join");
}

/* A socket of both families. */
static void both_families(int client) {
    struct sockaddr_in6 name = {.sin6_family = AF_INET6};
    socklen_t len = sizeof name;
    int server = socket(AF_INET6, SOCK_DGRAM, 0);
    name.sin6_addr.s6_addr[10] = name.sin6_addr.s6_addr[11] = 0xff;
    memcpy(&name.sin6_addr.s6_addr[12], &at.sin_addr, 4);
    check(bind(server, (struct sockaddr *)&name, sizeof name) == 0, "bind");
    check(getsockname(server, (struct sockaddr *)&name, &len) == 0, "getsockname");
    struct sockaddr_in to = at;
    to.sin_port = name.sin6_port;
    send_from(client, "mapped", to);
    check(is_readable(server, WAIT), "it has come");
    pid_t pid = child();
    if (pid == 0) {
        char text[64];
        ssize_t got = recvfrom(server, text, sizeof text, 0, (struct sockaddr *)&name, &len);
        check(got == 6 && name.sin6_family == AF_INET6, "recvfrom");
        check(sendto(server, text, got, 0, (struct sockaddr *)&name, len) == got, "sendto");
        _exit(0);
    }
    expect(client, "mapped");
    reap(pid, "a child with a socket of both families");
    close(server);
}

static int go_on(char **arguments) {
    int server = atoi(arguments[0]);
    check(is_readable(server, WAIT), "poll");
    answer_one(server);
    return 0;
}

static int serve(char *program, char **arguments) {
    at.sin_family = AF_INET;
    check(inet_pton(AF_INET, arguments[0], &at.sin_addr) == 1, "address");
    int server = bound(0), client = bound(0);
    child_answers(server, client);
    early_datagrams(server, client);
    prefork(server, client);
    parent_closes(client);
    parent_goes_on(server, client);
    sets(server, client);
    connected(client);
    passed_in_a_message(client);
    executed(server, client, program);
    waiting_thread(server, client);
    both_families(client);
    close(server);
    close(client);
    server = bound(atoi(arguments[1]));
    char text[64] = "";
    while (strcmp(text, "end") != 0) {
        struct sockaddr_in from = take(server, text, sizeof text, 0);
        pid_t pid = answering_child(server, from, text, "!");
        int status = -1;
        check(waitpid(pid, &status, 0) == pid && status == 0, "a child for a request");
    }
    close(server);
    return 0;
}

static int ask(char **arguments) {
    at.sin_family = AF_INET;
    at.sin_port = htons(atoi(arguments[1]));
    check(inet_pton(AF_INET, arguments[0], &at.sin_addr) == 1, "address");
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    for (int request = 0; request <= ASKED; request++) {
        char text[64], answer[64];
        snprintf(text, sizeof text, request < ASKED ? "request %d" : "end", request);
        int tries = 0;
        do {
            if (tries++ > 10)
                return 2;
            send_from(fd, text, at);
        } while (!is_readable(fd, 500));
        take(fd, answer, sizeof answer, 0);
        strcat(text, "!");
        check(strcmp(answer, text) == 0, "the answer");
    }
    puts("asked");
    return 0;
}

int main(int count, char **arguments) {
    check(count == 4, "usage");
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(TIME_MAX);
    if (strcmp(arguments[1], "go_on") == 0)
        return go_on(arguments + 2);
    return strcmp(arguments[1], "serve") == 0 ? serve(arguments[0], arguments + 2)
                                              : ask(arguments + 2);
}
