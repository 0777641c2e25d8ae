/* How connections end, and what calls on sockets in rare states say. The output is the same with
 * and without the preload library.
 *
 * Usage: ends ADDRESS [PART | peer]
 * PART: one of the names in `parts` below, or all of them. `peer`: the other end of a link. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <time.h>

#include "connections.h"

/* What has been sent in the same process is there by then, on every stack. */
static void settle(void) { pause_ms(30); }

static void say_poll(const char *what, int fd, short events, int time) {
    struct pollfd entry = {.fd = fd, .events = events};
    say(what, poll(&entry, 1, time));
    printf("  %#x\n", entry.revents);
    fflush(stdout);
}

static void close_with_reset(int fd) {
    struct linger linger = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    close(fd);
}

static void say_error(int fd) {
    int error = 0;
    socklen_t len = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    printf("SO_ERROR: %s\n", error ? strerrorname_np(error) : "none");
    fflush(stdout);
}

enum { ALL = POLLIN | POLLOUT | POLLPRI | POLLRDHUP };

/* -- resets and ends, as the next call sees them */

static void peer_resets(void) {
    char text[8];
    struct pair pair = connection();
    close_with_reset(pair.there);
    settle();
    say("read", read(pair.here, text, 8));
    say("read", read(pair.here, text, 8));
    say("write", write(pair.here, "x", 1));
    close(pair.here);

    pair = connection();
    close_with_reset(pair.there);
    settle();
    say_poll("poll", pair.here, ALL, 10000);
    say_error(pair.here);
    say("read", read(pair.here, text, 8));
    close(pair.here);

    pair = connection();
    close_with_reset(pair.there);
    settle();
    say_poll("poll for writing", pair.here, POLLOUT, 10000);
    say("write", write(pair.here, "x", 1));
    say("write", write(pair.here, "x", 1));
    say("read", read(pair.here, text, 8));
    close(pair.here);
}

/* The peer closes while bytes wait that it has not read. */
static void peer_closes_unread(void) {
    char text[8];
    struct pair pair = connection();
    write(pair.here, "unread", 6);
    need(poll(&(struct pollfd){.fd = pair.there, .events = POLLIN}, 1, 10000) == 1, "poll");
    close(pair.there);
    settle();
    say_poll("poll", pair.here, ALL, 10000);
    say("read", read(pair.here, text, 8));
    say("read", read(pair.here, text, 8));
    say("write", write(pair.here, "x", 1));
    close(pair.here);

    /* Behind bytes that it has sent. */
    pair = connection();
    write(pair.there, "last", 4);
    write(pair.here, "unread", 6);
    need(poll(&(struct pollfd){.fd = pair.there, .events = POLLIN}, 1, 10000) == 1, "poll");
    need(poll(&(struct pollfd){.fd = pair.here, .events = POLLIN}, 1, 10000) == 1, "poll");
    say("read", read(pair.here, text, 8));
    close(pair.there);
    settle();
    say("read", read(pair.here, text, 8));
    close(pair.here);
}

/* The peer ends its stream and closes. */
static void peer_shuts_and_closes(void) {
    char text[8];
    struct pair pair = connection();
    shutdown(pair.there, SHUT_WR);
    settle();
    say_poll("poll", pair.here, ALL, 10000);
    say("read", read(pair.here, text, 8));
    close(pair.there);
    settle();
    say("write", write(pair.here, "x", 1));
    settle();
    say_poll("poll", pair.here, ALL, 10000);
    say("write", write(pair.here, "x", 1));
    say("read", read(pair.here, text, 8));
    close(pair.here);
}

/* Waits until poll(2) reports one of these events. */
static void wait_for(int fd, short events) {
    struct pollfd entry = {.fd = fd, .events = events};
    for (int i = 0; i < 10000 && !(entry.revents & events); i++) {
        need(poll(&entry, 1, 0) >= 0, "poll");
        pause_ms(1);
    }
}

