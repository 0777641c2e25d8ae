/*
 * mTCP's API, on Linux's TCP over loopback: values and layouts, what each call does, and what it
 * answers to nonsense. The argument is a directory of its own, for configuration files.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE

#include "check.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

#define HOLDS(what) _Static_assert(what, #what)

HOLDS(sizeof(struct mtcp_conf) == 28);
HOLDS(sizeof(struct mtcp_epoll_event) == 16);
HOLDS(offsetof(struct mtcp_epoll_event, data) == 8);
HOLDS((uint32_t)MTCP_EPOLLIN == EPOLLIN && (uint32_t)MTCP_EPOLLPRI == EPOLLPRI);
HOLDS((uint32_t)MTCP_EPOLLOUT == EPOLLOUT && (uint32_t)MTCP_EPOLLERR == EPOLLERR);
HOLDS((uint32_t)MTCP_EPOLLHUP == EPOLLHUP && (uint32_t)MTCP_EPOLLRDHUP == EPOLLRDHUP);
HOLDS((uint32_t)MTCP_EPOLLONESHOT == EPOLLONESHOT && (uint32_t)MTCP_EPOLLET == EPOLLET);
HOLDS((int)MTCP_EPOLL_CTL_ADD == EPOLL_CTL_ADD && MTCP_EPOLL_CTL_DEL == EPOLL_CTL_DEL);
HOLDS(MTCP_EPOLL_CTL_MOD == EPOLL_CTL_MOD);
HOLDS((int)MTCP_SOCK_STREAM == (int)SOCK_STREAM && MTCP_SOCK_PIPE == 5);

static const char *directory;
static mctx_t mctx;

static const char *conf_file(const char *text)
{
    static char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/mtcp.conf", directory);
    file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    return path;
}

static void before_init(void)
{
    struct mtcp_conf conf;

    errno = 0;
    CHECK(mtcp_create_context(0) == NULL && errno == ENODEV);
    FAILS(mtcp_init(NULL), -1, EFAULT);
    FAILS(mtcp_init("/nonexistent/mtcp.conf"), -1, EINVAL);
    FAILS(mtcp_init(conf_file("turbo = on\n")), -1, EINVAL);
    CHECK(strstr(mp_last_error(), "line 1: there is no key \"turbo\"") != NULL);
    FAILS(mtcp_init(conf_file("max_concurrency = 10\n")), -1, EINVAL);
    FAILS(mtcp_getconf(NULL), -1, EFAULT);
    FAILS(mtcp_setconf(NULL), -1, EFAULT);
    CHECK(mtcp_getconf(&conf) == 0);
    CHECK(conf.num_cores >= 1 && conf.rcvbuf_size == 8192 && conf.tcp_timeout == 30);
}

static void changed_numbers(void)
{
    struct mtcp_conf conf = {.num_cores = 3};

    CHECK(mtcp_setconf(&conf) == 0);
    CHECK(mtcp_init(conf_file("io = kernel # Linux\nmax_concurrency = 2000\nrcvbuf = 4096\n"
                              "num_mem_ch = 4\n")) == 0);
    CHECK(mtcp_getconf(&conf) == 0);
    CHECK(conf.num_cores == 3 && conf.max_concurrency == 2000);
    CHECK(conf.rcvbuf_size == 4096 && conf.sndbuf_size == 4096);
    conf = (struct mtcp_conf){.max_concurrency = -1};
    FAILS(mtcp_setconf(&conf), -1, EINVAL);
    CHECK(strstr(mp_last_error(), "max_concurrency = -1: must be 0, for no change, or") != NULL);
    FAILS(mtcp_core_affinitize(-1), -1, EINVAL);
    CHECK(mtcp_core_affinitize(0) == 0);
    errno = 0;
    CHECK(mtcp_create_context(3) == NULL && errno == EINVAL);
    CHECK(mtcp_create_context(-1) == NULL && errno == EINVAL);
    mctx = mtcp_create_context(1);
    CHECK(mctx != NULL && mctx->cpu == 1);
    errno = 0;
    CHECK(mtcp_create_context(1) == NULL && errno == EEXIST);
}

static void *from_another_thread(void *argument)
{
    mctx_t mine;

    (void)argument;
    FAILS(mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0), -1, EPERM);
    mtcp_destroy_context(mctx);
    CHECK(errno == EPERM);
    mine = mtcp_create_context(2);
    CHECK(mine != NULL && mtcp_socket(mine, AF_INET, SOCK_STREAM, 0) > 0);
    mtcp_destroy_context(mine);
    FAILS(mtcp_socket(mine, AF_INET, SOCK_STREAM, 0), -1, EBADF);
    return NULL;
}

static void misuse(void)
{
    pthread_t thread;
    struct mtcp_epoll_event event = {.events = MTCP_EPOLLIN};
    char byte;
    int set;

    FAILS(mtcp_socket(NULL, AF_INET, SOCK_STREAM, 0), -1, EFAULT);
    FAILS(mtcp_socket((mctx_t)&byte, AF_INET, SOCK_STREAM, 0), -1, EBADF);
    FAILS(mtcp_socket(mctx, AF_PACKET, SOCK_STREAM, 0), -1, EAFNOSUPPORT);
    FAILS(mtcp_read(mctx, 99, &byte, 1), -1, EBADF);
    FAILS(mtcp_read(mctx, 99, NULL, 1), -1, EFAULT);
    FAILS(mtcp_write(mctx, 99, NULL, 1), -1, EFAULT);
    FAILS(mtcp_readv(mctx, 99, NULL, 1), -1, EFAULT);
    FAILS(mtcp_readv(mctx, 99, NULL, -1), -1, EINVAL);
    FAILS(mtcp_writev(mctx, 99, NULL, 2000), -1, EINVAL);
    FAILS(mtcp_bind(mctx, 99, NULL, 0), -1, EFAULT);
    FAILS(mtcp_getsockname(mctx, 99, NULL, NULL), -1, EFAULT);
    FAILS(mtcp_close(mctx, 99), -1, EBADF);
    FAILS(mtcp_abort(mctx, 99), -1, EBADF);
    FAILS(mtcp_setsock_nonblock(mctx, 99), -1, EBADF);
    FAILS(mtcp_pipe(mctx, NULL), -1, EFAULT);
    FAILS(mtcp_init_rss(mctx, 0, 0, 0, 0), -1, EINVAL);
    FAILS(mtcp_epoll_create(mctx, 0), -1, EINVAL);
    FAILS(mtcp_epoll_create1(mctx, 1), -1, EINVAL);
    set = mtcp_epoll_create1(mctx, 0);
    CHECK(set > 0);
    FAILS(mtcp_epoll_ctl(mctx, set, 7, 99, &event), -1, EINVAL);
    FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_ADD, 99, NULL), -1, EFAULT);
    FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_ADD, 99, &event), -1, EBADF);
    FAILS(mtcp_epoll_wait(mctx, set, NULL, 1, 0), -1, EFAULT);
    FAILS(mtcp_epoll_wait(mctx, set, &event, 0, 0), -1, EINVAL);
    CHECK(mtcp_close(mctx, set) == 0);
    CHECK(pthread_create(&thread, NULL, from_another_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(strcmp(EventToString(MTCP_EPOLLIN), "IN") == 0);
    CHECK(strcmp(EventToString(MTCP_EPOLLRDHUP), "RDHUP") == 0);
    CHECK(EventToString(MTCP_EPOLLIN | MTCP_EPOLLOUT) == NULL);
}

/* A listener on a free port, and a connection of the same context through it. */
static void connected(int *listener, int *client, int *served)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;

    *listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    CHECK(*listener > 0);
    CHECK(mtcp_bind(mctx, *listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(mtcp_listen(mctx, *listener, 16) == 0);
    CHECK(mtcp_getsockname(mctx, *listener, (struct sockaddr *)&address, &size) == 0);
    CHECK(size == sizeof address && address.sin_port != 0);
    *client = mtcp_socket(mctx, AF_INET, MTCP_SOCK_STREAM, 0);
    CHECK(mtcp_connect(mctx, *client, (struct sockaddr *)&address, sizeof address) == 0);
    *served = mtcp_accept(mctx, *listener, (struct sockaddr *)&address, &size);
    CHECK(*served > 0 && address.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    CHECK(mtcp_getpeername(mctx, *client, (struct sockaddr *)&address, &size) == 0);
}

static void streams(void)
{
    char in[3][4], text[] = "abcdefghij";
    struct iovec out[2] = {{text, 4}, {text + 4, 6}};
    struct iovec into[3] = {{in[0], 4}, {in[1], 4}, {in[2], 4}};
    int listener, client, served, count, on = 1;
    socklen_t size = sizeof on;

    connected(&listener, &client, &served);
    CHECK(mtcp_writev(mctx, client, out, 2) == 10);
    CHECK(mtcp_recv(mctx, served, in[0], 2, MSG_PEEK | MSG_WAITALL) == 2);
    CHECK(memcmp(in[0], "ab", 2) == 0);
    CHECK(mtcp_socket_ioctl(mctx, served, FIONREAD, &count) == 0 && count == 10);
    CHECK(mtcp_readv(mctx, served, into, 3) == 10);
    CHECK(memcmp(in, text, 10) == 0);
    CHECK(mtcp_setsockopt(mctx, client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    on = 0;
    CHECK(mtcp_getsockopt(mctx, client, IPPROTO_TCP, TCP_NODELAY, &on, &size) == 0 && on != 0);
    CHECK(mtcp_setsock_nonblock(mctx, served) == 0);
    FAILS(mtcp_read(mctx, served, in[0], 1), -1, EAGAIN);
    FAILS(mtcp_shutdown(mctx, client, 3), -1, EINVAL);
    CHECK(mtcp_shutdown(mctx, client, SHUT_WR) == 0);
    while ((count = (int)mtcp_read(mctx, served, in[0], 1)) < 0)
        CHECK(errno == EAGAIN);
    CHECK(count == 0);
    /* The other direction is open still. */
    CHECK(mtcp_write(mctx, served, "answer", 6) == 6);
    CHECK(mtcp_read(mctx, client, in[0], 6) == 6 && memcmp(in, "answer", 6) == 0);
    FAILS(mtcp_write(mctx, client, "x", 1), -1, EPIPE);
    CHECK(mtcp_close(mctx, client) == 0);
    CHECK(mtcp_close(mctx, served) == 0 && mtcp_close(mctx, listener) == 0);
}

static void resets(void)
{
    int listener, client, served;
    char byte;

    connected(&listener, &client, &served);
    CHECK(mtcp_abort(mctx, client) == 0);
    FAILS(mtcp_read(mctx, served, &byte, 1), -1, ECONNRESET);
    FAILS(mtcp_abort(mctx, client), -1, EBADF);
    CHECK(mtcp_close(mctx, served) == 0 && mtcp_close(mctx, listener) == 0);
}

static void sets(void)
{
    struct mtcp_epoll_event event = {.events = MTCP_EPOLLIN}, got[8];
    int listener, client, served, set = mtcp_epoll_create(mctx, 8);
    char byte;

    connected(&listener, &client, &served);
    event.data.u64 = 0x123456789abcdef0;
    CHECK(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_ADD, served, &event) == 0);
    FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_ADD, served, &event), -1, EEXIST);
    CHECK(mtcp_epoll_wait(mctx, set, got, 8, 0) == 0);
    CHECK(mtcp_epoll_wait(mctx, set, got, 8, 20) == 0);
    CHECK(mtcp_write(mctx, client, "x", 1) == 1);
    CHECK(mtcp_epoll_wait(mctx, set, got, 8, 5000) == 1);
    CHECK(got[0].events == MTCP_EPOLLIN && got[0].data.u64 == 0x123456789abcdef0);
    CHECK(mtcp_read(mctx, served, &byte, 1) == 1 && byte == 'x');
    event.events = MTCP_EPOLLOUT | MTCP_EPOLLONESHOT;
    CHECK(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_MOD, served, &event) == 0);
    CHECK(mtcp_epoll_wait(mctx, set, got, 8, 5000) == 1 && got[0].events == MTCP_EPOLLOUT);
    CHECK(mtcp_epoll_wait(mctx, set, got, 8, 0) == 0);
    CHECK(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_DEL, served, NULL) == 0);
    FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_DEL, served, NULL), -1, ENOENT);
    CHECK(mtcp_close(mctx, client) == 0 && mtcp_close(mctx, served) == 0);
    CHECK(mtcp_close(mctx, listener) == 0 && mtcp_close(mctx, set) == 0);
}

