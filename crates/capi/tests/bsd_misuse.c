/*
 * BSD sockets of megapipe_sockets.h where they differ from Linux: sharing, options, end,
 * fork, and error reports. The kernel's TCP, loopback.
 *
 *     bsd_misuse shared | thread | select | exit PORT
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "check.h"

#include <sys/ioctl.h>
#include <sys/resource.h>

#include <megapipe_sockets.h>

static void *volatile null = NULL;
static char byte;

static int tcp(void)
{
    int fd = mps_socket(AF_INET, SOCK_STREAM, 0);

    CHECK(fd >= 0);
    return fd;
}

/* -- what is asked of it */

static void pointers_and_numbers_that_are_none(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    int fd = tcp(), set = mps_epoll_create1(0);
    struct pollfd asked = {.fd = fd};

    FAILS(mps_read(fd, null, 1), -1, EFAULT);
    CHECK(strcmp(mp_last_error(), "mps_read: buf is a null pointer") == 0);
    FAILS(mps_epoll_wait(set, null, 1, 0), -1, EFAULT);
    FAILS(mps_recvmsg(fd, null, 0), -1, EFAULT);
    FAILS(mps_poll(null, 1, 0), -1, EFAULT);
    FAILS(mps_poll(&asked, (nfds_t)1 << 40, 0), -1, EINVAL);
    FAILS(mps_ioctl(fd, FIONREAD, null), -1, EFAULT);
    FAILS(mps_ioctl(fd, 0x8915, 17), -1, ENOTTY);
    FAILS(mps_epoll_create1(77), -1, EINVAL);
    FAILS(mps_accept4(fd, NULL, NULL, 77), -1, EINVAL);
    FAILS(mps_dup2(fd, 0), -1, EBADF);
    FAILS(mps_dup3(fd, fd, 0), -1, EINVAL);
    FAILS(mps_close(INT32_MAX), -1, EBADF);
    FAILS(mps_epoll_ctl(set, EPOLL_CTL_ADD, INT32_MAX, &event), -1, EBADF);
    /* The process's own go to the C library, which tells no reason. */
    errno = 0;
    CHECK(mps_read(-1, &byte, 1) == -1 && errno == EBADF);
    CHECK(mps_dup2(-1, fd) == -1 && errno == EBADF);
    errno = 77;
    CHECK(mps_close(fd) == 0 && mps_close(set) == 0 && errno == 77);
}

static void other_families_are_the_kernels(void)
{
    int fd = mps_socket(AF_UNIX, SOCK_STREAM, 0), ours = tcp();

    CHECK(fd >= 0 && fd < 1 << 20);
    CHECK(mps_close(fd) == 0);
    CHECK(ours >= 1 << 30);
    CHECK(mps_close(ours) == 0);
}

static volatile sig_atomic_t inside_errno;
static int alarmed = -1;

static void on_alarm(int signal)
{
    (void)signal;
    errno = 0;
    /* Of ours while a call is inside: refused. Of the process: as ever. */
    CHECK(mps_socket(AF_INET, SOCK_STREAM, 0) == -1);
    inside_errno = errno;
    CHECK(mps_write(alarmed, "x", 1) == 1);
}

