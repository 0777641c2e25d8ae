/*
 * BSD sockets and epoll as programs of Linux use them. This file knows nothing of megapipe: it is
 * compiled unchanged, and with megapipe_bsd.h in front, and must print the same.
 *
 *     bsd both ADDRESS PORT      server and client in one process
 *     bsd server ADDRESS PORT    until the client says that it is done
 *     bsd client ADDRESS PORT
 *     bsd crew ADDRESS PORT      one thread accepts, others serve: descriptors go between threads
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: errno %d (%s)\n", __FILE__, __LINE__, #condition, errno,  \
                    strerror(errno));                                                             \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* What a call answers, as a line that is the same wherever it runs. */
#define SAY(call)                                                                                 \
    do {                                                                                          \
        long answer;                                                                              \
        errno = 0;                                                                                \
        answer = (long)(call);                                                                    \
        printf("%s: %ld %s\n", #call, answer, answer < 0 ? strerrorname_np(errno) : "");          \
        fflush(stdout);                                                                           \
    } while (0)

/* What the compiler would warn of if it knew. */
static void *volatile null = NULL;
static volatile int minus_one = -1;

enum { THREADS = 2, CONNECTIONS = 8, LARGE = 300000 };

static struct sockaddr_in address;
static char large[LARGE], got[LARGE];

/* A program has tables of functions, and names of its own. */
struct transport {
    ssize_t (*read)(int, void *, size_t);
    ssize_t (*write)(int, const void *, size_t);
    int close;
};
static const struct transport transport = {read, write, 0};

static int tcp(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    return fd;
}

static int listener_at(struct sockaddr_in *at, int flags)
{
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0), on = 1;
    socklen_t size = sizeof *at;

    CHECK(fd >= 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0);
    CHECK(bind(fd, (struct sockaddr *)at, sizeof *at) == 0);
    CHECK(listen(fd, 64) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)at, &size) == 0);
    return fd;
}

static void watch(int set, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.fd = fd}};

    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* -- the server: a set for each thread, with a pipe of the kernel's in it that ends it */

struct worker {
    pthread_t thread;
    int stop[2], has_datagrams, accepted, datagrams;
};

static struct worker workers[THREADS];
static pthread_barrier_t all_listen;
static int quit = -1;

/* Echoes what there is; 'q' as the first byte ends the server. */
static int serve(int fd)
{
    char bytes[4096];
    ssize_t len, done, count;

    while ((len = transport.read(fd, bytes, sizeof bytes)) > 0) {
        if (bytes[0] == 'q' && len == 1) {
            uint64_t one = 1;
            CHECK(write(quit, &one, sizeof one) == sizeof one);
        }
        for (done = 0; done < len; done += count) {
            count = transport.write(fd, bytes + done, (size_t)(len - done));
            if (count < 0 && errno == EAGAIN) {
                struct pollfd room = {.fd = fd, .events = POLLOUT};
                CHECK(poll(&room, 1, 120000) == 1);
                count = 0;
            }
            if (count < 0)
                return 0;
        }
    }
    /* Who came too early may have been reset. */
    return len < 0 && errno == EAGAIN;
}

static void echo_datagram(struct worker *worker, int fd)
{
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    char bytes[2048];
    ssize_t len;

    while ((len = recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &size)) >= 0) {
        CHECK(size == sizeof from);
        CHECK(sendto(fd, bytes, (size_t)len, 0, (struct sockaddr *)&from, size) == len);
        worker->datagrams++;
    }
    CHECK(errno == EAGAIN);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct sockaddr_in at = address;
    struct epoll_event events[16];
    int set = epoll_create1(EPOLL_CLOEXEC), listener = listener_at(&at, SOCK_NONBLOCK), udp = -1;

    watch(set, listener, EPOLLIN);
    watch(set, worker->stop[0], EPOLLIN);
    if (worker->has_datagrams) {
        udp = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        CHECK(bind(udp, (struct sockaddr *)&at, sizeof at) == 0);
        watch(set, udp, EPOLLIN);
    }
    pthread_barrier_wait(&all_listen);
    for (;;) {
        int count = epoll_wait(set, events, 16, -1);

        CHECK(count > 0 || errno == EINTR);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;

            if (fd == worker->stop[0])
                goto end;
            if (fd == udp) {
                echo_datagram(worker, fd);
            } else if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    worker->accepted++;
                    watch(set, fd, EPOLLIN | EPOLLET);
                }
                CHECK(errno == EAGAIN);
            } else if (!serve(fd)) {
                CHECK(close(fd) == 0);
            }
        }
    }