static void pipes(void)
{
    struct mtcp_epoll_event event = {.events = MTCP_EPOLLIN}, got;
    int ends[2], set = mtcp_epoll_create(mctx, 8);
    char text[8];

    CHECK(mtcp_pipe(mctx, ends) == 0);
    event.data.sockid = ends[0];
    CHECK(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_ADD, ends[0], &event) == 0);
    CHECK(mtcp_epoll_wait(mctx, set, &got, 1, 0) == 0);
    CHECK(mtcp_write(mctx, ends[1], "pipe", 4) == 4);
    CHECK(mtcp_epoll_wait(mctx, set, &got, 1, 5000) == 1 && got.data.sockid == ends[0]);
    CHECK(mtcp_read(mctx, ends[0], text, sizeof text) == 4 && memcmp(text, "pipe", 4) == 0);
    CHECK(mtcp_close(mctx, ends[1]) == 0);
    CHECK(mtcp_read(mctx, ends[0], text, sizeof text) == 0);
    CHECK(mtcp_close(mctx, ends[0]) == 0 && mtcp_close(mctx, set) == 0);
}

static volatile sig_atomic_t signals;

static void on_signal(int signal)
{
    CHECK(signal == SIGUSR1);
    signals = signals + 1;
}

static void *signal_soon(void *argument)
{
    usleep(50000);
    kill(getpid(), SIGUSR1);
    return argument;
}

static void interruptions(void)
{
    int set = mtcp_epoll_create(mctx, 8);
    struct mtcp_epoll_event got;
    pthread_t thread;

    CHECK(mtcp_register_signal(-1, on_signal) == SIG_ERR && errno == EINVAL);
    CHECK(mtcp_register_signal(SIGUSR1, on_signal) == SIG_DFL);
    CHECK(mtcp_register_signal(SIGUSR1, on_signal) == on_signal);
    CHECK(pthread_create(&thread, NULL, signal_soon, NULL) == 0);
    FAILS(mtcp_epoll_wait(mctx, set, &got, 1, -1), -1, EINTR);
    CHECK(signals == 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(mtcp_epoll_wait(mctx, set, &got, 1, 0) == 0);
    CHECK(mtcp_register_signal(SIGUSR1, SIG_IGN) == on_signal);
    raise(SIGUSR1);
    CHECK(signals == 1);
    CHECK(mtcp_close(mctx, set) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    directory = argv[1];
    before_init();
    changed_numbers();
    misuse();
    streams();
    resets();
    sets();
    pipes();
    interruptions();
    mtcp_destroy_context(mctx);
    FAILS(mtcp_close(mctx, 1), -1, EBADF);
    mtcp_destroy();
    return 0;
}
