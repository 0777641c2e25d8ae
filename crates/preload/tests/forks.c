/*
 * A server that forks for each connection, and its client.
 *
 * `serve ADDRESS PORT COUNT`: a child echoes each connection; the parent closes its copy and reaps
 * the child. The parent echoes the last connection itself, while children exist that only exit.
 * `ask ADDRESS PORT`: sends lines in two parts and expects the same back, then the end. Its exit
 * status is 2 while nothing listens.
 * `churn ADDRESS COUNT SEED`: children that serve a connection to this process, of which the seed
 * kills many at some moment.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include "serving.h"

enum { LINES = 300, TIME_MAX = 100 };

/* `set`: what to wait for before each read, or -1. */
static void echo_in_turns(int fd, int set) {
    char bytes[4096];
    struct epoll_event event;
    ssize_t len;
    for (;;) {
        check(set < 0 || epoll_wait(set, &event, 1, 1000 * TIME_MAX) == 1, "epoll_wait");
        len = read(fd, bytes, sizeof bytes);
        if (len <= 0)
            break;
        write_all(fd, bytes, len);
    }
    check(len == 0, "read");
    check(close(fd) == 0, "close");
}

static void reap(pid_t child, const char *what) {
    int status = -1;
    check(waitpid(child, &status, 0) == child && status == 0, what);
}

/* Children that use nothing: what their parent has is not disturbed. */
static void fork_idly(int connection) {
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0)
        _exit(close(connection));
    reap(child, "a child that closes");
    check(system("exit 0") == 0, "system");
    FILE *output = popen("echo text", "r");
    char line[8] = "";
    check(output && fgets(line, sizeof line, output) && !strcmp(line, "text\n"), "popen");
    check(pclose(output) == 0, "pclose");
}

static int serve(char **arguments) {
    int listener = listener_at(arguments, 0);
    for (int left = atoi(arguments[2]); left > 0; left--) {
        int connection = accept(listener, NULL, NULL);
        check(connection >= 0, "accept");
        if (left == 1) {
            int set = epoll_create1(0);
            struct epoll_event event = {.events = EPOLLIN};
            check(epoll_ctl(set, EPOLL_CTL_ADD, connection, &event) == 0, "epoll_ctl");
            fork_idly(connection);
            echo_in_turns(connection, set);
            break;
        }
        fork_idly(connection);
        /* The child's own child does the work every second time. */
        pid_t child = fork();
        check(child >= 0, "fork");
        if (child == 0) {
            alarm(TIME_MAX);
            close(listener);
            pid_t grandchild = left % 2 ? fork() : 0;
            check(grandchild >= 0, "fork");
            if (grandchild == 0)
                echo_in_turns(connection, -1);
            else
                reap(grandchild, "a grandchild");
            _exit(0);
        }
        check(close(connection) == 0, "close");
        reap(child, "a child");
    }
    puts("served");
    return 0;
}

static int ask(char **arguments) {
    static const char line[] = "a line of text that comes back as it was sent\n";
    size_t len = sizeof line - 1, seen = 0;
    struct sockaddr_in at;
    int fd = socket_at(arguments, &at, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0)
        return 2;
    for (int part = 0; part < LINES; part++) {
        write_all(fd, line, len);
        /* Some lines are there before the fork, and some come behind it. */
        if (part % 100 == 0)
            usleep(2000);
    }
    check(shutdown(fd, SHUT_WR) == 0, "shutdown");
    char byte[4096];
    ssize_t got;
    while ((got = read(fd, byte, sizeof byte)) > 0)
        for (ssize_t at_byte = 0; at_byte < got; at_byte++, seen++)
            check(byte[at_byte] == line[seen % len], "the same bytes");
    check(got == 0, "read");
    check(seen == LINES * len, "all bytes");
    puts("asked");
    return 0;
}

static unsigned drawn(unsigned *seed, unsigned below) {
    *seed = *seed * 1103515245 + 12345;
    return *seed / 65536 % below;
}

/* A connection of this process to itself, for a child that answers it and may be killed. */
static void serve_one(int listener, const struct sockaddr_in *at, unsigned *seed) {
    int client = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(client, (const struct sockaddr *)at, sizeof *at) == 0, "connect");
    int connection = accept(listener, NULL, NULL);
    check(connection >= 0, "accept");
    if (drawn(seed, 2))
        write_all(client, "some bytes", 10);
    int is_killed = drawn(seed, 5) < 2, pause = drawn(seed, 2000);
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        close(client), close(listener);
        char bytes[16];
        write_all(connection, "from the child", 14);
        while (read(connection, bytes, sizeof bytes) > 0) {}
        _exit(0);
    }
    close(connection);
    char bytes[16];
    if (is_killed) {
        usleep(pause);
        kill(child, SIGKILL);
    } else {
        check(read(client, bytes, 14) == 14, "what a child writes");
        check(shutdown(client, SHUT_WR) == 0, "shutdown");
    }
    /* The end of the connection, or a reset where bytes were left unread. */
    while (read(client, bytes, sizeof bytes) > 0) {}
    check(waitpid(child, NULL, 0) == child, "waitpid");
    close(client);
}

static int churn(char **arguments) {
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    char *place[] = {arguments[0], "0"};
    int listener = socket_at(place, &at, 0);
    unsigned seed = atoi(arguments[2]);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0, "bind");
    check(listen(listener, 16) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&at, &len) == 0, "getsockname");
    for (int left = atoi(arguments[1]); left > 0; left--)
        serve_one(listener, &at, &seed);
    puts("churned");
    return 0;
}

int main(int count, char **arguments) {
    alarm(TIME_MAX);
    if (count == 5 && !strcmp(arguments[1], "serve"))
        return serve(arguments + 2);
    if (count == 4 && !strcmp(arguments[1], "ask"))
        return ask(arguments + 2);
    if (count == 5 && !strcmp(arguments[1], "churn"))
        return churn(arguments + 2);
    fprintf(stderr, "usage: serve ADDRESS PORT COUNT | ask ADDRESS PORT | "
                    "churn ADDRESS COUNT SEED\n");
    return 1;
}
