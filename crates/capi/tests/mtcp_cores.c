/*
 * What a program written for mTCP takes for granted on many cores, on Linux's TCP over loopback: a
 * listener in each context at one port, with no option that says so, and a closed socket's number
 * that is not another's while events of the same batch may still be about it.
 *
 * Arguments: a configuration file for three contexts, and a port that is free.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE

#include "check.h"

#include <mtcp_api.h>
#include <mtcp_epoll.h>

#define CONNECTIONS 64

static struct sockaddr_in ours;
static pthread_barrier_t all_listen, all_done;
static int accepted[2];

static int bound(mctx_t mctx, int *fd)
{
    *fd = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    CHECK(*fd > 0);
    return mtcp_bind(mctx, *fd, (struct sockaddr *)&ours, sizeof ours);
}

/* No other socket gets the port: not a second one of the context, and not another process's. */
static void is_taken(mctx_t mctx)
{
    int fd, stranger = socket(AF_INET, SOCK_STREAM, 0);

    CHECK(bound(mctx, &fd) == -1 && errno == EADDRINUSE);
    CHECK(mtcp_close(mctx, fd) == 0);
    CHECK(bind(stranger, (struct sockaddr *)&ours, sizeof ours) == -1 && errno == EADDRINUSE);
    CHECK(close(stranger) == 0);
}

static void *serve(void *argument)
{
    int core = *(int *)argument, listener, set, fd;
    struct mtcp_epoll_event event = {.events = MTCP_EPOLLIN};
    mctx_t mctx = mtcp_create_context(core);

    CHECK(mctx != NULL);
    CHECK(bound(mctx, &listener) == 0);
    CHECK(mtcp_setsock_nonblock(mctx, listener) == 0);
    CHECK(mtcp_listen(mctx, listener, CONNECTIONS) == 0);
    is_taken(mctx);
    pthread_barrier_wait(&all_listen);
    is_taken(mctx);
    set = mtcp_epoll_create(mctx, 8);
    CHECK(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_ADD, listener, &event) == 0);
    pthread_barrier_wait(&all_done);
    while (mtcp_epoll_wait(mctx, set, &event, 1, 500) == 1)
        while ((fd = mtcp_accept(mctx, listener, NULL, NULL)) > 0) {
            accepted[core]++;
            CHECK(mtcp_close(mctx, fd) == 0);
        }
    mtcp_destroy_context(mctx);
    return NULL;
}

/* Both contexts serve; Linux selects the context of a connection. */
static void many_listeners(mctx_t mctx)
{
    pthread_t threads[2];
    int cores[2] = {0, 1}, fds[CONNECTIONS], index;

    CHECK(pthread_barrier_init(&all_listen, NULL, 3) == 0);
    CHECK(pthread_barrier_init(&all_done, NULL, 3) == 0);
    for (index = 0; index < 2; index++)
        CHECK(pthread_create(&threads[index], NULL, serve, &cores[index]) == 0);
    pthread_barrier_wait(&all_listen);
    for (index = 0; index < CONNECTIONS; index++) {
        fds[index] = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
        CHECK(mtcp_connect(mctx, fds[index], (struct sockaddr *)&ours, sizeof ours) == 0);
    }
    pthread_barrier_wait(&all_done);
    for (index = 0; index < 2; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    for (index = 0; index < CONNECTIONS; index++)
        CHECK(mtcp_close(mctx, fds[index]) == 0);
    CHECK(accepted[0] + accepted[1] == CONNECTIONS);
    CHECK(accepted[0] > 0 && accepted[1] > 0);
}

/* A port that another process has is in use for every context, and a released one is free. */
static void strangers(mctx_t mctx)
{
    int fd, stranger = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    CHECK(setsockopt(stranger, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(setsockopt(stranger, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
    CHECK(bind(stranger, (struct sockaddr *)&ours, sizeof ours) == 0);
    CHECK(listen(stranger, 1) == 0);
    CHECK(bound(mctx, &fd) == -1 && errno == EADDRINUSE);
    CHECK(close(stranger) == 0);
    /* Linux remembers connections that the contexts ended. */
    CHECK(mtcp_bind(mctx, fd, (struct sockaddr *)&ours, sizeof ours) == 0);
    CHECK(mtcp_listen(mctx, fd, 1) == 0);
    CHECK(mtcp_abort(mctx, fd) == 0);
}

static void numbers(mctx_t mctx)
{
    int first = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0), second, third, ends[2];
    int set = mtcp_epoll_create(mctx, 8);
    struct mtcp_epoll_event event;

    CHECK(mtcp_close(mctx, first) == 0);
    second = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    CHECK(second != first);
    CHECK(mtcp_close(mctx, second) == 0);
    CHECK(mtcp_pipe(mctx, ends) == 0);
    CHECK(ends[0] != first && ends[0] != second && ends[1] != first && ends[1] != second);
    FAILS(mtcp_read(mctx, first, NULL, 0), -1, EBADF);
    CHECK(mtcp_epoll_wait(mctx, set, &event, 1, 0) == 0);
    third = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    CHECK(third == first);
    /* However often: no number is out of what a program has room for by max_concurrency. */
    for (int round = 0; round < 1000; round++) {
        CHECK(mtcp_close(mctx, third) == 0);
        third = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
        CHECK(third > 0 && third < 200);
    }
    CHECK(mtcp_close(mctx, third) == 0 && mtcp_close(mctx, set) == 0);
    CHECK(mtcp_close(mctx, ends[0]) == 0 && mtcp_close(mctx, ends[1]) == 0);
}

int main(int argc, char **argv)
{
    mctx_t mctx;

    CHECK(argc == 3);
    ours = (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_addr = {htonl(INADDR_LOOPBACK)},
                                .sin_port = htons((uint16_t)atoi(argv[2]))};
    CHECK(mtcp_init(argv[1]) == 0);
    mctx = mtcp_create_context(2);
    CHECK(mctx != NULL);
    numbers(mctx);
    many_listeners(mctx);
    strangers(mctx);
    mtcp_destroy_context(mctx);
    mtcp_destroy();
    return 0;
}
