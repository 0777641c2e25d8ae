/*
 * mTCP's API, used wrongly: every call on what is closed, of the wrong kind, unowned or null
 * answers as Linux does, and nothing of it harms what else the context does.
 *
 * Arguments: a configuration file, and an address of ours.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE

#include "check.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

static mctx_t mctx;
static struct in_addr ours;
static char byte;
/* A set that is there from the beginning to the end. */
static int set;

static struct sockaddr_in at(int port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr = ours, .sin_port = htons((uint16_t)port)};
}

static int tcp(void)
{
    int fd = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);

    CHECK(fd > 0);
    return fd;
}

/* A listener, with its address. */
static int listener(struct sockaddr_in *address)
{
    int fd = tcp();
    socklen_t size = sizeof *address;

    *address = at(0);
    CHECK(mtcp_bind(mctx, fd, (struct sockaddr *)address, sizeof *address) == 0);
    CHECK(mtcp_listen(mctx, fd, 8) == 0);
    CHECK(mtcp_getsockname(mctx, fd, (struct sockaddr *)address, &size) == 0);
    return fd;
}

/* What every call says to a descriptor that is none. */
static void no_descriptor(int fd)
{
    struct sockaddr_in address = at(1);
    struct sockaddr *generic = (struct sockaddr *)&address;
    socklen_t size = sizeof address;
    struct iovec part = {&byte, 1};
    struct mtcp_epoll_event event = {.events = MTCP_EPOLLIN};
    int on = 1;
    socklen_t room = sizeof on;

    FAILS(mtcp_bind(mctx, fd, generic, size), -1, EBADF);
    FAILS(mtcp_listen(mctx, fd, 1), -1, EBADF);
    FAILS(mtcp_accept(mctx, fd, NULL, NULL), -1, EBADF);
    FAILS(mtcp_accept(mctx, fd, generic, &size), -1, EBADF);
    FAILS(mtcp_connect(mctx, fd, generic, size), -1, EBADF);
    FAILS(mtcp_close(mctx, fd), -1, EBADF);
    FAILS(mtcp_abort(mctx, fd), -1, EBADF);
    FAILS(mtcp_shutdown(mctx, fd, SHUT_WR), -1, EBADF);
    FAILS(mtcp_shutdown(mctx, fd, 7), -1, EBADF);
    FAILS(mtcp_getsockname(mctx, fd, generic, &size), -1, EBADF);
    FAILS(mtcp_getpeername(mctx, fd, generic, &size), -1, EBADF);
    FAILS(mtcp_read(mctx, fd, &byte, 1), -1, EBADF);
    FAILS(mtcp_recv(mctx, fd, &byte, 1, 0), -1, EBADF);
    FAILS(mtcp_readv(mctx, fd, &part, 1), -1, EBADF);
    FAILS(mtcp_write(mctx, fd, &byte, 1), -1, EBADF);
    FAILS(mtcp_writev(mctx, fd, &part, 1), -1, EBADF);
    FAILS(mtcp_setsock_nonblock(mctx, fd), -1, EBADF);
    FAILS(mtcp_socket_ioctl(mctx, fd, FIONREAD, &on), -1, EBADF);
    FAILS(mtcp_getsockopt(mctx, fd, SOL_SOCKET, SO_ERROR, &on, &room), -1, EBADF);
    FAILS(mtcp_setsockopt(mctx, fd, SOL_SOCKET, SO_KEEPALIVE, &on, room), -1, EBADF);
    FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_ADD, fd, &event), -1, EBADF);
    FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_MOD, fd, &event), -1, EBADF);
    FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_DEL, fd, NULL), -1, EBADF);
    FAILS(mtcp_epoll_ctl(mctx, fd, MTCP_EPOLL_CTL_ADD, set, &event), -1, EBADF);
    FAILS(mtcp_epoll_wait(mctx, fd, &event, 1, 0), -1, EBADF);
}

static void no_descriptors(void)
{
    int closed = tcp(), ends[2];

    no_descriptor(-1);
    no_descriptor(0);
    no_descriptor(INT_MAX);
    no_descriptor(INT_MIN);
    CHECK(mtcp_close(mctx, closed) == 0);
    no_descriptor(closed);
    CHECK(mtcp_pipe(mctx, ends) == 0);
    CHECK(mtcp_close(mctx, ends[0]) == 0);
    no_descriptor(ends[0]);
    FAILS(mtcp_write(mctx, ends[1], &byte, 1), -1, EPIPE);
    CHECK(mtcp_close(mctx, ends[1]) == 0);
    closed = mtcp_epoll_create1(mctx, 0);
    CHECK(mtcp_close(mctx, closed) == 0);
    no_descriptor(closed);
}