static void a_handler_may_write_to_a_pipe(void)
{
    struct sigaction action = {.sa_handler = on_alarm}, before;
    struct itimerval soon = {.it_value = {0, 30000}};
    struct epoll_event event = {.events = EPOLLIN};
    int set = mps_epoll_create1(0), ends[2], unused = tcp(), count;

    CHECK(pipe(ends) == 0);
    alarmed = ends[1];
    CHECK(mps_epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
    CHECK(sigaction(SIGALRM, &action, &before) == 0);
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    /* What the handler has written may be there before the call is over. */
    count = mps_epoll_wait(set, &event, 1, 20000);
    CHECK(count == 1 || (count == -1 && errno == EINTR));
    CHECK(inside_errno == EDEADLK);
    CHECK(mps_epoll_wait(set, &event, 1, 20000) == 1);
    CHECK(sigaction(SIGALRM, &before, NULL) == 0);
    CHECK(mps_close(set) == 0 && mps_close(unused) == 0);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void a_child_has_none_of_them(void)
{
    int fd = tcp(), status;
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        FAILS(mps_close(fd), -1, ECHILD);
        FAILS(mps_socket(AF_INET, SOCK_STREAM, 0), -1, ECHILD);
        FAILS(mps_destroy(), -1, ECHILD);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(mps_close(fd) == 0);
}

/* -- sharing */

static void *close_it(void *fd)
{
    return (void *)(intptr_t)(mps_close(*(int *)fd) == 0 ? 0 : errno);
}

static long closed_by_another(int fd)
{
    pthread_t thread;
    void *answer;

    CHECK(pthread_create(&thread, NULL, close_it, &fd) == 0);
    CHECK(pthread_join(thread, &answer) == 0);
    return (long)(intptr_t)answer;
}

static void *open_one(void *fd)
{
    *(int *)fd = tcp();
    return NULL;
}

static int opened_by_another(void)
{
    pthread_t thread;
    int fd = -1;

    CHECK(pthread_create(&thread, NULL, open_one, &fd) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    return fd;
}

static void what_threads_share(void)
{
    int fd = opened_by_another();

    /* The thread has ended, and its socket is still shared. */
    CHECK(mps_close(fd) == 0);
    fd = tcp();
    CHECK(closed_by_another(fd) == 0);
    FAILS(mps_close(fd), -1, EBADF);
    /* Not while there are sockets; and after their end all begins anew. */
    fd = tcp();
    FAILS(mps_init(NULL, MPS_SHARED), -1, EBUSY);
    CHECK(mps_destroy() == 0);
    FAILS(mps_close(fd), -1, EBADF);
    CHECK(mps_destroy() == 0);
    CHECK(mps_init(NULL, MPS_SHARED) == 0);
    CHECK(mps_close(tcp()) == 0);
    CHECK(mps_destroy() == 0);
}

static void what_threads_have_for_themselves(void)
{
    int mine = tcp(), theirs = opened_by_another();

    CHECK(mine != theirs);
    /* Theirs went with the thread. */
    FAILS(mps_close(theirs), -1, EBADF);
    CHECK(strstr(mp_last_error(), "another thread's") != NULL);
    CHECK(closed_by_another(mine) == EBADF);
    FAILS(mps_init(NULL, 0), -1, EBUSY);
    CHECK(mps_close(mine) == 0);
    CHECK(mps_destroy() == 0);
}

static void configurations_that_cannot_be(void)
{
    struct mp_config config;

    CHECK(mp_config_init(&config, sizeof config) == 0);
    FAILS(mps_init(NULL, 4), -1, EINVAL);
    config.core = 0;
    FAILS(mps_init(&config, MPS_SHARED), -1, EINVAL);
    CHECK(mp_config_init(&config, sizeof config) == 0);
    config.backend = MP_BACKEND_LOCAL;
    FAILS(mps_init(&config, MPS_SHARED), -1, EINVAL);
    config.link = "tap:mp-no-such-device";
    config.addresses = "10.0.0.2";
    FAILS(mps_init(&config, MPS_SHARED), -1, EINVAL);
    CHECK(mp_config_init(&config, sizeof config) == 0);
    config.driver = MP_DRIVER_URING;
    FAILS(mps_init(&config, MPS_SHARED), -1, EINVAL);
}

/* -- numbers that fit into an fd_set */

static void sets_of_select(void)
{
    struct rlimit limit = {1024, 1024};
    struct sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    struct timeval time = {20, 0};
    int listener, fd, ends[2];
    fd_set readable, writable;

    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    FAILS(mps_init(NULL, MPS_SELECT), -1, EINVAL);
    CHECK(strstr(mp_last_error(), "RLIMIT_NOFILE") != NULL);
    limit.rlim_cur = 512;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(mps_init(NULL, MPS_SELECT) == 0);
    listener = tcp();
    CHECK(listener >= 512 && listener < FD_SETSIZE);
    CHECK(mps_bind(listener, (struct sockaddr *)&address, size) == 0);
    CHECK(mps_listen(listener, 8) == 0);
    CHECK(mps_getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    fd = tcp();
    CHECK(mps_connect(fd, (struct sockaddr *)&address, size) == 0);
    CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(fd, &writable);
    FD_SET(fd, &readable);
    CHECK(mps_select(fd + 1, &readable, &writable, NULL, &time) == 1);
    CHECK(FD_ISSET(fd, &writable) && !FD_ISSET(fd, &readable));
    FD_SET(listener, &readable);
    FD_SET(ends[0], &readable);
    CHECK(mps_select(listener + 1, &readable, NULL, NULL, &time) == 2);
    CHECK(FD_ISSET(listener, &readable) && FD_ISSET(ends[0], &readable));
    CHECK(time.tv_sec < 20);
    time = (struct timeval){0, -1};
    FAILS(mps_select(0, NULL, NULL, NULL, &time), -1, EINVAL);
    FAILS(mps_select(-1, NULL, NULL, NULL, NULL), -1, EINVAL);
    CHECK(mps_destroy() == 0);
}

/* The process ends with a connection that has not sent everything: it goes out all the same. */
static void send_and_exit(in_port_t port)
{
    struct sockaddr_in address = loopback(port);
    enum { BYTES = 3000000 };
    char *bytes = calloc(BYTES, 1);
    int fd = tcp();

    CHECK(mps_connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(mps_write(fd, bytes, BYTES) == BYTES);
    free(bytes);
    exit(0);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    if (strcmp(argv[1], "exit") == 0) {
        CHECK(argc == 3);
        send_and_exit((in_port_t)atoi(argv[2]));
    }
    if (strcmp(argv[1], "select") == 0) {
        RUN(sets_of_select);
        return 0;
    }
    RUN(configurations_that_cannot_be);
    if (strcmp(argv[1], "thread") == 0)
        CHECK(mps_init(NULL, MPS_PER_THREAD) == 0);
    RUN(pointers_and_numbers_that_are_none);
    RUN(other_families_are_the_kernels);
    RUN(a_handler_may_write_to_a_pipe);
    RUN(a_child_has_none_of_them);
    if (strcmp(argv[1], "thread") == 0)
        RUN(what_threads_have_for_themselves);
    else
        RUN(what_threads_share);
    return 0;
}
