/*
 * Plays packetdrill's part: loads the shared object, drives a connection through its record by
 * socket calls and packets, in virtual time, with a second thread for calls that block.
 *
 *     harness LIBRARY
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

struct packetdrill_interface {
    void *userdata;
    void (*free)(void *);
    int (*socket)(void *, int, int, int);
    int (*bind)(void *, int, const struct sockaddr *, socklen_t);
    int (*listen)(void *, int, int);
    int (*accept)(void *, int, struct sockaddr *, socklen_t *);
    int (*connect)(void *, int, const struct sockaddr *, socklen_t);
    ssize_t (*read)(void *, int, void *, size_t);
    ssize_t (*readv)(void *, int, const struct iovec *, int);
    ssize_t (*recv)(void *, int, void *, size_t, int);
    ssize_t (*recvfrom)(void *, int, void *, size_t, int, struct sockaddr *, socklen_t *);
    ssize_t (*recvmsg)(void *, int, struct msghdr *, int);
    ssize_t (*write)(void *, int, const void *, size_t);
    ssize_t (*writev)(void *, int, const struct iovec *, int);
    ssize_t (*send)(void *, int, const void *, size_t, int);
    ssize_t (*sendto)(void *, int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    ssize_t (*sendmsg)(void *, int, const struct msghdr *, int);
    int (*fcntl)(void *, int, int, ...);
    int (*ioctl)(void *, int, unsigned long, ...);
    int (*close)(void *, int);
    int (*shutdown)(void *, int, int);
    int (*getsockopt)(void *, int, int, int, void *, socklen_t *);
    int (*setsockopt)(void *, int, int, int, const void *, socklen_t);
    int (*poll)(void *, struct pollfd *, nfds_t, int);
    int (*netdev_send)(void *, const void *, size_t);
    int (*netdev_receive)(void *, void *, size_t *, long long *);
    int (*usleep)(void *, useconds_t);
    int (*gettimeofday)(void *, struct timeval *, struct timezone *);
    int (*epoll_create)(void *, int);
    int (*epoll_ctl)(void *, int, int, int, struct epoll_event *);
    int (*epoll_wait)(void *, int, struct epoll_event *, int, int);
    int (*pipe)(void *, int[2]);
    ssize_t (*splice)(void *, int, loff_t *, int, loff_t *, size_t, unsigned int);
};

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno,  \
                    strerror(errno));                                                             \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static struct packetdrill_interface pd;
static void (*init)(const char *, struct packetdrill_interface *);

/* An IPv4 packet with a TCP segment and no options but those given. */
struct segment {
    uint8_t flags;
    uint32_t seq, ack;
    uint16_t window;
    const char *text;
    size_t size;
};

enum { FIN = 1, SYN = 2, RST = 4, PSH = 8, ACK = 16, OUR_PORT = 8080 };

/* Another one for each connection: an earlier one may be in TIME-WAIT. */
static uint32_t peer_port = 45678;
static uint32_t our_port = OUR_PORT;