end:
    CHECK(udp < 0 || close(udp) == 0);
    CHECK(close(listener) == 0 && close(set) == 0);
    return NULL;
}

static void start_server(void)
{
    CHECK((quit = eventfd(0, EFD_CLOEXEC)) >= 0);
    CHECK(pthread_barrier_init(&all_listen, NULL, THREADS + 1) == 0);
    for (int i = 0; i < THREADS; i++) {
        workers[i].has_datagrams = i == 0;
        CHECK(pipe(workers[i].stop) == 0);
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    pthread_barrier_wait(&all_listen);
}

static void stop_server(void)
{
    struct pollfd asked = {.fd = quit, .events = POLLIN};
    int accepted = 0, datagrams = 0;
    uint64_t count;

    CHECK(poll(&asked, 1, 1120000) == 1 && asked.revents == POLLIN);
    CHECK(read(quit, &count, sizeof count) == sizeof count);
    for (int i = 0; i < THREADS; i++) {
        CHECK(write(workers[i].stop[1], "", 1) == 1);
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
        CHECK(close(workers[i].stop[0]) == 0 && close(workers[i].stop[1]) == 0);
        accepted += workers[i].accepted;
        datagrams += workers[i].datagrams;
    }
    CHECK(close(quit) == 0);
    /* And those that came too early. */
    CHECK(accepted >= CONNECTIONS + 5);
    printf("server: %d datagrams\n", datagrams);
    fflush(stdout);
}

/* -- the client */

static int dial(void)
{
    int fd = tcp();

    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

/*
 * Until all of the server's threads listen: the first that does may be there before the others,
 * and a connection in between may be refused or reset, or time out.
 */
static void await_server(void)
{
    char byte;
    int done = 0;

    for (int tries = 0; !done; tries++) {
        int fd = tcp();

        CHECK(tries < 10000);
        done = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
               send(fd, "a", 1, MSG_NOSIGNAL) == 1 && read(fd, &byte, 1) == 1;
        CHECK(close(fd) == 0);
        if (!done)
            usleep(10000);
    }
}

static void streams(void)
{
    char a[3], b[4];
    struct iovec out[2] = {{"one ", 4}, {"two", 3}}, in[2] = {{a, 3}, {b, 4}};
    struct msghdr message = {.msg_iov = in, .msg_iovlen = 2};
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    int fd = dial(), pending = 0;
    size_t sent = 0;
    ssize_t count;

    SAY(getpeername(fd, (struct sockaddr *)&peer, &size));
    CHECK(size == sizeof peer && peer.sin_port == address.sin_port);
    CHECK(peer.sin_addr.s_addr == address.sin_addr.s_addr);
    SAY(write(fd, "hello", 5));
    SAY(recv(fd, got, 5, MSG_WAITALL));
    CHECK(memcmp(got, "hello", 5) == 0);
    SAY(writev(fd, out, 2));
    SAY(recv(fd, got, 7, MSG_WAITALL | MSG_PEEK));
    SAY(ioctl(fd, FIONREAD, &pending));
    CHECK(pending == 7);
    SAY(readv(fd, in, 2));
    CHECK(memcmp(a, "one", 3) == 0 && memcmp(b, " two", 4) == 0);
    message.msg_iov = out;
    SAY(sendmsg(fd, &message, MSG_NOSIGNAL));
    message.msg_iov = in;
    SAY(recvmsg(fd, &message, MSG_WAITALL));
    CHECK(message.msg_flags == 0 && message.msg_controllen == 0);
    SAY(recv(fd, got, 1, MSG_DONTWAIT));
    /* More than fits anywhere, in both directions at once. */
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
    for (size_t received = 0; received < LARGE;) {
        struct pollfd asked = {.fd = fd, .events = POLLIN};

        asked.events |= sent < LARGE ? POLLOUT : 0;
        CHECK(poll(&asked, 1, 120000) == 1);
        if (asked.revents & POLLOUT) {
            count = send(fd, large + sent, LARGE - sent, MSG_NOSIGNAL);
            CHECK(count >= 0 || errno == EAGAIN);
            sent += count > 0 ? (size_t)count : 0;
        }
        if (asked.revents & POLLIN) {
            count = read(fd, got + received, LARGE - received);
            CHECK(count > 0 || errno == EAGAIN);
            received += count > 0 ? (size_t)count : 0;
        }
    }
    CHECK(memcmp(got, large, LARGE) == 0);
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0);
    SAY(shutdown(fd, SHUT_WR));
    SAY(read(fd, got, 1));
    SAY(close(fd));
    SAY(close(fd));
}

/* Several at once, by a set of the client's own. */
static void many(void)
{
    int set = epoll_create(1), fds[CONNECTIONS], left = CONNECTIONS;
    struct epoll_event events[3];

    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        CHECK(connect(fds[i], (struct sockaddr *)&address, sizeof address) == 0 ||
              errno == EINPROGRESS);
        watch(set, fds[i], EPOLLOUT);
    }
    while (left > 0) {
        int count = epoll_wait(set, events, 3, 120000);

        CHECK(count > 0);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd, error = -1;
            socklen_t size = sizeof error;
            struct epoll_event next = {.events = EPOLLIN, .data = {.fd = fd}};

            if (events[i].events & EPOLLOUT) {
                CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0);
                CHECK(write(fd, "ping", 4) == 4);
                CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &next) == 0);
            } else {
                CHECK(read(fd, got, 100) == 4);
                CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0);
                left--;
            }
        }
    }
    SAY(epoll_wait(set, events, 3, 0));
    for (int i = 0; i < CONNECTIONS; i++)
        CHECK(close(fds[i]) == 0);
    SAY(close(set));
}