/* Many pieces that nothing reads, more than a library may read ahead, perhaps the peer's end, and
 * then a reset: what has arrived is read first. */
static void reset_behind_many_pieces(void) {
    for (int has_end = 0; has_end < 2; has_end++) {
        char text[64], piece[200] = "pieces of a stream";
        struct pair pair = connection();
        int on = 1, sum = 0, len;
        setsockopt(pair.there, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        for (int i = 0; i < 300; i++) {
            need(write(pair.there, piece, sizeof piece) == sizeof piece, "write");
        }
        for (int unsent = 1; unsent > 0; pause_ms(1)) {
            need(ioctl(pair.there, SIOCOUTQ, &unsent) == 0, "ioctl");
        }
        if (has_end) {
            shutdown(pair.there, SHUT_WR);
            /* The peer has it: a poll may find that only when it has read what is before it. */
            for (struct tcp_info info = {0}; info.tcpi_state != TCP_FIN_WAIT2; pause_ms(1)) {
                socklen_t len = sizeof info;
                need(getsockopt(pair.there, IPPROTO_TCP, TCP_INFO, &info, &len) == 0, "TCP_INFO");
            }
        }
        close_with_reset(pair.there);
        wait_for(pair.here, POLLERR);
        say_poll("poll", pair.here, ALL, 10000);
        say("write", write(pair.here, "x", 1));
        while ((len = read(pair.here, text, sizeof text)) > 0) {
            for (int i = 0; i < len; i++) {
                need(text[i] == piece[(sum + i) % sizeof piece], "the bytes that were sent");
            }
            sum += len;
        }
        say("read", len);
        printf("%d bytes\n", sum);
        say("read", read(pair.here, text, 8));
        say_poll("poll", pair.here, ALL, 10000);
        close(pair.here);
    }
}

/* shutdown(2) of a connection that both ends have closed, and connect(2) after it. */
static void shuts_again(void) {
    int listening = listener(), fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in to = name_of(listening);
    say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
    int there = accept(listening, NULL, NULL);
    settle();
    say("shutdown", shutdown(fd, SHUT_WR));
    say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
    settle();
    say("shutdown of the peer", shutdown(there, SHUT_WR));
    settle();
    say("shutdown again", shutdown(there, SHUT_RDWR));
    close(fd), close(there), close(listening);
}

/* Errors of a connection that connect(2) to nowhere ends, once each. */
static void disconnects(void) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    struct pair pair = connection();
    say("disconnect", connect(pair.here, &none, sizeof none));
    say("send", send(pair.here, "x", 1, MSG_NOSIGNAL));
    say_error(pair.here);
    finish(pair);

    int listening = listener();
    struct sockaddr_in to = name_of(listening), own = to;
    close(listening);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
    own.sin_port = 0;
    say("bind", bind(fd, (struct sockaddr *)&own, sizeof own));
    close(fd);
}

/* A reset behind the peer's end. */
static void reset_after_end(void) {
    char text[8];
    struct pair pair = connection();
    shutdown(pair.there, SHUT_WR);
    settle();
    say("read", read(pair.here, text, 8));
    close_with_reset(pair.there);
    settle();
    say_poll("poll", pair.here, ALL, 10000);
    say("read", read(pair.here, text, 8));
    say("write", write(pair.here, "x", 1));
    say("write", write(pair.here, "x", 1));
    close(pair.here);

    pair = connection();
    write(pair.there, "end", 3);
    shutdown(pair.there, SHUT_WR);
    close_with_reset(pair.there);
    settle();
    say_poll("poll", pair.here, ALL, 10000);
    long got = read(pair.here, text, 8);
    say("read", got > 0 ? 0 : got);
    close(pair.here);
}

