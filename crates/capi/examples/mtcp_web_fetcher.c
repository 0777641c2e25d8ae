/*
 * Fetches a page over and over on mTCP's API: one context, many connections, one request on each.
 *
 *     cc mtcp_web_fetcher.c -o web_fetcher $(pkg-config --cflags --libs megapipe)
 *     ./web_fetcher CONFIG ADDRESS PORT PATH REQUESTS CONNECTIONS
 *
 * Prints the number of responses, their content bytes, and the time. Exits with 1 if
 * a request failed, or if the responses differ in size.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

enum { EVENTS = 1024, HEAD_MAX = 2048, CHUNK = 65536 };

/* A connection, found by its descriptor. */
struct fetch {
    char head[HEAD_MAX];
    size_t head_size;
    int in_body;
    long long expected, received;
};

static mctx_t mctx;
static int set;
static struct sockaddr_in server;
static char request[1024];
static struct fetch **fetches;
static int fetches_max;
static long started, finished, failed, requests;
static long long page_size = -1;

static void watch(int op, int fd, uint32_t events)
{
    struct mtcp_epoll_event event = {.events = events, .data = {.sockid = fd}};

    mtcp_epoll_ctl(mctx, set, op, fd, &event);
}

static int begin(void)
{
    int fd = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);

    if (fd < 0 || fd >= fetches_max) {
        perror("mtcp_socket");
        return -1;
    }
    if ((fetches[fd] = calloc(1, sizeof **fetches)) == NULL)
        return -1;
    mtcp_setsock_nonblock(mctx, fd);
    if (mtcp_connect(mctx, fd, (struct sockaddr *)&server, sizeof server) < 0
        && errno != EINPROGRESS) {
        perror("mtcp_connect");
        return -1;
    }
    started++;
    watch(MTCP_EPOLL_CTL_ADD, fd, MTCP_EPOLLOUT);
    return 0;
}

static void end(int fd, int good)
{
    struct fetch *fetch = fetches[fd];

    if (good && page_size < 0)
        page_size = fetch->received;
    if (!good || fetch->received != page_size)
        failed++;
    finished++;
    free(fetch);
    fetches[fd] = NULL;
    mtcp_close(mctx, fd);
    if (started < requests && begin() < 0)
        failed++;
}

static void ask(int fd)
{
    int error = 0;
    socklen_t size = sizeof error;

    if (mtcp_getsockopt(mctx, fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error != 0
        || mtcp_write(mctx, fd, request, strlen(request)) != (ssize_t)strlen(request)) {
        end(fd, 0);
        return;
    }
    watch(MTCP_EPOLL_CTL_MOD, fd, MTCP_EPOLLIN);
}

/* Parses a complete header: -1 if it is invalid, else the content bytes behind it. */
static ssize_t on_head(struct fetch *fetch)
{
    char *end_of_head, *length;

    fetch->head[fetch->head_size] = 0;
    end_of_head = strstr(fetch->head, "\r\n\r\n");
    if (end_of_head == NULL)
        return fetch->head_size == HEAD_MAX - 1 ? -1 : 0;
    *end_of_head = 0;
    length = strcasestr(fetch->head, "\r\nContent-Length:");
    if (strncmp(fetch->head, "HTTP/1.1 200 ", 13) != 0 || length == NULL)
        return -1;
    fetch->expected = atoll(length + 17);
    fetch->in_body = 1;
    return (ssize_t)(fetch->head_size - (size_t)(end_of_head + 4 - fetch->head));
}

static void on_readable(int fd)
{
    struct fetch *fetch = fetches[fd];
    static char chunk[CHUNK];

    for (;;) {
        ssize_t size;

        if (fetch->in_body) {
            size = mtcp_read(mctx, fd, chunk, sizeof chunk);
        } else {
            size = mtcp_read(mctx, fd, fetch->head + fetch->head_size,
                             HEAD_MAX - 1 - fetch->head_size);
        }
        if (size < 0 && errno == EAGAIN)
            return;
        if (size <= 0) {
            end(fd, 0);
            return;
        }
        if (!fetch->in_body) {
            fetch->head_size += (size_t)size;
            size = on_head(fetch);
            if (size < 0) {
                end(fd, 0);
                return;
            }
        }
        fetch->received += fetch->in_body ? size : 0;
        if (fetch->in_body && fetch->received >= fetch->expected) {
            end(fd, fetch->received == fetch->expected);
            return;
        }
    }
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int run(long connections)
{
    static struct mtcp_epoll_event events[EVENTS];

    while (started < connections && started < requests)
        if (begin() < 0)
            return -1;
    while (finished < requests && failed == 0) {
        int count = mtcp_epoll_wait(mctx, set, events, EVENTS, 10000);

        if (count <= 0) {
            fprintf(stderr, "mtcp_epoll_wait: %s\n", count < 0 ? strerror(errno) : "timed out");
            return -1;
        }
        for (int index = 0; index < count; index++) {
            int fd = events[index].data.sockid;

            if (fetches[fd] == NULL)
                continue;
            if (events[index].events & MTCP_EPOLLOUT)
                ask(fd);
            else
                on_readable(fd);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct mtcp_conf conf;
    double began;
    int broken;

    if (argc != 7) {
        fprintf(stderr, "usage: %s CONFIG ADDRESS PORT PATH REQUESTS CONNECTIONS\n", argv[0]);
        return 2;
    }
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)atoi(argv[3]));
    if (inet_pton(AF_INET, argv[2], &server.sin_addr) != 1) {
        fprintf(stderr, "%s is not an address\n", argv[2]);
        return 2;
    }
    snprintf(request, sizeof request,
             "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", argv[4], argv[2]);
    requests = atol(argv[5]);
    if (mtcp_init(argv[1]) < 0)
        return 1;
    mtcp_getconf(&conf);
    fetches_max = conf.max_concurrency + 1024;
    fetches = calloc((size_t)fetches_max, sizeof(void *));
    mctx = mtcp_create_context(0);
    set = mctx ? mtcp_epoll_create(mctx, EVENTS) : -1;
    if (fetches == NULL || mctx == NULL || set < 0)
        return 1;
    mtcp_init_rss(mctx, INADDR_ANY, 1, server.sin_addr.s_addr, server.sin_port);
    began = seconds();
    broken = run(atol(argv[6]));
    printf("%ld responses of %lld bytes in %.3f s, %ld failed\n", finished - failed, page_size,
           seconds() - began, failed);
    mtcp_destroy_context(mctx);
    mtcp_destroy();
    return broken < 0 || failed > 0;
}