/* Calls for sockets on pipes and sets, and the other way. */
static void wrong_kinds(void)
{
    struct sockaddr_in address = at(1);
    struct sockaddr *generic = (struct sockaddr *)&address;
    socklen_t size = sizeof address;
    struct mtcp_epoll_event event = {.events = MTCP_EPOLLIN};
    int ends[2], socket = tcp(), on = 1, index;
    socklen_t room = sizeof on;

    CHECK(mtcp_pipe(mctx, ends) == 0);
    for (index = 0; index < 3; index++) {
        int fd = index == 0 ? ends[0] : index == 1 ? ends[1] : set;

        FAILS(mtcp_bind(mctx, fd, generic, size), -1, ENOTSOCK);
        FAILS(mtcp_listen(mctx, fd, 1), -1, ENOTSOCK);
        FAILS(mtcp_shutdown(mctx, fd, SHUT_RDWR), -1, ENOTSOCK);
        FAILS(mtcp_accept(mctx, fd, NULL, NULL), -1, ENOTSOCK);
        FAILS(mtcp_connect(mctx, fd, generic, size), -1, ENOTSOCK);
        FAILS(mtcp_getsockname(mctx, fd, generic, &size), -1, ENOTSOCK);
        FAILS(mtcp_getpeername(mctx, fd, generic, &size), -1, ENOTSOCK);
        FAILS(mtcp_recv(mctx, fd, &byte, 1, 0), -1, ENOTSOCK);
        FAILS(mtcp_abort(mctx, fd), -1, ENOTSOCK);
        FAILS(mtcp_getsockopt(mctx, fd, SOL_SOCKET, SO_ERROR, &on, &room), -1, ENOTSOCK);
        FAILS(mtcp_setsockopt(mctx, fd, SOL_SOCKET, SO_KEEPALIVE, &on, room), -1, ENOTSOCK);
    }
    FAILS(mtcp_write(mctx, ends[0], &byte, 1), -1, EBADF);
    FAILS(mtcp_read(mctx, ends[1], &byte, 1), -1, EBADF);
    FAILS(mtcp_read(mctx, set, &byte, 1), -1, EINVAL);
    FAILS(mtcp_write(mctx, set, &byte, 1), -1, EINVAL);
    FAILS(mtcp_epoll_wait(mctx, socket, &event, 1, 0), -1, EINVAL);
    FAILS(mtcp_epoll_wait(mctx, ends[0], &event, 1, 0), -1, EINVAL);
    FAILS(mtcp_epoll_ctl(mctx, socket, MTCP_EPOLL_CTL_ADD, ends[0], &event), -1, EINVAL);
    FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_ADD, set, &event), -1, EINVAL);
    FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_MOD, socket, &event), -1, ENOENT);
    FAILS(mtcp_epoll_ctl(mctx, set, 0, socket, &event), -1, EINVAL);
    FAILS(mtcp_epoll_wait(mctx, set, &event, -1, 0), -1, EINVAL);
    FAILS(mtcp_epoll_wait(mctx, set, &event, INT_MIN, 0), -1, EINVAL);
    CHECK(mtcp_close(mctx, ends[0]) == 0 && mtcp_close(mctx, ends[1]) == 0);
    CHECK(mtcp_close(mctx, socket) == 0);
}