/* poll(2) sees all that has arrived, also where something else is ready already. */
static void poll_takes_in(void) {
    struct pair first = connection(), second = connection();
    write(first.there, "x", 1);
    settle();
    struct pollfd entries[] = {{.fd = first.here, .events = POLLIN},
                               {.fd = second.here, .events = POLLIN}};
    say("poll", poll(entries, 2, 10000));
    write(second.there, "x", 1);
    settle();
    say("poll of both", poll(entries, 2, 10000));
    printf("  %#x %#x\n", entries[0].revents, entries[1].revents);
    fd_set sets[2];
    for (int i = 0; i < 2; i++) {
        FD_ZERO(&sets[i]);
        FD_SET(first.here, &sets[i]);
        FD_SET(second.here, &sets[i]);
    }
    struct timeval time = {.tv_sec = 10};
    int most = first.here > second.here ? first.here : second.here;
    say("select of both", select(most + 1, &sets[0], &sets[1], NULL, &time));
    shutdown(first.there, SHUT_WR);
    settle();
    say_poll("poll", first.here, ALL, 10000);
    close_with_reset(second.there);
    settle();
    say_poll("poll", second.here, ALL, 10000);
    finish(first), close(second.here);
}

/* -- sockets that are not connected */

static void fresh_sockets(void) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    say_poll("a fresh socket", fd, ALL, 0);
    need(bind(fd, (struct sockaddr *)&any, sizeof any) == 0, "bind");
    say_poll("a bound socket", fd, ALL, 0);
    fd_set set;
    struct timeval never = {0};
    FD_ZERO(&set);
    FD_SET(fd, &set);
    say("select", select(fd + 1, NULL, &set, NULL, &never));
    close(fd);
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    say_poll("a fresh socket for datagrams", fd, ALL, 0);
    need(bind(fd, (struct sockaddr *)&any, sizeof any) == 0, "bind");
    say_poll("a bound socket for datagrams", fd, ALL, 0);
    close(fd);
}

/* Reads and writes of no bytes. */
static void nothing_transferred(void) {
    char text[8];
    struct pair pair = connection();
    say("read of nothing", read(pair.here, text, 0));
    say("recv of nothing", recv(pair.here, text, 0, MSG_DONTWAIT));
    say("write of nothing", write(pair.here, text, 0));
    say("send of nothing", send(pair.here, text, 0, 0));
    shutdown(pair.here, SHUT_WR);
    struct iovec empty = {.iov_base = text};
    say("write of nothing", write(pair.here, text, 0));
    say("writev of nothing", writev(pair.here, &empty, 1));
    say("writev of no pieces", writev(pair.here, &empty, 0));
    write(pair.there, "x", 1);
    settle();
    say("read of nothing", read(pair.here, text, 0));
    say("readv of nothing", readv(pair.here, &empty, 1));
    say("read", read(pair.here, text, 8));
    say("recv, no memory", recv(pair.here, NULL, 8, MSG_DONTWAIT));
    write(pair.there, "12345678", 8);
    settle();
    int count = -1;
    say("SIOCOUTQNSD", ioctl(pair.there, SIOCOUTQNSD, &count));
    say("not sent", count);
    say("SIOCOUTQ", ioctl(pair.there, SIOCOUTQ, &count));
    say("not acknowledged", count);
    say("recv, thrown away", recv(pair.here, NULL, 4, MSG_TRUNC));
    say("recv of the rest", recv(pair.here, text, 8, 0));
    finish(pair);
}