static void datagrams(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0), other = socket(AF_INET, SOCK_DGRAM, 0);
    struct iovec parts[3] = {{"a", 1}, {"bc", 2}, {"", 0}};
    struct iovec room[3] = {{got, 10}, {got + 10, 10}, {got + 20, 10}};
    struct mmsghdr messages[3];
    struct sockaddr_in from;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2, .msg_name = &address,
                             .msg_namelen = sizeof address};
    struct pollfd asked = {.fd = fd, .events = POLLIN};
    socklen_t size = sizeof from;

    SAY(sendto(fd, "datagram", 8, 0, (struct sockaddr *)&address, sizeof address));
    SAY(poll(&asked, 1, 120000));
    SAY(recvfrom(fd, got, 4, MSG_TRUNC, (struct sockaddr *)&from, &size));
    CHECK(size == sizeof from && from.sin_port == address.sin_port);
    SAY(sendmsg(fd, &message, 0));
    message = (struct msghdr){.msg_iov = room, .msg_iovlen = 1, .msg_name = &from,
                              .msg_namelen = sizeof from};
    SAY(recvmsg(fd, &message, 0));
    CHECK(memcmp(got, "abc", 3) == 0 && message.msg_namelen == sizeof from);
    SAY(recv(fd, got, 1, MSG_DONTWAIT));
    SAY(send(other, "x", 1, 0));
    SAY(connect(other, (struct sockaddr *)&address, sizeof address));
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 3; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    SAY(sendmmsg(other, messages, 3, 0));
    CHECK(messages[0].msg_len == 1 && messages[1].msg_len == 2 && messages[2].msg_len == 0);
    for (int i = 0; i < 3; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &room[i], .msg_iovlen = 1};
    SAY(recvmmsg(other, messages, 3, 0, NULL));
    CHECK(messages[0].msg_len + messages[1].msg_len + messages[2].msg_len == 3);
    SAY(close(fd));
    SAY(close(other));
}