/* Sockets in states in which a call makes no sense. */
static void wrong_states(void)
{
    struct sockaddr_in address, other = at(0);
    struct sockaddr *generic = (struct sockaddr *)&address;
    socklen_t size = sizeof address;
    int bound = listener(&address), fresh = tcp(), second = tcp();

    FAILS(mtcp_accept(mctx, fresh, NULL, NULL), -1, EINVAL);
    FAILS(mtcp_read(mctx, fresh, &byte, 1), -1, ENOTCONN);
    FAILS(mtcp_write(mctx, fresh, &byte, 1), -1, EPIPE);
    FAILS(mtcp_getpeername(mctx, fresh, (struct sockaddr *)&other, &size), -1, ENOTCONN);
    FAILS(mtcp_read(mctx, bound, &byte, 1), -1, ENOTCONN);
    FAILS(mtcp_write(mctx, bound, &byte, 1), -1, EPIPE);
    FAILS(mtcp_connect(mctx, bound, generic, sizeof address), -1, EISCONN);
    FAILS(mtcp_bind(mctx, bound, generic, sizeof address), -1, EINVAL);
    FAILS(mtcp_bind(mctx, second, generic, sizeof address), -1, EADDRINUSE);
    FAILS(mtcp_bind(mctx, second, generic, 4), -1, EINVAL);
    FAILS(mtcp_bind(mctx, second, generic, 0), -1, EINVAL);
    FAILS(mtcp_connect(mctx, second, generic, 4), -1, EINVAL);
    FAILS(mtcp_connect(mctx, second, generic, UINT_MAX), -1, EINVAL);
    FAILS(mtcp_connect(mctx, second, NULL, sizeof address), -1, EFAULT);
    address.sin_family = AF_UNIX;
    FAILS(mtcp_connect(mctx, second, generic, sizeof address), -1, EAFNOSUPPORT);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(0xc6336401);
    FAILS(mtcp_bind(mctx, second, generic, sizeof address), -1, EADDRNOTAVAIL);
    CHECK(mtcp_setsock_nonblock(mctx, bound) == 0);
    FAILS(mtcp_accept(mctx, bound, NULL, NULL), -1, EAGAIN);
    CHECK(mtcp_close(mctx, bound) == 0);
    FAILS(mtcp_accept(mctx, bound, NULL, NULL), -1, EBADF);
    CHECK(mtcp_abort(mctx, fresh) == 0 && mtcp_close(mctx, second) == 0);
}

/* Lengths and pointers that cannot be. */
static void wrong_memory(void)
{
    int ends[2], on = 1;
    char text[8];
    struct iovec nowhere[2] = {{NULL, 4}, {text, 4}}, empty = {NULL, 0};
    struct iovec endless[2] = {{text, SIZE_MAX}, {text, 4}};
    socklen_t room = 0;
    int socket = tcp();

    CHECK(mtcp_pipe(mctx, ends) == 0);
    FAILS(mtcp_read(mctx, ends[0], NULL, 4), -1, EFAULT);
    FAILS(mtcp_write(mctx, ends[1], NULL, 4), -1, EFAULT);
    FAILS(mtcp_writev(mctx, ends[1], nowhere, 2), -1, EFAULT);
    FAILS(mtcp_writev(mctx, ends[1], endless, 2), -1, EINVAL);
    FAILS(mtcp_writev(mctx, ends[1], endless, INT_MIN), -1, EINVAL);
    CHECK(mtcp_writev(mctx, ends[1], &empty, 1) == 0);
    CHECK(mtcp_writev(mctx, ends[1], NULL, 0) == 0);
    CHECK(mtcp_write(mctx, ends[1], NULL, 0) == 0);
    CHECK(mtcp_write(mctx, ends[1], "abcdefgh", 8) == 8);
    FAILS(mtcp_readv(mctx, ends[0], nowhere, 2), -1, EFAULT);
    FAILS(mtcp_readv(mctx, ends[0], endless, 2), -1, EINVAL);
    /* What is asked for may be more than fits, as long as what comes does not. */
    CHECK(mtcp_read(mctx, ends[0], text, SIZE_MAX) == 8 && memcmp(text, "abcdefgh", 8) == 0);
    FAILS(mtcp_getsockopt(mctx, socket, SOL_SOCKET, SO_ERROR, NULL, &room), -1, EFAULT);
    FAILS(mtcp_getsockopt(mctx, socket, SOL_SOCKET, SO_ERROR, &on, NULL), -1, EFAULT);
    FAILS(mtcp_setsockopt(mctx, socket, SOL_SOCKET, SO_KEEPALIVE, NULL, sizeof on), -1, EFAULT);
    FAILS(mtcp_setsockopt(mctx, socket, SOL_SOCKET, SO_KEEPALIVE, &on, 1), -1, EINVAL);
    FAILS(mtcp_setsockopt(mctx, socket, SOL_SOCKET, 9999, &on, sizeof on), -1, ENOPROTOOPT);
    FAILS(mtcp_getsockopt(mctx, socket, IPPROTO_TCP, 9999, &on, &(socklen_t){4}), -1,
          ENOPROTOOPT);
    FAILS(mtcp_socket_ioctl(mctx, socket, FIONREAD, NULL), -1, EFAULT);
    FAILS(mtcp_socket_ioctl(mctx, socket, 0x7fffffff, &on), -1, ENOTTY);
    CHECK(mtcp_close(mctx, ends[0]) == 0 && mtcp_close(mctx, ends[1]) == 0);
    CHECK(mtcp_close(mctx, socket) == 0);
}

