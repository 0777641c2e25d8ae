/* Connections of a program to itself, and lines that say how its calls end. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *host;

static inline void say(const char *what, long result) {
    if (result < 0) {
        printf("%s: -1, %s\n", what, strerrorname_np(errno));
    } else {
        printf("%s: %ld\n", what, result);
    }
    fflush(stdout);
}

static inline void need(int is_true, const char *what) {
    if (!is_true) {
        printf("failed: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static inline void pause_ms(long count) {
    struct timespec pause = {.tv_sec = count / 1000, .tv_nsec = count % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static inline struct sockaddr_in name_of(int fd) {
    struct sockaddr_in name = {0};
    socklen_t len = sizeof name;
    need(getsockname(fd, (struct sockaddr *)&name, &len) == 0, "getsockname");
    return name;
}

static inline int listener(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    need(fd >= 0, "socket");
    need(bind(fd, (struct sockaddr *)&any, sizeof any) == 0, "bind");
    need(listen(fd, 16) == 0, "listen");
    return fd;
}

/* A socket that is bound, and shares its port, so that no other program gets it meanwhile. */
static inline int keeper_of_port(void) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    need(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0, "setsockopt");
    need(bind(fd, (struct sockaddr *)&any, sizeof any) == 0, "bind");
    return fd;
}

static inline int connected_to(int listening) {
    struct sockaddr_in to = name_of(listening);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    need(fd >= 0, "socket");
    need(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    return fd;
}

struct pair {
    int here, there;
};

/* A connection with both ends in this process. */
static inline struct pair connection(void) {
    int listening = listener();
    struct pair pair = {.here = connected_to(listening)};
    pair.there = accept(listening, NULL, NULL);
    need(pair.there >= 0, "accept");
    close(listening);
    return pair;
}

static inline void finish(struct pair pair) {
    close(pair.here);
    close(pair.there);
}

/* Reads until `len` bytes are there. */
static inline long read_all(int fd, char *to, size_t len) {
    size_t got = 0;
    while (got < len) {
        ssize_t part = read(fd, to + got, len - got);
        if (part <= 0) {
            return part < 0 ? -1 : (long)got;
        }
        got += (size_t)part;
    }
    return (long)got;
}

static inline void exchange(struct pair pair, const char *what) {
    char text[8] = {0};
    say(what, write(pair.here, "1234", 4));
    say(what, read_all(pair.there, text, 4));
    need(strcmp(text, "1234") == 0, "the text");
}

/* A piece of a program, by its name. */
struct part {
    const char *name;
    void (*run)(void);
};

/* The other end of a link: it is there until the link goes away. */
static inline void be_peer(void) {
    int listening = listener();
    name_of(listening);
    accept(listening, NULL, NULL);
}

/* What a program of parts does, with the arguments ADDRESS [PART | peer]: one part, or all of them
 * but the one that runs `alone`. */
static inline int run_parts(int count, char **arguments, const struct part *parts, size_t all,
                            const char *alone) {
    need(count > 1, "an address");
    host = arguments[1];
    const char *only = count > 2 ? arguments[2] : NULL;
    if (only && strcmp(only, "peer") == 0) {
        be_peer();
        return 0;
    }
    for (size_t at = 0; at < all; at++) {
        const char *name = parts[at].name;
        if (only ? strcmp(only, name) == 0 : !alone || strcmp(name, alone)) {
            printf("%s\n", name);
            fflush(stdout);
            parts[at].run();
        }
    }
    puts("end");
    return 0;
}

static inline int file_of(const char *text) {
    char path[] = "/tmp/mp-calls-XXXXXX";
    int fd = mkstemp(path);
    need(fd >= 0, "mkstemp");
    unlink(path);
    need(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "write");
    lseek(fd, 0, SEEK_SET);
    return fd;
}
