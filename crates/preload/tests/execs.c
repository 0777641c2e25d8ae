/*
 * A server whose connections other programs serve, after exec(3), posix_spawn(3), system(3) and
 * popen(3), and its client.
 *
 * `serve ADDRESS PORT`: a connection for each of the ways below. `echo FROM TO`: the program that
 * goes on with a connection. `ask ADDRESS PORT`: sends text on a connection for each way, and
 * expects it back up to the end. Its exit status is 2 while nothing listens.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "serving.h"

enum { TIME_MAX = 100, ELSEWHERE = 70 };

enum {
    CHILD,
    AS_INPUT,
    SPAWNED,
    FAILED,
    CLOSED,
    AGAIN,
    VFORKED,
    VFORKED_IN_CHILD,
    VFORKED_TWICE,
    VFORKED_AND_FAILED,
    LISTED,
    LISTED_IN_PATH,
    LISTED_AND_ENVIRONMENT,
    AS_FILE,
    AT_FOLDER,
    BY_NUMBER,
    BY_SYSTEM,
    BY_POPEN,
    LAST,
    WAYS
};

static const char *const names[WAYS] = {
    "child", "as input", "spawned", "failed", "closed", "again", "vforked", "vforked in child",
    "vforked twice", "vforked and failed",
    "listed", "listed in path", "listed and environment", "as file", "at folder",
    "by number", "by system", "by popen", "last"};

static const char text[] = "early text, and text that another program reads\n";

/* What the server writes itself, when the other program has ended. */
static const char farewell[] = "and the server\n";

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

/* The numbers of a child of vfork(2) are its own: what it does with them its parent does not see.
 * The new program has the connection as its input and output alone. */
static void become_echo_of_input(int connection, int other) {
    char *arguments[] = {"execs", "echo", "0", "1", NULL};
    if (dup2(connection, 0) != 0 || dup2(0, 1) != 1 || dup2(other, connection) != connection)
        _exit(3);
    close(other);
    if (close_range(3, ~0U, 0) != 0)
        _exit(4);
    execv("/nonexistent/program", arguments);
    execv(program, arguments);
    _exit(5);
}

static pid_t vfork_echo(int connection) {
    int other = open("/dev/null", O_RDWR | O_CLOEXEC);
    check(other >= 0, "open");
    pid_t child = vfork();
    if (child == 0)
        become_echo_of_input(connection, other);
    check(child > 0, "vfork");
    check(fcntl(other, F_GETFD) == FD_CLOEXEC, "the parent's number");
    close(other);
    return child;
}

/* The program is that of a child's child, which knows the connection by a number of its parent. */
static pid_t vfork_twice(int connection) {
    pid_t child = vfork();
    if (child == 0) {
        int number = fcntl(connection, F_DUPFD, ELSEWHERE);
        close(connection);
        pid_t inner = vfork();
        if (inner == 0)
            become_echo_of_input(number, 2);
        int status = 0;
        _exit(waitpid(inner, &status, 0) == inner && status == 0 ? 0 : 1);
    }
    check(child > 0, "vfork");
    return child;
}

/* A child of this process, which has not used the connection, starts a program with an argument
 * that is too long. Then this process makes connections. */
static void fail_in_child(int connection) {
    static char argument[256 * 1024];
    char *arguments[] = {"execs", argument, NULL};
    memset(argument, 'x', sizeof argument - 1);
    pid_t child = vfork();
    if (child == 0)
        _exit(execv(program, arguments) == -1 && errno == E2BIG ? 0 : 1);
    int status = 0;
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "E2BIG");
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    check(getsockname(connection, (struct sockaddr *)&at, &len) == 0, "getsockname");
    at.sin_port = 0;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0, "bind");
    check(listen(listener, 1) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&at, &len) == 0, "getsockname");
    check(connect(client, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    int accepted = accept(listener, NULL, NULL);
    check(accepted >= 0, "accept");
    close(accepted), close(client), close(listener);
}

static void become_echo_by(int way, int connection) {
    char number[16], folder[] = "/proc/self/";
    snprintf(number, sizeof number, "%d", connection);
    char *arguments[] = {"execs", "echo", number, number, NULL};
    switch (way) {
    case LISTED:
        execl(program, "execs", "echo", number, number, "a", "few", "more", "arguments", NULL);
        break;
    case LISTED_IN_PATH:
        execlp(program, "execs", "echo", number, number, NULL);
        break;
    case LISTED_AND_ENVIRONMENT:
        execle(program, "execs", "echo", number, number, "1", "2", "3", NULL, environ);
        break;
    case AS_FILE:
        fexecve(open(program, O_RDONLY | O_CLOEXEC), arguments, environ);
        break;
    case AT_FOLDER:
        execveat(open(folder, O_RDONLY | O_CLOEXEC), "exe", arguments, environ, 0);
        break;
    default:
        syscall(SYS_execve, program, arguments, environ);
    }
    check(0, "exec");
}

/* A shell starts the program, and goes on with its status. */
static void let_shell_echo(int way, int connection) {
    char path[4096], command[4224], line[16];
    ssize_t len = readlink(program, path, sizeof path - 1);
    check(len > 0, "readlink");
    path[len] = 0;
    snprintf(command, sizeof command, "%s echo %d %d && echo done; exit 7", path, connection,
             connection);
    if (way == BY_SYSTEM) {
        int status = system(command);
        check(WIFEXITED(status) && WEXITSTATUS(status) == 7, "system");
        return;
    }
    FILE *output = popen(command, "re");
    check(output != NULL && fcntl(fileno(output), F_GETFD) == FD_CLOEXEC, "popen");
    check(fgets(line, sizeof line, output) && !strcmp(line, "done\n"), "the shell's output");
    int status = pclose(output);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 7, "pclose");
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
    if (way == VFORKED)
        return vfork_echo(connection);
    if (way == VFORKED_TWICE)
        return vfork_twice(connection);
    if (way == BY_SYSTEM || way == BY_POPEN) {
        let_shell_echo(way, connection);
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
    case VFORKED_IN_CHILD: {
        /* It has not used the connection. */
        int status = 0;
        pid_t inner = vfork_echo(connection);
        check(waitpid(inner, &status, 0) == inner, "waitpid");
        exit(WEXITSTATUS(status));
    }
    case VFORKED_AND_FAILED:
        fail_in_child(connection);
        become_echo(connection, connection);
        break;
    case CHILD:
        become_echo(connection, connection);
        break;
    default:
        become_echo_by(way, connection);
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
        int keeps = way >= VFORKED;
        check(keeps || close(connection) == 0, "close");
        if (child != 0) {
            check(waitpid(child, &status, 0) == child, "waitpid");
            check(way == CLOSED ? status != 0 : status == 0, "the other program");
        }
        if (keeps) {
            write_all(connection, farewell, sizeof farewell - 1);
            check(close(connection) == 0, "close");
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
        int len = snprintf(expected, sizeof expected, "%s%s%s", way == AGAIN ? "again\n" : "",
                           text + 6, way >= VFORKED && way != LAST ? farewell : "");
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
    if (count >= 4 && !strcmp(arguments[1], "echo")) {
        echo(atoi(arguments[2]), atoi(arguments[3]));
        return 0;
    }
    fprintf(stderr, "usage: serve ADDRESS PORT | ask ADDRESS PORT | echo FROM TO\n");
    return 1;
}
