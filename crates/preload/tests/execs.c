/*
 * A server whose connections other programs serve, after exec(3) and posix_spawn(3), and its
 * client.
 *
 * `serve ADDRESS PORT`: a connection for each of the ways below. `echo FROM TO`: the program that
 * goes on with a connection. `ask ADDRESS PORT`: sends text on a connection for each way, and
 * expects it back up to the end. Its exit status is 2 while nothing listens.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include "serving.h"

enum { TIME_MAX = 100, ELSEWHERE = 70 };

enum { CHILD, AS_INPUT, SPAWNED, FAILED, CLOSED, AGAIN, LAST, WAYS };

static const char *const names[WAYS] = {
    "child", "as input", "spawned", "failed", "closed", "again", "last"};

static const char text[] = "early text, and text that another program reads\n";

static const char program[] = "/proc/self/exe";

static void become_echo(int from, int to) {
    char first[16], second[16];
    snprintf(first, sizeof first, "%d", from);
    snprintf(second, sizeof second, "%d", to);
    char *arguments[] = {"execs", "echo", first, second, NULL};
    execv(program, arguments);
    check(0, "exec");
}

static void expect_no_program(void) {
    char *arguments[] = {"program", NULL};
    check(execv("/nonexistent/program", arguments) == -1, "exec");
    check(errno == ENOENT, "ENOENT");
}

/* Returns the child that goes on with the connection, or 0. */
static pid_t give_away(int way, int connection) {
    pid_t child = 0;
    if (way == SPAWNED) {
        posix_spawn_file_actions_t actions;
        char *arguments[] = {"execs", "echo", "70", "70", NULL};
        check(posix_spawn_file_actions_init(&actions) == 0, "actions");
        check(posix_spawn_file_actions_adddup2(&actions, connection, ELSEWHERE) == 0, "dup2");
        check(posix_spawn_file_actions_addclose(&actions, connection) == 0, "close");
        check(posix_spawn(&child, program, &actions, NULL, arguments, environ) == 0, "spawn");
        posix_spawn_file_actions_destroy(&actions);
        return child;
    }
    if (way == FAILED) {
        expect_no_program();
        echo(connection, connection);
        return 0;
    }
    child = fork();
    check(child >= 0, "fork");
    if (child > 0)
        return child;
    alarm(TIME_MAX);
    switch (way) {
    case AS_INPUT:
        check(dup2(connection, 0) == 0 && dup2(connection, 1) == 1, "dup2");
        check(close(connection) == 0, "close");
        become_echo(0, 1);
        break;
    case CLOSED:
        check(fcntl(connection, F_SETFD, FD_CLOEXEC) == 0, "FD_CLOEXEC");
        become_echo(connection, 1);
        break;
    case AGAIN:
        /* The child has used the connection, and fails once. */
        write_all(connection, "again\n", 6);
        expect_no_program();
        become_echo(connection, connection);
        break;
    default:
        become_echo(connection, connection);
    }
    return 0;
}

static int serve(char **arguments) {
    int listener = listener_at(arguments, SOCK_CLOEXEC), status;
    for (int way = 0; way < WAYS; way++) {
        int connection = accept(listener, NULL, NULL);
        char early[6];
        check(connection >= 0, "accept");
        check(recv(connection, early, sizeof early, MSG_WAITALL) == sizeof early, "early text");
        printf("%s\n", names[way]);
        if (way == LAST)
            become_echo(connection, connection);
        pid_t child = give_away(way, connection);
        if (way == CLOSED)
            echo(connection, connection);
        check(close(connection) == 0, "close");
        if (child != 0) {
            check(waitpid(child, &status, 0) == child, "waitpid");
            check(way == CLOSED ? status != 0 : status == 0, "the other program");
        }
    }
    return 1;
}

static int ask(char **arguments) {
    for (int way = 0; way < WAYS; way++) {
        struct sockaddr_in at;
        int fd = socket_at(arguments, &at, SOCK_CLOEXEC);
        if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0)
            return 2;
        write_all(fd, text, sizeof text - 1);
        check(shutdown(fd, SHUT_WR) == 0, "shutdown");
        char expected[4096];
        int len = snprintf(expected, sizeof expected, "%s%s", way == AGAIN ? "again\n" : "",
                           text + 6);
        if (!is_answered(fd, expected, len, names[way]))
            return 1;
        close(fd);
    }
    puts("asked");
    return 0;
}

int main(int count, char **arguments) {
    alarm(TIME_MAX);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 4 && !strcmp(arguments[1], "serve"))
        return serve(arguments + 2);
    if (count == 4 && !strcmp(arguments[1], "ask"))
        return ask(arguments + 2);
    if (count == 4 && !strcmp(arguments[1], "echo")) {
        echo(atoi(arguments[2]), atoi(arguments[3]));
        return 0;
    }
    fprintf(stderr, "usage: serve ADDRESS PORT | ask ADDRESS PORT | echo FROM TO\n");
    return 1;
}