static volatile sig_atomic_t pipes;

static void on_pipe(int signal)
{
    (void)signal;
    pipes++;
}

static void errors(void)
{
    struct sockaddr_in closed_port = address;
    struct sockaddr *generic = (struct sockaddr *)&address, *none = (struct sockaddr *)&closed_port;
    struct epoll_event event = {.events = EPOLLIN};
    struct timeval limit = {0, 20000};
    socklen_t size = sizeof address, negative = (socklen_t)-1;
    int fd = tcp(), set = epoll_create1(0), on = 1, kept;
    struct sigaction action = {.sa_handler = on_pipe};
    char byte = 0;

    closed_port.sin_port = htons(1);
    SAY(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    SAY(socket(AF_INET, 77, 0));
    SAY(listen(-1, 1));
    SAY(accept(fd, NULL, NULL));
    SAY(connect(fd, null, 0));
    SAY(connect(fd, generic, 3));
    SAY(connect(fd, none, sizeof closed_port));
    SAY(getpeername(fd, generic, &size));
    SAY(getsockname(fd, null, &size));
    SAY(getsockname(fd, none, null));
    SAY(getsockname(fd, none, &negative));
    SAY(shutdown(fd, 9));
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, null, sizeof on));
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, 1));
    SAY(getsockopt(fd, SOL_SOCKET, SO_TYPE, &on, null));
    SAY(getsockopt(fd, SOL_SOCKET, 9999, &on, &size));
    SAY(epoll_create(0));
    SAY(epoll_ctl(set, 9, fd, &event));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, null));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, set, &event));
    SAY(epoll_ctl(fd, EPOLL_CTL_ADD, set, &event));
    SAY(epoll_wait(set, &event, 0, 0));
    SAY(epoll_wait(fd, &event, 1, 0));
    SAY(read(set, &byte, 1));
    SAY(fcntl(fd, F_GETFD));
    SAY(fcntl(fd, F_SETFL, O_NONBLOCK));
    SAY((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    SAY(close(fd));
    SAY(read(fd, &byte, 1));
    SAY(write(fd, &byte, 1));
    SAY(readv(fd, null, minus_one));
    SAY(sendmsg(fd, null, 0));
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, null, sizeof on));

    fd = dial();
    SAY(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    SAY(read(fd, &byte, 1));
    SAY(write(fd, null, 1));
    SAY(sendmsg(fd, null, 0));
    SAY(readv(fd, null, 1));
    SAY(readv(fd, null, minus_one));
    SAY(accept(fd, NULL, NULL));
    kept = dup(fd);
    CHECK(kept >= 0 && kept != fd && close(fd) == 0);
    SAY(write(kept, "x", 1));
    SAY(dup2(kept, kept) == kept);
    CHECK(sigaction(SIGPIPE, &action, NULL) == 0);
    SAY(shutdown(kept, SHUT_WR));
    SAY(send(kept, "x", 1, MSG_NOSIGNAL));
    printf("SIGPIPE %d times\n", (int)pipes);
    SAY(send(kept, "x", 1, 0));
    SAY(write(kept, "x", 1));
    printf("SIGPIPE %d times\n", (int)pipes);
    SAY(close(kept));
    SAY(close(set));
}

