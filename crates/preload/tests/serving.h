/* Servers and clients in processes of their own, which end at the first thing that is wrong. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static inline void check(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%d: %s: %s\n", getpid(), what, strerror(errno));
        exit(1);
    }
}

/* A socket, and the address that `arguments` begin with: ADDRESS PORT. */
static inline int socket_at(char **arguments, struct sockaddr_in *at, int flags) {
    memset(at, 0, sizeof *at);
    at->sin_family = AF_INET;
    at->sin_port = htons(atoi(arguments[1]));
    check(inet_pton(AF_INET, arguments[0], &at->sin_addr) == 1, "address");
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    check(fd >= 0, "socket");
    return fd;
}

static inline int listener_at(char **arguments, int flags) {
    struct sockaddr_in at;
    int fd = socket_at(arguments, &at, flags), on = 1;
    check(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0, "SO_REUSEADDR");
    check(bind(fd, (struct sockaddr *)&at, sizeof at) == 0, "bind");
    check(listen(fd, 16) == 0, "listen");
    return fd;
}

static inline void write_all(int fd, const char *bytes, size_t len) {
    while (len > 0) {
        ssize_t written = write(fd, bytes, len);
        check(written > 0, "write");
        bytes += written;
        len -= written;
    }
}

/* Echoes what comes on `from` to `to`, up to the end. */
static inline void echo(int from, int to) {
    char bytes[4096];
    ssize_t len;
    while ((len = read(from, bytes, sizeof bytes)) > 0)
        write_all(to, bytes, len);
    check(len == 0, "read");
}

/* Reads up to the end, and returns whether that was what is expected. */
static inline int is_answered(int fd, const char *expected, int len, const char *name) {
    char answer[4096];
    int seen = 0;
    ssize_t got;
    while ((got = read(fd, answer + seen, sizeof answer - seen)) > 0)
        seen += got;
    check(got == 0, name);
    if (seen == len && memcmp(answer, expected, len) == 0)
        return 1;
    fprintf(stderr, "%s: %.*s\n", name, seen, answer);
    return 0;
}