/* A port where nothing listens, and one where something does then. */
static void connects_again(void) {
    int listening = listener();
    struct sockaddr_in to = name_of(listening);
    close(listening);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    for (int i = 0; i < 4; i++) {
        say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
    }
    close(fd);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
    settle();
    say_poll("poll", fd, ALL, 10000);
    for (int i = 0; i < 3; i++) {
        say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
        settle();
    }
    close(fd);

    struct sockaddr none = {.sa_family = AF_UNSPEC};
    struct pair pair = connection();
    to = name_of(pair.here);
    say("disconnect", connect(pair.here, &none, sizeof none));
    struct sockaddr_in now = name_of(pair.here);
    say("the address is kept", now.sin_addr.s_addr == to.sin_addr.s_addr);
    say("write", write(pair.here, "x", 1));
    finish(pair);

    int keeper = keeper_of_port(), on = 1;
    struct sockaddr_in own = name_of(keeper);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    say("bind", bind(fd, (struct sockaddr *)&own, sizeof own));
    listening = listener();
    to = name_of(listening);
    say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
    say("disconnect", connect(fd, &none, sizeof none));
    now = name_of(fd);
    say("the bound address is kept", now.sin_addr.s_addr == own.sin_addr.s_addr);
    say("the bound port is kept", now.sin_port == own.sin_port);
    close(fd), close(keeper);
    say("disconnect a listener", connect(listening, &none, sizeof none));
    say("accept", accept(listening, NULL, NULL));
    close(listening);
}

/* -- datagrams */

struct udp_pair {
    int here, there;
    struct sockaddr_in to;
};

static struct udp_pair datagrams(void) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    struct udp_pair pair = {.here = socket(AF_INET, SOCK_DGRAM, 0),
                            .there = socket(AF_INET, SOCK_DGRAM, 0)};
    need(bind(pair.here, (struct sockaddr *)&any, sizeof any) == 0, "bind");
    need(bind(pair.there, (struct sockaddr *)&any, sizeof any) == 0, "bind");
    pair.to = name_of(pair.here);
    return pair;
}

static void send_to(const struct udp_pair *pair, const char *text, size_t len) {
    say("sendto", sendto(pair->there, text, len, 0, (struct sockaddr *)&pair->to, sizeof pair->to));
}

static void datagrams_and_sizes(void) {
    static char big[70000];
    struct udp_pair pair = datagrams();
    char text[8];
    int count = -1;
    say_poll("nothing", pair.here, POLLIN, 0);
    send_to(&pair, text, 0);
    say_poll("a datagram of nothing", pair.here, POLLIN, 10000);
    say("FIONREAD", ioctl(pair.here, FIONREAD, &count));
    say("bytes", count);
    say("recv", recv(pair.here, text, 8, MSG_DONTWAIT));
    say("recv", recv(pair.here, text, 8, MSG_DONTWAIT));
    send_to(&pair, "12345", 5);
    send_to(&pair, "123", 3);
    settle();
    ioctl(pair.here, FIONREAD, &count);
    say("bytes of the first", count);
    say("read of nothing", read(pair.here, text, 0));
    ioctl(pair.here, FIONREAD, &count);
    say("bytes of the second", count);
    say("recv", recv(pair.here, text, 8, 0));
    say("recv", recv(pair.here, text, 8, 0));
    /* Between 1472 and 65507 our stack has one packet's bytes as its limit (README.md). */
    size_t sizes[] = {1, 1472, 65508};
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        send_to(&pair, big, sizes[at]);
        say_poll("poll", pair.here, POLLIN, sizes[at] > 65507 ? 0 : 10000);
        say("recv", recv(pair.here, big, sizeof big, MSG_DONTWAIT));
    }
    close(pair.here), close(pair.there);
}

/* A datagram to a port where nothing listens comes back as an error. */
static void datagrams_refused(void) {
    struct udp_pair pair = datagrams();
    close(pair.here);
    say("connect", connect(pair.there, (struct sockaddr *)&pair.to, sizeof pair.to));
    say("send", send(pair.there, "x", 1, 0));
    settle();
    say_poll("poll", pair.there, ALL, 0);
    say("send", send(pair.there, "x", 1, 0));
    settle();
    char text[8];
    say("recv", recv(pair.there, text, 8, MSG_DONTWAIT));
    say("send", send(pair.there, "x", 1, 0));
    settle();
    say_error(pair.there);
    say_error(pair.there);
    close(pair.there);
}