/* What is the kernel's, beside sockets, in one poll and in one set. */
static void mixed(void)
{
    int fd = dial(), ends[2], set = epoll_create1(0), pair[2];
    struct epoll_event events[4];
    struct timespec now = {0, 0};
    sigset_t mask;
    char bytes[2];

    CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    {
        struct pollfd asked[4] = {{.fd = ends[0], .events = POLLIN},
                                  {.fd = fd, .events = POLLOUT},
                                  {.fd = -1, .events = POLLIN},
                                  {.fd = pair[0], .events = POLLIN}};

        SAY(poll(asked, 4, 1000));
        CHECK(write(ends[1], "p", 1) == 1);
        SAY(ppoll(asked, 4, &now, NULL));
        SAY(asked[0].revents == POLLIN && asked[1].revents == POLLOUT && asked[3].revents == 0);
    }
    watch(set, ends[0], EPOLLIN);
    watch(set, fd, EPOLLIN);
    watch(set, pair[0], EPOLLIN);
    CHECK(write(fd, "s", 1) == 1);
    CHECK(recv(fd, bytes, 1, MSG_PEEK) == 1);
    CHECK(sigemptyset(&mask) == 0);
    for (int told = 0; told != 3;) {
        int count = epoll_pwait(set, events, 4, 20000, &mask);

        CHECK(count > 0);
        for (int i = 0; i < count; i++) {
            CHECK(events[i].events == EPOLLIN);
            told |= events[i].data.fd == fd ? 1 : events[i].data.fd == ends[0] ? 2 : 4;
        }
    }
    SAY(read(ends[0], bytes, 2));
    SAY(read(fd, bytes, 2));
    SAY(epoll_wait(set, events, 4, 0));
    SAY(send(pair[1], "u", 1, 0));
    SAY(epoll_wait(set, events, 4, 120000));
    SAY(events[0].data.fd == pair[0]);
    CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    {
        fd_set none;

        FD_ZERO(&none);
        now.tv_nsec = 1000000;
        SAY(pselect(0, &none, NULL, NULL, &now, NULL));
    }
    SAY(close(set));
    SAY(close(fd));
}

static void client(void)
{
    int fd;

    await_server();
    streams();
    many();
    datagrams();
    errors();
    mixed();
    fd = dial();
    CHECK(write(fd, "q", 1) == 1);
    /* An answer, or that the server is gone already. */
    CHECK(read(fd, got, 1) <= 1);
    CHECK(close(fd) == 0);
}

/* -- one thread accepts, others serve */

static int handed[2];

static void *crew_member(void *unused)
{
    int fd;

    (void)unused;
    while (read(handed[0], &fd, sizeof fd) == sizeof fd) {
        serve(fd);
        CHECK(close(fd) == 0);
    }
    return NULL;
}

static void *crew_client(void *unused)
{
    char bytes[6];

    (void)unused;
    for (int i = 0; i < 5; i++) {
        int fd = dial();

        CHECK(write(fd, "blocks", 6) == 6 && recv(fd, bytes, 6, MSG_WAITALL) == 6);
        CHECK(close(fd) == 0);
    }
    return NULL;
}

static void crew(void)
{
    pthread_t members[3], clients[2];
    struct sockaddr_in peer;
    int listener = listener_at(&address, 0);

    CHECK(pipe(handed) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&members[i], NULL, crew_member, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&clients[i], NULL, crew_client, NULL) == 0);
    for (int i = 0; i < 10; i++) {
        socklen_t size = sizeof peer;
        int fd = accept(listener, (struct sockaddr *)&peer, &size);

        CHECK(fd >= 0 && size == sizeof peer && peer.sin_family == AF_INET);
        CHECK(write(handed[1], &fd, sizeof fd) == sizeof fd);
    }
    CHECK(close(handed[1]) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(clients[i], NULL) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(members[i], NULL) == 0);
    CHECK(close(listener) == 0);
    puts("10 connections served by a crew");
}

static void *client_thread(void *unused)
{
    (void)unused;
    client();
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;

    CHECK(argc == 4);
    address = (struct sockaddr_in){.sin_family = AF_INET,
                                   .sin_addr = {inet_addr(argv[2])},
                                   .sin_port = htons((uint16_t)atoi(argv[3]))};
    for (int i = 0; i < LARGE; i++)
        large[i] = (char)(i * 31 % 251);
    if (strcmp(argv[1], "crew") == 0) {
        crew();
    } else if (strcmp(argv[1], "client") == 0) {
        client();
    } else if (strcmp(argv[1], "server") == 0) {
        start_server();
        puts("ready");
        fflush(stdout);
        stop_server();
    } else {
        start_server();
        CHECK(pthread_create(&thread, NULL, client_thread, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        stop_server();
    }
    return 0;
}
