/* Children of a program that connects to itself. */
#pragma once
#include <sys/wait.h>

#include "connections.h"

static inline pid_t child(void) {
    fflush(stdout);
    pid_t pid = fork();
    need(pid >= 0, "fork");
    return pid;
}

static inline void reap(pid_t pid) {
    int status = -1;
    need(waitpid(pid, &status, 0) == pid, "waitpid");
    say("child", status);
}

/* Lets another process go on. */
struct signal_pipe {
    int ends[2];
};

static inline struct signal_pipe signal_pipe(void) {
    struct signal_pipe made;
    need(pipe(made.ends) == 0, "pipe");
    return made;
}

static inline void let_go_on(struct signal_pipe made) {
    need(write(made.ends[1], "x", 1) == 1, "write");
}

static inline void await(struct signal_pipe made) {
    char byte;
    need(read(made.ends[0], &byte, 1) == 1, "read");
}