static void datagrams_shut_down(void) {
    struct udp_pair pair = datagrams();
    char text[8];
    int fresh = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    need(bind(fresh, (struct sockaddr *)&any, sizeof any) == 0, "bind");
    say("shutdown, not connected", shutdown(fresh, SHUT_RDWR));
    struct sockaddr_in from = name_of(pair.there);
    say("connect", connect(fresh, (struct sockaddr *)&from, sizeof from));
    say("send", send(fresh, "x", 1, MSG_NOSIGNAL));
    say_poll("poll", fresh, ALL, 0);
    close(fresh);
    say("connect", connect(pair.here, (struct sockaddr *)&from, sizeof from));
    send_to(&pair, "x", 1);
    settle();
    say("shutdown of reading", shutdown(pair.here, SHUT_RD));
    say_poll("poll", pair.here, ALL, 0);
    say("recv", recv(pair.here, text, 8, MSG_DONTWAIT));
    say("recv", recv(pair.here, text, 8, MSG_DONTWAIT));
    say("send", send(pair.here, "x", 1, 0));
    say("shutdown of writing", shutdown(pair.here, SHUT_WR));
    say_poll("poll", pair.here, ALL, 0);
    say("send", send(pair.here, "x", 1, MSG_NOSIGNAL));
    say("recv", recv(pair.here, text, 8, 0));
    close(pair.here), close(pair.there);
}

/* A port that was chosen belongs to its connection; one that was asked for, to the socket. */
static void binds_after_connecting(void) {
    int listening = listener();
    struct sockaddr_in to = name_of(listening), nowhere = to, own = to;
    int keepers[] = {keeper_of_port(), keeper_of_port()}, on = 1;
    nowhere.sin_port = name_of(keepers[0]).sin_port;
    own.sin_port = 0;
    for (int asks = 0; asks < 2; asks++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        say("bind", bind(fd, (struct sockaddr *)&own, sizeof own));
        in_port_t port = name_of(fd).sin_port;
        say("bind again", bind(fd, (struct sockaddr *)&own, sizeof own));
        say("connect", connect(fd, (struct sockaddr *)&nowhere, sizeof nowhere));
        say("its port still", name_of(fd).sin_port == port);
        say("bind after that", bind(fd, (struct sockaddr *)&own, sizeof own));
        port = name_of(fd).sin_port;
        say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;
        int there = accept(listening, (struct sockaddr *)&peer, &len);
        say("from its port", peer.sin_port == port);
        say("bind of a connected socket", bind(fd, (struct sockaddr *)&own, sizeof own));
        struct sockaddr none = {.sa_family = AF_UNSPEC};
        say("connect to nowhere", connect(fd, &none, sizeof none));
        say("bind after that", bind(fd, (struct sockaddr *)&own, sizeof own));
        say("listen", listen(fd, 4));
        struct pair pair = {.here = connected_to(fd), .there = accept(fd, NULL, NULL)};
        say("accept", pair.there >= 0);
        finish(pair);
        close(there), close(fd);
        /* Now a port that the program asks for. */
        own.sin_port = name_of(keepers[1]).sin_port;
    }
    close(keepers[0]), close(keepers[1]), close(listening);
}

static const struct part parts[] = {
    {"resets", peer_resets},
    {"unread", peer_closes_unread},
    {"shuts", peer_shuts_and_closes},
    {"pieces", reset_behind_many_pieces},
    {"twice", shuts_again},
    {"errors", disconnects},
    {"behind", reset_after_end},
    {"takes", poll_takes_in},
    {"fresh", fresh_sockets},
    {"nothing", nothing_transferred},
    {"connects", connects_again},
    {"binds", binds_after_connecting},
    {"sizes", datagrams_and_sizes},
    {"refused", datagrams_refused},
    {"shut", datagrams_shut_down},
};

int main(int count, char **arguments) {
    signal(SIGPIPE, SIG_IGN);
    return run_parts(count, arguments, parts, sizeof parts / sizeof *parts, NULL);
}