static void wrong_sockets(void)
{
    FAILS(mtcp_socket(mctx, AF_INET, SOCK_STREAM, 200), -1, EPROTONOSUPPORT);
    FAILS(mtcp_socket(mctx, AF_INET, SOCK_RAW, 0), -1, ESOCKTNOSUPPORT);
    FAILS(mtcp_socket(mctx, AF_INET, 99, 0), -1, EINVAL);
    FAILS(mtcp_socket(mctx, -1, SOCK_STREAM, 0), -1, EAFNOSUPPORT);
    FAILS(mtcp_init_rss(mctx, ours.s_addr, -1, ours.s_addr, htons(80)), -1, EINVAL);
    FAILS(mtcp_init_rss(mctx, ours.s_addr, 1, ours.s_addr, 1 << 20), -1, EINVAL);
    FAILS(mtcp_init_rss(NULL, ours.s_addr, 1, ours.s_addr, htons(80)), -1, EFAULT);
    CHECK(mtcp_register_signal(0, SIG_IGN) == SIG_ERR && errno == EINVAL);
    CHECK(mtcp_register_signal(SIGKILL, SIG_IGN) == SIG_ERR && errno == EINVAL);
    CHECK(mtcp_register_signal(65, SIG_IGN) == SIG_ERR && errno == EINVAL);
    CHECK(mtcp_register_signal(INT_MAX, SIG_IGN) == SIG_ERR && errno == EINVAL);
}

/* A socket that is closed while a set watches it is watched no more; one whose set is closed goes
   on. */
static void closed_in_sets(void)
{
    struct mtcp_epoll_event event = {.events = MTCP_EPOLLIN}, got[4];
    int ends[2], inner = mtcp_epoll_create(mctx, 4), outer = mtcp_epoll_create(mctx, 4);

    CHECK(mtcp_pipe(mctx, ends) == 0);
    CHECK(mtcp_epoll_ctl(mctx, inner, MTCP_EPOLL_CTL_ADD, ends[0], &event) == 0);
    CHECK(mtcp_epoll_ctl(mctx, outer, MTCP_EPOLL_CTL_ADD, inner, &event) == 0);
    FAILS(mtcp_epoll_ctl(mctx, inner, MTCP_EPOLL_CTL_ADD, outer, &event), -1, ELOOP);
    CHECK(mtcp_write(mctx, ends[1], "x", 1) == 1);
    CHECK(mtcp_epoll_wait(mctx, outer, got, 4, 1000) == 1);
    CHECK(mtcp_close(mctx, ends[0]) == 0);
    CHECK(mtcp_epoll_wait(mctx, inner, got, 4, 0) == 0);
    CHECK(mtcp_epoll_wait(mctx, outer, got, 4, 0) == 0);
    CHECK(mtcp_close(mctx, inner) == 0);
    FAILS(mtcp_epoll_ctl(mctx, outer, MTCP_EPOLL_CTL_DEL, inner, NULL), -1, EBADF);
    CHECK(mtcp_epoll_wait(mctx, outer, got, 4, 0) == 0);
    CHECK(mtcp_close(mctx, ends[1]) == 0 && mtcp_close(mctx, outer) == 0);
}

/* Descriptors run out, and come back. */
static void all_descriptors(void)
{
    static int taken[1 << 16];
    int count = 0, round;

    for (round = 0; round < 2; round++) {
        for (count = 0; count < 1 << 16; count++) {
            taken[count] = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
            if (taken[count] < 0)
                break;
        }
        CHECK(count >= 64 && count < 1 << 16);
        CHECK(errno == EMFILE || errno == ENFILE || errno == ENOBUFS);
        CHECK(mtcp_pipe(mctx, &taken[count]) == -1);
        while (count > 0)
            CHECK(mtcp_close(mctx, taken[--count]) == 0);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 3 && inet_aton(argv[2], &ours) != 0);
    /* Twice is once. */
    CHECK(mtcp_init(argv[1]) == 0 && mtcp_init(argv[1]) == 0);
    mctx = mtcp_create_context(0);
    CHECK(mctx != NULL);
    set = mtcp_epoll_create(mctx, 1);
    CHECK(set > 0);
    no_descriptors();
    wrong_kinds();
    wrong_states();
    wrong_memory();
    wrong_sockets();
    closed_in_sets();
    all_descriptors();
    mtcp_destroy_context(mctx);
    no_descriptor(set);
    mtcp_destroy_context(mctx);
    CHECK(errno == EBADF);
    mtcp_destroy_context(NULL);
    mtcp_destroy();
    mtcp_destroy();
    return 0;
}