static uint16_t folded(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static uint32_t sum_of(const uint8_t *bytes, size_t size, uint32_t sum)
{
    for (size_t index = 0; index + 1 < size; index += 2)
        sum += (uint32_t)(bytes[index] << 8 | bytes[index + 1]);
    return size % 2 ? sum + (uint32_t)(bytes[size - 1] << 8) : sum;
}

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put32(uint8_t *at, uint32_t value)
{
    put16(at, value >> 16);
    put16(at + 2, value);
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Sends a segment from 192.0.2.1 to 192.168.0.1. */
static void inject(struct segment segment)
{
    uint8_t packet[2048] = {0x45};
    uint8_t *tcp = packet + 20;
    size_t tcp_size = 20 + segment.size;
    uint32_t sum;

    put16(packet + 2, (uint32_t)(20 + tcp_size));
    packet[8] = 64;
    packet[9] = IPPROTO_TCP;
    put32(packet + 12, 0xc0000201);
    put32(packet + 16, 0xc0a80001);
    put16(packet + 10, folded(sum_of(packet, 20, 0)));
    put16(tcp, peer_port);
    put16(tcp + 2, our_port);
    put32(tcp + 4, segment.seq);
    put32(tcp + 8, segment.ack);
    tcp[12] = 5 << 4;
    tcp[13] = segment.flags;
    put16(tcp + 14, segment.window ? segment.window : 65535);
    if (segment.size > 0)
        memcpy(tcp + 20, segment.text, segment.size);
    sum = sum_of(packet + 12, 8, (uint32_t)(IPPROTO_TCP + tcp_size));
    put16(tcp + 16, folded(sum_of(tcp, tcp_size, sum)));
    CHECK(pd.netdev_send(pd.userdata, packet, 20 + tcp_size) == 0);
}

struct received {
    uint8_t flags;
    uint32_t seq, ack;
    uint8_t text[2048];
    size_t size;
    long long time_us;
};

/* The next segment from this host. */
static struct received expect_at(int line, uint8_t flags)
{
    struct received got = {0};
    uint8_t packet[4096];
    size_t size = sizeof packet, header;

    CHECK(pd.netdev_receive(pd.userdata, packet, &size, &got.time_us) == 0);
    CHECK(size >= 40 && packet[0] == 0x45 && packet[9] == IPPROTO_TCP);
    CHECK(get32(packet + 12) == 0xc0a80001 && get32(packet + 16) == 0xc0000201);
    CHECK(folded(sum_of(packet, 20, 0)) == 0);
    CHECK(folded(sum_of(packet + 20, size - 20,
                        sum_of(packet + 12, 8, (uint32_t)(IPPROTO_TCP + size - 20)))) == 0);
    got.flags = packet[33];
    got.seq = get32(packet + 24);
    got.ack = get32(packet + 28);
    header = 20 + (size_t)(packet[32] >> 4) * 4;
    got.size = size - header;
    memcpy(got.text, packet + header, got.size);
    if (got.flags != flags) {
        fprintf(stderr, "line %d: flags %#x, not %#x; seq %u, ack %u, %zu bytes\n", line,
                got.flags, flags, got.seq, got.ack, got.size);
        exit(1);
    }
    return got;
}

#define expect(flags) expect_at(__LINE__, flags)

static long long now_us(void)
{
    struct timeval now;

    CHECK(pd.gettimeofday(pd.userdata, &now, NULL) == 0);
    return now.tv_sec * 1000000LL + now.tv_usec;
}

static void time_is_virtual(void)
{
    long long before = now_us(), after = now_us();
    struct timespec real[2];

    CHECK(after > before && after < before + 100);
    clock_gettime(CLOCK_MONOTONIC, &real[0]);
    CHECK(pd.usleep(pd.userdata, 900000) == 0);
    CHECK(pd.usleep(pd.userdata, 900000) == 0);
    clock_gettime(CLOCK_MONOTONIC, &real[1]);
    CHECK(now_us() - after >= 1800000 && now_us() - after < 1801000);
    CHECK(real[1].tv_sec - real[0].tv_sec < 2);
}

static int listener(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(OUR_PORT)};
    int on = 1, fd = pd.socket(pd.userdata, AF_INET, SOCK_STREAM, IPPROTO_TCP);

    CHECK(fd >= 0);
    CHECK(pd.setsockopt(pd.userdata, fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(pd.bind(pd.userdata, fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(pd.listen(pd.userdata, fd, 1) == 0);
    return fd;
}

/* The handshake; what we sent next follows the number that is returned. */
static uint32_t shake_hands(void)
{
    struct received answer;

    peer_port++;
    inject((struct segment){.flags = SYN, .seq = 1000});
    answer = expect(SYN | ACK);
    CHECK(answer.ack == 1001);
    inject((struct segment){.flags = ACK, .seq = 1001, .ack = answer.seq + 1});
    return answer.seq + 1;
}

struct blocking {
    int fd, result, over;
    pid_t thread;
    long long over_us;
    char text[64];
};

static void *accept_blocking(void *argument)
{
    struct blocking *call = argument;

    __atomic_store_n(&call->thread, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    call->result = pd.accept(pd.userdata, call->fd, NULL, NULL);
    call->over_us = now_us();
    __atomic_store_n(&call->over, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void *read_blocking(void *argument)
{
    struct blocking *call = argument;

    __atomic_store_n(&call->thread, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    call->result = (int)pd.read(pd.userdata, call->fd, call->text, sizeof call->text);
    call->over_us = now_us();
    __atomic_store_n(&call->over, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Waits until the kernel shows the thread asleep, as packetdrill does. */
static void wait_until_asleep(struct blocking *call)
{
    for (int look = 0; look < 5000; look++) {
        pid_t thread = __atomic_load_n(&call->thread, __ATOMIC_ACQUIRE);
        char path[64], line[256] = "", *state;
        FILE *file;

        snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
        file = thread ? fopen(path, "r") : NULL;
        if (file != NULL) {
            state = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
            fclose(file);
            if (state != NULL && state[2] == 'S')
                return;
        }
        usleep(1000);
    }
    CHECK(!"the thread does not sleep");
}

static void blocking_calls(void)
{
    struct blocking accept = {.fd = listener()}, read;
    pthread_t thread;
    long long began_us;
    uint32_t next;

    CHECK(pthread_create(&thread, NULL, accept_blocking, &accept) == 0);
    wait_until_asleep(&accept);
    CHECK(pd.usleep(pd.userdata, 100000) == 0);
    CHECK(!__atomic_load_n(&accept.over, __ATOMIC_ACQUIRE));
    began_us = now_us();
    next = shake_hands();
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(accept.result >= 0 && accept.over_us - began_us < 1000);
    read = (struct blocking){.fd = accept.result};
    CHECK(pthread_create(&thread, NULL, read_blocking, &read) == 0);
    wait_until_asleep(&read);
    CHECK(pd.usleep(pd.userdata, 50000) == 0);
    began_us = now_us();
    inject((struct segment){ACK | PSH, 1001, next, 0, "hello", 5});
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(read.result == 5 && memcmp(read.text, "hello", 5) == 0);
    CHECK(read.over_us - began_us < 1000);
    CHECK(expect(ACK).ack == 1006);
    inject((struct segment){.flags = RST, .seq = 1006});
    CHECK(pd.read(pd.userdata, accept.result, read.text, 1) == -1 && errno == ECONNRESET);
    CHECK(pd.close(pd.userdata, accept.result) == 0);
    CHECK(pd.close(pd.userdata, accept.fd) == 0);
}

static void *wait_blocking(void *argument)
{
    struct blocking *call = argument;
    struct epoll_event event;

    __atomic_store_n(&call->thread, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    call->result = pd.epoll_wait(pd.userdata, call->fd, &event, 1, 70);
    call->over_us = now_us();
    __atomic_store_n(&call->over, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void *connect_blocking(void *argument)
{
    struct blocking *call = argument;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(80)};

    address.sin_addr.s_addr = htonl(0xc0000201);
    __atomic_store_n(&call->thread, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    call->result = pd.connect(pd.userdata, call->fd, (struct sockaddr *)&address, sizeof address);
    if (call->result < 0)
        call->result = -errno;
    call->over_us = now_us();
    __atomic_store_n(&call->over, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* A wait with a limit ends when virtual time gets there; a connect when its answer comes. */
static void blocking_waits(void)
{
    struct blocking wait = {.fd = pd.epoll_create(pd.userdata, 1)}, connect;
    uint8_t packet[64];
    size_t size = 30;
    long long began_us = now_us(), time_us;
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, wait_blocking, &wait) == 0);
    wait_until_asleep(&wait);
    CHECK(pd.usleep(pd.userdata, 50000) == 0);
    CHECK(!__atomic_load_n(&wait.over, __ATOMIC_ACQUIRE));
    CHECK(pd.usleep(pd.userdata, 50000) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(wait.result == 0);
    CHECK(wait.over_us - began_us >= 69000 && wait.over_us - began_us < 110000);
    CHECK(pd.close(pd.userdata, wait.fd) == 0);
    connect = (struct blocking){.fd = pd.socket(pd.userdata, AF_INET, SOCK_STREAM, 0)};
    CHECK(connect.fd >= 0);
    CHECK(pthread_create(&thread, NULL, connect_blocking, &connect) == 0);
    wait_until_asleep(&connect);
    /* A SYN, truncated to the buffer. */
    CHECK(pd.netdev_receive(pd.userdata, packet, &size, &time_us) == 0);
    CHECK(size == 30 && packet[9] == IPPROTO_TCP);
    our_port = (uint32_t)(packet[20] << 8 | packet[21]);
    peer_port = 80;
    inject((struct segment){.flags = RST | ACK, .ack = get32(packet + 24) + 1});
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(connect.result == -ECONNREFUSED);
    CHECK(pd.close(pd.userdata, connect.fd) == 0);
    our_port = OUR_PORT;
    peer_port = 46000;
}

static void data_and_timers(void)
{
    int fd = listener(), connection, count = 0;
    struct iovec parts[2] = {{"abcd", 4}, {"efghij", 6}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct pollfd polled;
    struct received first, again;
    uint32_t next = shake_hands();
    char text[16];
    struct tcp_info info;
    socklen_t size = sizeof info;

    connection = pd.accept(pd.userdata, fd, NULL, NULL);
    CHECK(connection >= 0);
    CHECK(pd.fcntl(pd.userdata, connection, F_SETFL, O_RDWR | O_NONBLOCK) == 0);
    CHECK(pd.fcntl(pd.userdata, connection, F_GETFL, 0) & O_NONBLOCK);
    CHECK(pd.read(pd.userdata, connection, text, sizeof text) == -1 && errno == EAGAIN);
    CHECK(pd.sendmsg(pd.userdata, connection, &message, 0) == 10);
    first = expect(ACK | PSH);
    CHECK(first.seq == next && first.size == 10 && memcmp(first.text, "abcdefghij", 10) == 0);
    /* Without an acknowledgment it is retransmitted, at the timeout and not before. */
    again = expect(ACK | PSH);
    CHECK(again.seq == next && again.size == 10);
    CHECK(again.time_us - first.time_us >= 200000 && again.time_us - first.time_us < 1500000);
    CHECK(now_us() >= again.time_us);
    inject((struct segment){.flags = ACK, .seq = 1001, .ack = next + 10});
    inject((struct segment){ACK | PSH, 1001, next + 10, 0, "0123456789", 10});
    CHECK(pd.ioctl(pd.userdata, connection, FIONREAD, &count) == 0 && count == 10);
    polled = (struct pollfd){.fd = connection, .events = POLLIN | POLLOUT};
    CHECK(pd.poll(pd.userdata, &polled, 1, 0) == 1);
    CHECK(polled.revents == (POLLIN | POLLOUT));
    CHECK(pd.recv(pd.userdata, connection, text, 4, MSG_PEEK) == 4);
    CHECK(pd.readv(pd.userdata, connection, (struct iovec[]){{text, 3}, {text + 3, 13}}, 2) == 10);
    CHECK(memcmp(text, "0123456789", 10) == 0);
    CHECK(pd.getsockopt(pd.userdata, connection, IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
    CHECK(info.tcpi_state == TCP_ESTABLISHED);
    CHECK(expect(ACK).ack == 1011);
    CHECK(pd.shutdown(pd.userdata, connection, SHUT_WR) == 0);
    CHECK(expect(FIN | ACK).seq == next + 10);
    inject((struct segment){.flags = FIN | ACK, .seq = 1011, .ack = next + 11});
    CHECK(expect(ACK).ack == 1012);
    CHECK(pd.read(pd.userdata, connection, text, 1) == 0);
    CHECK(pd.close(pd.userdata, connection) == 0 && pd.close(pd.userdata, fd) == 0);
}

static void sets_and_pipes(void)
{
    int fd = listener(), set = pd.epoll_create(pd.userdata, 1), ends[2];
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7}, got;
    char byte;

    CHECK(set >= 0 && pd.pipe(pd.userdata, ends) == 0);
    CHECK(pd.epoll_ctl(pd.userdata, set, EPOLL_CTL_ADD, fd, &event) == 0);
    event.data.u64 = 8;
    CHECK(pd.epoll_ctl(pd.userdata, set, EPOLL_CTL_ADD, ends[0], &event) == 0);
    CHECK(pd.epoll_wait(pd.userdata, set, &got, 1, 0) == 0);
    CHECK(pd.write(pd.userdata, ends[1], "x", 1) == 1);
    CHECK(pd.epoll_wait(pd.userdata, set, &got, 1, 0) == 1 && got.data.u64 == 8);
    CHECK(pd.read(pd.userdata, ends[0], &byte, 1) == 1 && byte == 'x');
    shake_hands();
    CHECK(pd.epoll_wait(pd.userdata, set, &got, 1, 0) == 1 && got.data.u64 == 7);
    CHECK(pd.splice(pd.userdata, ends[0], NULL, ends[1], NULL, 1, 0) == -1 && errno == ENOSYS);
    CHECK(pd.close(pd.userdata, set) == 0 && pd.close(pd.userdata, fd) == 0);
}

static void nothing_comes(void)
{
    static uint8_t noise[70000];
    uint8_t packet[64];
    size_t size = sizeof packet;
    long long time_us;

    /* What earlier tests left behind may still be on its way. */
    while (pd.netdev_receive(pd.userdata, packet, &size, &time_us) == 0)
        size = sizeof packet;
    CHECK(errno == ETIMEDOUT);
    CHECK(pd.socket(pd.userdata, AF_PACKET, SOCK_STREAM, 0) == -1 && errno == EAFNOSUPPORT);
    CHECK(pd.close(pd.userdata, 999) == -1 && errno == EBADF);
    CHECK(pd.read(pd.userdata, 3, NULL, 5) == -1 && errno == EFAULT);
    CHECK(pd.netdev_receive(pd.userdata, packet, NULL, &time_us) == -1 && errno == EFAULT);
    CHECK(pd.netdev_send(pd.userdata, "nonsense", 8) == 0);
    CHECK(pd.netdev_send(pd.userdata, NULL, 0) == 0);
    CHECK(pd.netdev_send(pd.userdata, NULL, 8) == -1 && errno == EFAULT);
    for (size = 0; size < sizeof noise; size += 1 + size / 8) {
        memset(noise, (int)(0x45 + size % 32), sizeof noise);
        CHECK(pd.netdev_send(pd.userdata, noise, size) == 0);
    }
    CHECK(pd.usleep(pd.userdata, 0) == 0);
}

/* Invalid pointers, descriptors and lengths. */
static void nonsense(void)
{
    int fd = pd.socket(pd.userdata, AF_INET, SOCK_STREAM, 0), ends[2];
    struct iovec endless = {ends, SIZE_MAX}, nowhere = {NULL, 4};
    char text[8];

    CHECK(fd >= 0 && pd.pipe(pd.userdata, ends) == 0);
    CHECK(pd.bind(pd.userdata, fd, NULL, 16) == -1 && errno == EFAULT);
    CHECK(pd.connect(pd.userdata, fd, NULL, 16) == -1 && errno == EFAULT);
    CHECK(pd.accept(pd.userdata, fd, NULL, NULL) == -1 && errno == EINVAL);
    CHECK(pd.recvmsg(pd.userdata, fd, NULL, 0) == -1 && errno == EFAULT);
    CHECK(pd.sendmsg(pd.userdata, fd, NULL, 0) == -1 && errno == EFAULT);
    CHECK(pd.getsockopt(pd.userdata, fd, SOL_SOCKET, SO_ERROR, NULL, NULL) == -1);
    CHECK(errno == EFAULT);
    CHECK(pd.setsockopt(pd.userdata, fd, SOL_SOCKET, SO_KEEPALIVE, NULL, 4) == -1);
    CHECK(errno == EFAULT);
    CHECK(pd.poll(pd.userdata, NULL, 1, 0) == -1 && errno == EFAULT);
    CHECK(pd.poll(pd.userdata, NULL, (nfds_t)-1, 0) == -1 && errno == EINVAL);
    CHECK(pd.epoll_create(pd.userdata, 0) == -1 && errno == EINVAL);
    CHECK(pd.pipe(pd.userdata, NULL) == -1 && errno == EFAULT);
    CHECK(pd.fcntl(pd.userdata, 999, F_GETFL) == -1 && errno == EBADF);
    CHECK(pd.ioctl(pd.userdata, 999, FIONREAD, ends) == -1 && errno == EBADF);
    CHECK(pd.writev(pd.userdata, ends[1], &endless, 1) == -1 && errno == EINVAL);
    CHECK(pd.readv(pd.userdata, ends[0], &nowhere, 1) == -1 && errno == EFAULT);
    CHECK(pd.readv(pd.userdata, ends[0], &nowhere, -1) == -1 && errno == EINVAL);
    CHECK(pd.write(pd.userdata, ends[1], "pipe", 4) == 4);
    CHECK(pd.read(pd.userdata, ends[0], text, SIZE_MAX) == 4);
    CHECK(pd.fcntl(pd.userdata, fd, F_GETFL) == O_RDWR);
    CHECK(pd.close(pd.userdata, ends[0]) == 0 && pd.close(pd.userdata, ends[1]) == 0);
    CHECK(pd.close(pd.userdata, fd) == 0 && pd.close(pd.userdata, fd) == -1);
}

/* A knob is turned: the delay of an ACK, as packets see it. */
static void knobs(void)
{
    struct received answer;
    long long sent_us;
    uint32_t next;
    int fd;

    init("delayed_ack_ms=123,quick_acks=0,tcp_timestamps=0", &pd);
    CHECK(pd.userdata != NULL);
    fd = listener();
    next = shake_hands();
    CHECK(pd.accept(pd.userdata, fd, NULL, NULL) >= 0);
    sent_us = now_us();
    inject((struct segment){ACK | PSH, 1001, next, 0, "x", 1});
    answer = expect(ACK);
    CHECK(answer.time_us - sent_us >= 122000 && answer.time_us - sent_us < 125000);
    pd.free(pd.userdata);
    init("turbo=1", &pd);
    CHECK(pd.userdata == NULL);
    CHECK(pd.socket(pd.userdata, AF_INET, SOCK_STREAM, 0) == -1 && errno == ENODEV);
    CHECK(pd.gettimeofday(pd.userdata, NULL, NULL) == -1 && errno == ENODEV);
    CHECK(pd.netdev_receive(pd.userdata, NULL, NULL, NULL) == -1 && errno == ENODEV);
    CHECK(pd.usleep(pd.userdata, 1) == -1 && errno == ENODEV);
    pd.free(pd.userdata);
}

int main(int argc, char **argv)
{
    void *library;
    void **entries = (void **)&pd;

    CHECK(argc == 2);
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&init = dlsym(library, "packetdrill_interface_init");
    CHECK(init != NULL);
    init(NULL, &pd);
    for (size_t index = 0; index < sizeof pd / sizeof *entries; index++)
        CHECK(entries[index] != NULL);
    time_is_virtual();
    blocking_calls();
    blocking_waits();
    data_and_timers();
    sets_and_pipes();
    nothing_comes();
    nonsense();
    pd.free(pd.userdata);
    knobs();
    return 0;
}
