/*
 * A web server written for Linux: a thread for each core, each with its own listening socket and
 * epoll set. It does not mention megapipe, and runs on Linux or on megapipe:
 *
 *     cc -pthread bsd_web_server.c -o bsd_web_server
 *     cc -pthread -D_GNU_SOURCE -include megapipe_bsd.h bsd_web_server.c -o bsd_web_server \
 *         $(pkg-config --cflags --libs megapipe)
 *     MEGAPIPE_SOCKETS=thread ./bsd_web_server 8080 2
 *
 * Each request is answered with the same page. On megapipe's own stack, over a TAP device:
 *
 *     MEGAPIPE_SOCKETS=thread MEGAPIPE_BACKEND=local MEGAPIPE_LINK=tap:tap0 \
 *         MEGAPIPE_ADDRESS=10.0.0.2/24 MEGAPIPE_CHANNELS=2 ./bsd_web_server 80 2
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, REQUEST_MAX = 4096, THREADS_MAX = 64 };

static const char PAGE[] = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, world\n";

struct connection {
    int fd;
    size_t len;
    char request[REQUEST_MAX + 1];
};

static struct sockaddr_in address;
static int stop[2];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int listen_here(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;

    if (fd < 0)
        fail("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0)
        fail("setsockopt");
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("bind");
    if (listen(fd, 1024) != 0)
        fail("listen");
    return fd;
}

static void watch(int set, int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = what}};

    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0)
        fail("epoll_ctl");
}

static void accept_all(int set, int listener)
{
    struct connection *connection;
    int fd;

    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        connection = calloc(1, sizeof *connection);
        if (connection == NULL)
            fail("calloc");
        connection->fd = fd;
        watch(set, fd, connection);
    }
}

/* Reads received bytes and answers each whole request; 0 when the connection is over. */
static int serve(struct connection *it)
{
    ssize_t count = read(it->fd, it->request + it->len, REQUEST_MAX - it->len);
    char *end;

    if (count <= 0)
        return count < 0 && errno == EAGAIN;
    it->len += (size_t)count;
    it->request[it->len] = '\0';
    while ((end = strstr(it->request, "\r\n\r\n")) != NULL) {
        size_t used = (size_t)(end + 4 - it->request);

        if (send(it->fd, PAGE, sizeof PAGE - 1, MSG_NOSIGNAL) != sizeof PAGE - 1)
            return 0;
        it->len -= used;
        memmove(it->request, it->request + used, it->len + 1);
    }
    return it->len < REQUEST_MAX;
}

static void *work(void *unused)
{
    int set = epoll_create1(EPOLL_CLOEXEC), listener = listen_here();
    struct epoll_event events[EVENTS];

    (void)unused;
    watch(set, listener, &address);
    /* A pipe of the kernel, together with sockets. */
    watch(set, stop[0], stop);
    puts("serving");
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(set, events, EVENTS, -1);

        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;

            if (events[i].data.ptr == stop) {
                close(listener);
                close(set);
                return NULL;
            }
            if (events[i].data.ptr == &address) {
                accept_all(set, listener);
            } else if (!serve(connection)) {
                close(connection->fd);
                free(connection);
            }
        }
    }
}

int main(int argc, char **argv)
{
    int count = argc > 2 ? atoi(argv[2]) : 1, signal;
    pthread_t threads[THREADS_MAX];
    sigset_t ends;

    if (argc < 2 || count < 1 || count > THREADS_MAX) {
        fprintf(stderr, "usage: %s PORT [THREADS]\n", argv[0]);
        return 2;
    }
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)atoi(argv[1]));
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    if (pipe(stop) != 0)
        fail("pipe");
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, work, NULL) != 0)
            fail("pthread_create");
    sigwait(&ends, &signal);
    /* Readable in every thread, because no thread reads it. */
    if (write(stop[1], "", 1) != 1)
        fail("write");
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
