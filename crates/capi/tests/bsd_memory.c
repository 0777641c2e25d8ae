/*
 * BSD sockets of megapipe_sockets.h with one allocation of a call refused.
 *
 *     bsd_memory N
 *
 * malloc(3) and its kin of this program refuse the Nth request, counted from 0 and in calls only.
 * A call works or answers ENOMEM; then it is repeated, on the same descriptor, and works. Prints
 * "all granted" if no request was refused. The environment chooses the back end.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <megapipe_sockets.h>

/* glibc's own, under the names that its malloc hooks had. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

/* A call is inside; requests that are granted before one is refused. */
static __thread int inside;
static __thread long granted = -1;

static int refuses(void)
{
    if (!inside || granted < 0 || granted-- > 0)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size)
{
    return refuses() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return refuses() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    return refuses() ? NULL : __libc_realloc(memory, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    if (refuses())
        return ENOMEM;
    *memory = __libc_memalign(alignment, size);
    return *memory == NULL ? ENOMEM : 0;
}

/* The call's result; where it answers ENOMEM, that of its repetition. */
#define WORKS(call)                                                                               \
    __extension__({                                                                               \
        long result_;                                                                             \
        inside = 1;                                                                               \
        result_ = (call);                                                                         \
        if (result_ < 0 && errno == ENOMEM)                                                       \
            result_ = (call);                                                                     \
        inside = 0;                                                                               \
        if (result_ < 0) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, strerror(errno));       \
            exit(1);                                                                              \
        }                                                                                         \
        result_;                                                                                  \
    })

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                       \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { CONNECTIONS = 20, BYTES = 9000 };

static void write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        long count = WORKS(mps_write(fd, bytes, size));

        bytes += count;
        size -= (size_t)count;
    }
}

static void read_all(int fd, const char *want, size_t size)
{
    static char bytes[BYTES];
    size_t filled = 0;

    while (filled < size) {
        long count = WORKS(mps_read(fd, bytes + filled, size - filled));

        CHECK(count > 0);
        filled += (size_t)count;
    }
    CHECK(memcmp(bytes, want, size) == 0);
}

/*
 * Both ends of a connection that is accepted. Without memory accept(2) answers ENOMEM, and the
 * connection may have been reset: the client connects again.
 */
static void meet(int listener, struct sockaddr_in *address, int *client, int *server)
{
    struct sockaddr_in ours, peer;
    socklen_t size = sizeof(ours);

    for (int i = 0; i < 5; i++) {
        *client = (int)WORKS(mps_socket(AF_INET, SOCK_STREAM, 0));
        WORKS(mps_connect(*client, (struct sockaddr *)address, sizeof(*address)));
        WORKS(mps_getsockname(*client, (struct sockaddr *)&ours, &size));
        for (;;) {
            inside = 1;
            *server = mps_accept(listener, NULL, NULL);
            inside = 0;
            if (*server < 0) {
                CHECK(errno == ENOMEM);
                break;
            }
            /* One that was given up may be accepted first. */
            if (mps_getpeername(*server, (struct sockaddr *)&peer, &size) == 0 &&
                peer.sin_port == ours.sin_port)
                return;
            WORKS(mps_close(*server));
        }
        WORKS(mps_close(*client));
    }
    CHECK(!"a connection was accepted");
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct epoll_event event = {.events = EPOLLIN}, got;
    socklen_t size = sizeof(address);
    struct iovec parts[40];
    int client[CONNECTIONS], server[CONNECTIONS], listener, set;
    static char bytes[BYTES];

    /* The sockets themselves are created with memory. */
    CHECK(argc == 2);
    CHECK(mps_close(mps_socket(AF_INET, SOCK_STREAM, 0)) == 0);
    granted = atol(argv[1]);
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (char)(i * 7);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = (int)WORKS(mps_socket(AF_INET, SOCK_STREAM, 0));
    WORKS(mps_bind(listener, (struct sockaddr *)&address, size));
    WORKS(mps_listen(listener, 16));
    WORKS(mps_getsockname(listener, (struct sockaddr *)&address, &size));
    set = (int)WORKS(mps_epoll_create1(0));
    WORKS(mps_epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
    for (int i = 0; i < CONNECTIONS; i++) {
        meet(listener, &address, &client[i], &server[i]);
        WORKS(mps_epoll_ctl(set, EPOLL_CTL_ADD, server[i], &event));
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        struct pollfd asked = {.fd = server[i], .events = POLLIN};

        write_all(client[i], bytes, BYTES);
        CHECK(WORKS(mps_epoll_wait(set, &got, 1, 20000)) == 1);
        CHECK(WORKS(mps_poll(&asked, 1, 20000)) == 1);
        read_all(server[i], bytes, BYTES);
    }
    for (size_t i = 0; i < 40; i++)
        parts[i] = (struct iovec){.iov_base = bytes + i, .iov_len = 1};
    CHECK(WORKS(mps_writev(client[0], parts, 40)) == 40);
    read_all(server[0], bytes, 40);
    for (int i = 0; i < CONNECTIONS; i++) {
        WORKS(mps_close(server[i]));
        WORKS(mps_close(client[i]));
    }
    puts(granted < 0 ? "refused" : "all granted");
    return 0;
}
