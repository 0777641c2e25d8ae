/* Random programs of socket calls. A seed determines the program; the output is the same with and
 * without the preload library.
 *
 * Usage: random ADDRESS SEED[+COUNT][xTHREADS] [STEPS [PAUSE [LEFT_OUT...]]]
 * COUNT: programs to run, of seeds one after another. THREADS: each runs a program of its own, and
 * all of them meet for shared steps (`threads.h`). STEPS: calls of each program. PAUSE: the time
 * in milliseconds in which what a call has sent arrives. LEFT_OUT: numbers of steps that are not
 * run, to find the shortest program. The choices of a step depend on its number alone. */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include "random.h"
#include "threads.h"

/* -- calls that make descriptors. Each step returns whether there was something to call. */

static struct slot *new_tcp(int flags) {
    struct slot *slot = pick(NONE);
    if (slot) {
        int fd = socket(AF_INET, SOCK_STREAM | flags, 0), on = 1;
        print(" socket");
        answer_slot(fd, slot, TCP, NULL);
        /* When Nagle's algorithm sends a small segment is a matter of time. */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    return slot;
}

static bool make_tcp(void) { return new_tcp(chance(60) ? SOCK_NONBLOCK : 0); }

static bool make_udp(void) {
    struct slot *slot = pick(NONE);
    if (slot) {
        int fd = socket(AF_INET, SOCK_DGRAM | (chance(60) ? SOCK_NONBLOCK : 0), 0);
        print(" socket of datagrams");
        answer_slot(fd, slot, UDP, NULL);
        if (chance(70)) {
            struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
            print(" bind");
            answer(bind(fd, (struct sockaddr *)&name, sizeof name));
        }
    }
    return slot;
}

static bool make_set(void) {
    struct slot *slot = pick(NONE);
    if (slot) {
        print(" epoll_create1");
        answer_slot(epoll_create1(0), slot, SET, NULL);
    }
    return slot;
}

static bool make_counter(void) {
    struct slot *slot = pick(NONE);
    if (slot) {
        print(" eventfd");
        answer_slot(eventfd(below(2), EFD_NONBLOCK), slot, COUNTER, NULL);
    }
    return slot;
}

static bool make_pipe(void) {
    struct slot *from = pick(NONE);
    int fds[2];
    if (!from || pipe2(fds, O_NONBLOCK)) {
        return false;
    }
    print(" pipe");
    answer_slot(fds[0], from, PIPE_IN, NULL);
    struct slot *to = pick(NONE);
    if (to) {
        answer_slot(fds[1], to, PIPE_OUT, NULL);
    } else {
        close(fds[1]);
    }
    return true;
}

/* bind(2), mostly to a port that the stack selects. */
static bool bind_one(void) {
    struct slot *slot = pick(SOCKETS), *other = pick(SOCKETS);
    if (!slot) {
        return false;
    }
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    /* The ports of connections that have ended are free after a while. */
    if (chance(15) && other->kind == slot->kind && (other->kind == UDP || is_listener(other->fd))) {
        name.sin_port = port_of(other);
    }
    /* One whose connection has ended can be bound again on Linux, unless bind(2) chose its port. */
    if (slot->kind == TCP && (slot->file->is_used || slot->file->has_listened)) {
        return false;
    }
    print(" bind [%d] %s", number(slot), name_text(slot->kind, &name));
    if (answer(bind(slot->fd, (struct sockaddr *)&name, sizeof name)) == 0) {
        slot->file->is_bound = true;
        if (name.sin_port == 0) {
            new_name(slot);
        }
    }
    return true;
}

/* listen(2), mostly of a bound socket: one that is not is bound to all addresses. */
static bool listen_one(void) {
    struct slot *slot = pick(chance(95) ? TCP : ALL);
    if (!slot || (slot->kind == TCP && port_of(slot) == 0)) {
        return false;
    }
    print(" listen [%d]", number(slot));
    answer(listen(slot->fd, BACKLOG));
    return true;
}

/* The address of another socket, or of none. */
static struct sockaddr_in some_address(int kind, struct slot **of) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    struct slot *slot = pick(kind);
    if (kind == TCP && chance(80)) {
        for (int at = 0; at < SLOTS && !is_listener(slot->fd); at++) {
            slot = slots[at].kind == TCP ? &slots[at] : slot;
        }
    }
    name.sin_port = port_of(slot);
    *of = slot;
    if (closed_port[kind == UDP] && chance(15)) {
        name.sin_port = closed_port[kind == UDP];
    }
    return name;
}

/* The listener at a port. */
static struct slot *listener_at(in_port_t port) {
    for (int at = 0; at < SLOTS; at++) {
        struct slot *slot = &slots[at];
        if (slot->kind == TCP && is_listener(slot->fd) && port_of(slot) == port) {
            return slot;
        }
    }
    return NULL;
}

static bool connect_to(struct slot *slot, struct sockaddr_in to) {
    struct slot *listening = slot->kind == TCP ? listener_at(to.sin_port) : NULL;
    if (to.sin_port == 0 || (listening && listening->file->waiting >= WAITING_MAX)) {
        return false;
    }
    print(" connect [%d] %s", number(slot), name_text(slot->kind, &to));
    bool has_name = port_of(slot) != 0;
    int result = connect(slot->fd, (struct sockaddr *)&to, sizeof to), error = errno;
    bool has_begun = result == 0 || error == EINPROGRESS;
    slot->file->is_used |= has_begun;
    if (listening && has_begun) {
        listening->file->waiting++;
    }
    if (has_begun && !has_name) {
        new_name(slot);
    }
    errno = error;
    answer(result);
    return true;
}

static bool connect_one(void) {
    struct slot *slot = pick(SOCKETS), *other;
    if (!slot) {
        return false;
    }
    if (chance(5)) {
        struct sockaddr none = {.sa_family = AF_UNSPEC};
        slot->file->has_listened |= slot->kind == TCP && is_listener(slot->fd);
        print(" connect [%d] to nowhere", number(slot));
        if (answer(connect(slot->fd, &none, sizeof none)) == 0) {
            slot->file->is_used = false;
        }
        return true;
    }
    /* The library has ENETUNREACH where a listener that was shut down connects, and the pending
     * error where Linux has EINVAL for a connection that was shut down and has ended. */
    bool has_ended = slot->file->shut && port_of(slot) == 0;
    if (slot->kind == TCP && (slot->file->has_listened || is_listener(slot->fd) || has_ended)) {
        return false;
    }
    struct sockaddr_in to = some_address(slot->kind, &other);
    return connect_to(slot, to);
}

static bool accept_from(struct slot *listening) {
    struct slot *slot = pick(NONE);
    if (!slot || would_block(listening->fd, POLLIN)) {
        return false;
    }
    struct sockaddr_in peer = {0};
    socklen_t len = sizeof peer;
    int flags = (chance(60) ? SOCK_NONBLOCK : 0) | (chance(20) ? SOCK_CLOEXEC : 0);
    print(" accept4 [%d]", number(listening));
    int fd = accept4(listening->fd, (struct sockaddr *)&peer, &len, flags);
    answer_slot(fd, slot, TCP, NULL);
    if (fd >= 0) {
        listening->file->waiting--;
        slot->file->is_used = true;
        struct sockaddr_in now;
        socklen_t size = sizeof now;
        /* Of a connection that was reset meanwhile our stacks have no address. */
        if (getpeername(fd, (struct sockaddr *)&now, &size) == 0) {
            print(" of %s", name_text(TCP, &peer));
        }
    }
    return true;
}

static bool accept_one(void) {
    struct slot *slot = pick(TCP);
    for (int at = 0; slot && at < SLOTS && !is_listener(slot->fd) && chance(95); at++) {
        slot = slots[at].kind == TCP ? &slots[at] : slot;
    }
    return slot && accept_from(slot);
}

/* A connection with both ends here, of a listener that is there or that is closed again. */
static bool make_connection(void) {
    struct slot *listening = new_tcp(0);
    if (!listening) {
        return false;
    }
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    need(bind(listening->fd, (struct sockaddr *)&name, sizeof name) == 0, "bind");
    need(listen(listening->fd, BACKLOG) == 0, "listen");
    listening->file->is_bound = true;
    new_name(listening);
    struct slot *client = new_tcp(chance(60) ? SOCK_NONBLOCK : 0);
    if (client) {
        connect_to(client, own_name(listening->fd));
        struct pollfd entry = {.fd = listening->fd, .events = POLLIN};
        need(poll(&entry, 1, 10000) == 1, "a connection");
        settle();
        accept_from(listening);
    }
    if (chance(80)) {
        print(" close [%d]", number(listening));
        close(listening->fd);
        forget(listening);
    }
    return true;
}

/* A set in another one is that under one number; the library does not follow its duplicates. */
static bool may_close(const struct slot *slot) {
    return !slot->file->is_nested || slot->file->references == 1;
}

static bool dup_one(void) {
    struct slot *from = pick(ALL), *to = pick(chance(50) ? NONE : ALL);
    if (!from || !to || (to->kind != NONE && !may_close(to))) {
        return false;
    }
    int command = below(3);
    print(" %s [%d]", to->kind != NONE ? "dup2" : command == 1 ? "F_DUPFD_CLOEXEC" : "dup",
           number(from));
    if (to->kind == NONE) {
        int fd = command == 1 ? fcntl(from->fd, F_DUPFD_CLOEXEC, 0) : dup(from->fd);
        answer_slot(fd, to, from->kind, from->file);
    } else {
        print(" [%d]", number(to));
        int fd = dup2(from->fd, to->fd);
        if (fd >= 0 && from != to) {
            struct slot source = *from;
            forget(to);
            answer_slot(fd, to, source.kind, source.file);
        }
    }
    return true;
}

/* -- calls that end something */

static bool close_one(void) {
    struct slot *slot = pick(ALL);
    if (!slot || !may_close(slot)) {
        return false;
    }
    if (slot->kind & SOCKETS) {
        in_port_t port = port_of(slot);
        if (slot->kind == TCP && chance(25)) {
            struct linger linger = {.l_onoff = 1};
            print(" linger");
            answer(setsockopt(slot->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
        }
        /* Of a port that several sockets have, others may be left. */
        if (slot->kind == UDP || is_listener(slot->fd)) {
            closed_port[slot->kind == UDP] = port;
        }
    }
    print(" close [%d]", number(slot));
    answer(close(slot->fd));
    forget(slot);
    return true;
}

static bool shutdown_one(void) {
    struct slot *slot = pick(chance(95) ? SOCKETS : ALL);
    if (!slot) {
        return false;
    }
    /* Linux keeps that for the connection that the socket begins later, and for the datagrams. */
    if (slot->kind & SOCKETS && !slot->file->is_used && !is_listener(slot->fd)
        && (slot->kind == TCP || port_of(slot) == 0)) {
        return false;
    }
    int how = below(20) ? (int)below(3) : 7;
    slot->file->has_listened |= slot->kind == TCP && is_listener(slot->fd) && how != SHUT_WR;
    print(" shutdown [%d] %d", number(slot), how);
    answer(shutdown(slot->fd, how));
    slot->file->shut |= how < 3 ? how + 1 : 0;
    return true;
}

/* -- data */

static void print_bytes(const char *bytes, long count) {
    print(" %.*s", (int)(count < 20 ? count : 20), bytes);
}

static int read_flags(void) {
    static const int flags[] = {0, 0, 0, MSG_PEEK, MSG_PEEK, MSG_DONTWAIT, MSG_TRUNC, MSG_WAITALL};
    int all = ONE_OF(flags) | (chance(10) ? MSG_DONTWAIT : 0);
    return all & MSG_WAITALL ? all | MSG_DONTWAIT : all;
}

static long read_message(struct slot *slot, char *to, size_t len, int flags) {
    struct sockaddr_in from = {0};
    struct iovec parts[] = {{.iov_base = to, .iov_len = len / 3},
                            {.iov_base = to + len / 3, .iov_len = len - len / 3}};
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from,
                             .msg_iov = parts, .msg_iovlen = 2};
    long result = answer(recvmsg(slot->fd, &message, flags));
    if (result >= 0) {
        print(" flags %#x", message.msg_flags);
        if (slot->kind == UDP) {
            print(" from %s", name_text(UDP, &from));
        }
    }
    return result;
}

static bool read_one(void) {
    static const size_t sizes[] = {1, 3, 8, 40, 2000, 20000, 0};
    static _Thread_local char to[20000];
    struct slot *slot = pick(chance(85) ? SOCKETS : SOCKETS | COUNTER | PIPE_IN);
    if (!slot) {
        return false;
    }
    size_t len = ONE_OF(sizes);
    int flags = read_flags(), call = slot->kind & SOCKETS ? below(5) : 3 + below(2);
    if (call >= 3) {
        flags = 0;
    }
    if (!(flags & MSG_DONTWAIT) && would_block(slot->fd, POLLIN)) {
        return false;
    }
    memset(to, 0, sizeof to);
    struct sockaddr_in from = {0};
    socklen_t from_len = sizeof from;
    struct iovec parts[] = {{.iov_base = to, .iov_len = len / 2},
                            {.iov_base = to + len / 2, .iov_len = len - len / 2}};
    static const char *const calls[] = {"recv", "recvfrom", "recvmsg", "read", "readv"};
    print(" %s [%d] %zu %#x", calls[call], number(slot), len, flags);
    long result = -1;
    switch (call) {
    case 0:
        result = answer(recv(slot->fd, to, len, flags));
        break;
    case 1:
        result = answer(recvfrom(slot->fd, to, len, flags, (struct sockaddr *)&from, &from_len));
        if (result >= 0) {
            print(" from %s", slot->kind == UDP ? name_text(UDP, &from) : from_len ? "?" : "-");
        }
        break;
    case 2:
        result = read_message(slot, to, len, flags);
        break;
    case 3:
        result = answer(read(slot->fd, to, len));
        break;
    default:
        result = answer(readv(slot->fd, parts, 2));
    }
    if (slot->kind != COUNTER) {
        print_bytes(to, result);
    }
    return true;
}

static bool write_one(void) {
    static const size_t sizes[] = {1, 3, 8, 40, 1000, 1400, 0};
    char from[1400];
    struct slot *slot = pick(chance(85) ? SOCKETS : SOCKETS | COUNTER | PIPE_OUT), *other = NULL;
    if (!slot || slot->file->writes >= WRITES_MAX || would_block(slot->fd, POLLOUT)) {
        return false;
    }
    size_t len = ONE_OF(sizes), letter = below(26);
    for (size_t at = 0; at < len; at++) {
        from[at] = (char)('a' + (letter + at) % 26);
    }
    struct iovec parts[] = {{.iov_base = from, .iov_len = len / 2},
                            {.iov_base = from + len / 2, .iov_len = len - len / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    static const char *const calls[] = {"send", "sendto", "sendmsg", "write", "writev"};
    int call = slot->kind & SOCKETS ? below(5) : 3 + below(2);
    int flags = (chance(40) ? MSG_NOSIGNAL : 0) | (chance(20) ? MSG_DONTWAIT : 0);
    struct sockaddr_in to;
    socklen_t to_len = 0;
    if (slot->kind == UDP && (call == 1 || call == 2)) {
        to = some_address(UDP, &other);
        to_len = to.sin_port ? sizeof to : 0;
        message.msg_name = to_len ? &to : NULL;
        message.msg_namelen = to_len;
    }
    /* It fails and has a port, which is another one on the stack than in the kernel before. */
    if (slot->kind == UDP && to_len == 0 && port_of(slot) == 0) {
        return false;
    }
    print(" %s [%d] %zu %#x %s", calls[call], number(slot), len, call < 3 ? flags : 0,
           to_len ? name_text(UDP, &to) : "");
    slot->file->writes++;
    bool has_name = slot->kind != UDP || port_of(slot) != 0;
    switch (call) {
    case 0:
        answer(send(slot->fd, from, len, flags));
        break;
    case 1:
        answer(sendto(slot->fd, from, len, flags, to_len ? (struct sockaddr *)&to : NULL, to_len));
        break;
    case 2:
        answer(sendmsg(slot->fd, &message, flags));
        break;
    case 3:
        answer(write(slot->fd, from, len));
        break;
    default:
        answer(writev(slot->fd, parts, 2));
    }
    if (!has_name && port_of(slot) != 0) {
        new_name(slot);
    }
    if (signals) {
        print(" SIGPIPE");
        signals = 0;
    }
    return true;
}

/* -- names, flags and options */

static bool get_name(void) {
    struct slot *slot = pick(chance(95) ? SOCKETS : ALL);
    if (!slot) {
        return false;
    }
    struct sockaddr_in name = {0};
    socklen_t len = sizeof name;
    bool is_own = chance(50);
    print(" %s [%d]", is_own ? "getsockname" : "getpeername", number(slot));
    int result = is_own ? getsockname(slot->fd, (struct sockaddr *)&name, &len)
                        : getpeername(slot->fd, (struct sockaddr *)&name, &len);
    if (answer(result) == 0 && (!is_own || port_of(slot))) {
        print(" %s %d", name_text(slot->kind, &name), len);
    }
    return true;
}

static bool change_flags(void) {
    struct slot *slot = pick(chance(90) ? SOCKETS : ALL);
    if (!slot) {
        return false;
    }
    if (chance(30)) {
        print(" F_SETFD [%d]", number(slot));
        answer(fcntl(slot->fd, F_SETFD, chance(50) ? FD_CLOEXEC : 0));
        answer(fcntl(slot->fd, F_GETFD));
        return true;
    }
    int flags = fcntl(slot->fd, F_GETFL);
    print(" F_GETFL [%d] %#x F_SETFL", number(slot), flags);
    /* Counters and pipes stay nonblocking: calls on them are not checked before. */
    answer(fcntl(slot->fd, F_SETFL, slot->kind & SOCKETS ? flags ^ O_NONBLOCK : flags));
    return true;
}

static bool count_bytes(void) {
    struct slot *slot = pick(SOCKETS | PIPE_IN);
    int count = -1;
    if (!slot) {
        return false;
    }
    print(" FIONREAD [%d]", number(slot));
    answer(ioctl(slot->fd, FIONREAD, &count));
    print(" %d", count);
    return true;
}

struct option {
    const char *name;
    int level, option;
    /* Values that are set; 0 as the limit: it is read only. */
    int least, limit;
};

static const struct option options[] = {
    {"SO_ERROR", SOL_SOCKET, SO_ERROR, 0, 0},
    {"SO_ERROR", SOL_SOCKET, SO_ERROR, 0, 0},
    {"SO_TYPE", SOL_SOCKET, SO_TYPE, 0, 0},
    {"SO_DOMAIN", SOL_SOCKET, SO_DOMAIN, 0, 0},
    {"SO_PROTOCOL", SOL_SOCKET, SO_PROTOCOL, 0, 0},
    {"SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN, 0, 0},
    {"SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR, 0, 2},
    {"SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE, 0, 2},
    {"SO_BROADCAST", SOL_SOCKET, SO_BROADCAST, 0, 2},
    {"SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE, 0, 2},
    {"SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, 1, 10},
    {"TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE, 1, 100},
    {"TCP_KEEPINTVL", IPPROTO_TCP, TCP_KEEPINTVL, 1, 100},
    {"TCP_KEEPCNT", IPPROTO_TCP, TCP_KEEPCNT, 1, 100},
    {"TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT, 20000, 10000},
    {"TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY, 1, 1},
    {"IP_TOS", IPPROTO_IP, IP_TOS, 0, 16},
    {"IP_TTL", IPPROTO_IP, IP_TTL, 1, 255},
};

static bool use_option(void) {
    struct slot *slot = pick(chance(95) ? SOCKETS : ALL);
    if (!slot) {
        return false;
    }
    const struct option *option = &ONE_OF(options);
    int value = option->least + (option->limit ? (int)below((uint32_t)option->limit) : 0);
    socklen_t len = sizeof value;
    if (option->limit && chance(50)) {
        print(" setsockopt [%d] %s %d", number(slot), option->name, value);
        answer(setsockopt(slot->fd, option->level, option->option, &value, len));
        return true;
    }
    print(" getsockopt [%d] %s", number(slot), option->name);
    if (answer(getsockopt(slot->fd, option->level, option->option, &value, &len)) == 0) {
        const char *error = option->option == SO_ERROR && option->level == SOL_SOCKET && value
                                ? strerrorname_np(value)
                                : "";
        print(" %d %s", *error ? 0 : value, error);
    }
    return true;
}

/* -- waiting */

static bool poll_all(void) {
    static const short events[] = {POLLIN, POLLOUT, POLLIN | POLLOUT, POLLIN | POLLRDHUP, 0,
                                   POLLIN | POLLOUT | POLLRDHUP | POLLPRI};
    struct pollfd entries[SLOTS];
    int places[SLOTS], count = 0;
    for (int at = 0; at < SLOTS; at++) {
        short wanted = ONE_OF(events);
        if (chance(80) && slots[at].kind != NONE) {
            places[count] = at;
            entries[count++] = (struct pollfd){.fd = slots[at].fd, .events = wanted};
        }
    }
    print(" poll");
    answer(poll(entries, count, chance(80) ? 0 : 5));
    for (int at = 0; at < count; at++) {
        uint32_t events = common_events(slots[places[at]].file, (uint32_t)entries[at].revents);
        print(" [%d]%x/%x", places[at], events, entries[at].events);
    }
    return true;
}

static bool select_all(void) {
    fd_set sets[3];
    int most = -1;
    for (int set = 0; set < 3; set++) {
        FD_ZERO(&sets[set]);
        for (int at = 0; at < SLOTS; at++) {
            if (chance(50) && slots[at].kind != NONE) {
                FD_SET(slots[at].fd, &sets[set]);
                most = slots[at].fd > most ? slots[at].fd : most;
            }
        }
    }
    struct timeval time = {.tv_usec = chance(80) ? 0 : 5000};
    print(" select");
    answer(select(most + 1, &sets[0], chance(70) ? &sets[1] : NULL, &sets[2], &time));
    for (int at = 0; at < SLOTS; at++) {
        if (slots[at].kind != NONE) {
            int fd = slots[at].fd;
            print(" [%d]%s%s%s", at, FD_ISSET(fd, &sets[0]) ? "r" : "",
                   FD_ISSET(fd, &sets[1]) ? "w" : "", FD_ISSET(fd, &sets[2]) ? "x" : "");
        }
    }
    return true;
}

/* In the data of an event: its member reports edges, or one event; its file. */
enum { ONCE_MARK = 256, FILE_MARK = 512 };
#define ONCE ((uint32_t)EPOLLET | EPOLLONESHOT)

static bool control_set(void) {
    static const uint32_t events[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP,
                                      0, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI};
    static const uint32_t ways[] = {0, 0, EPOLLET, EPOLLET, EPOLLONESHOT};
    struct slot *set = pick(chance(97) ? SET : ALL), *slot = pick(chance(75) ? SOCKETS : ALL);
    if (!set || !slot) {
        return false;
    }
    /* An edge that was used up before the path of its socket is decided comes again. */
    bool has_path = !(slot->kind & SOCKETS) || slot->file->is_used || slot->file->has_listened
                    || is_listener(slot->fd) || (slot->kind == UDP && port_of(slot) != 0);
    int call = below(6);
    int op = call < 4 ? EPOLL_CTL_ADD : call == 4 ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
    struct epoll_event event = {.events = ONE_OF(events) | ONE_OF(ways)};
    event.events &= has_path ? ~0u : ~ONCE;
    event.data.u64 = (uint64_t)number(slot) | (event.events & ONCE ? ONCE_MARK : 0)
                     | (uint64_t)slot->file->id * FILE_MARK;
    print(" epoll_ctl [%d] %d [%d] %#x", number(set), op, number(slot), event.events);
    int fd = chance(2) ? -1 : slot->fd;
    if (answer(epoll_ctl(set->fd, op, fd, &event)) == 0) {
        slot->file->is_nested |= slot->kind == SET;
    }
    return true;
}

static int in_order(const void *one, const void *other) {
    const struct epoll_event *a = one, *b = other;
    uint64_t first = a->data.u64 << 32 | a->events, second = b->data.u64 << 32 | b->events;
    return first < second ? -1 : first > second;
}

static bool wait_for_set(void) {
    struct slot *set = pick(chance(98) ? SET : ALL);
    struct epoll_event events[64];
    if (!set) {
        return false;
    }
    print(" epoll_wait [%d]", number(set));
    int count = epoll_wait(set->fd, events, 64, chance(80) ? 0 : 5);
    answer(count);
    if (count > 0) {
        qsort(events, count, sizeof *events, in_order);
    }
    for (int at = 0; at < count; at++) {
        int slot = (int)(events[at].data.u64 % ONCE_MARK);
        bool is_same = slots[slot].kind != NONE
                       && slots[slot].file->id == events[at].data.u64 / FILE_MARK;
        print(" [%d]%x", slot, common_events(is_same ? slots[slot].file : NULL, events[at].events));
        /* How many edges follow behind the end of both directions differs, and that of a socket
         * before its path is decided is forgotten with the decision. */
        if (events[at].events & EPOLLHUP && events[at].data.u64 & ONCE_MARK) {
            epoll_ctl(set->fd, EPOLL_CTL_DEL, slots[slot].fd, NULL);
        }
    }
    return true;
}

/* -- programs */

/* One of so many steps is shared. */
enum { SHARED_EVERY = 8 };

static const struct {
    bool (*run)(void);
    uint32_t weight;
} calls[] = {
    {make_connection, 6}, {make_tcp, 4},     {make_udp, 4},    {make_set, 3},
    {make_counter, 1},    {make_pipe, 1},    {bind_one, 4},    {listen_one, 4},
    {connect_one, 6},     {accept_one, 5},   {dup_one, 4},     {close_one, 6},
    {shutdown_one, 4},    {read_one, 14},    {write_one, 14},  {get_name, 3},
    {change_flags, 3},    {count_bytes, 3},  {use_option, 8},  {poll_all, 6},
    {select_all, 4},      {control_set, 12}, {wait_for_set, 12},
};

static void run_step(void) {
    uint32_t sum = 0;
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) {
        sum += calls[at].weight;
    }
    /* Not every call can be made in every state. */
    for (int tries = 0; tries < 20; tries++) {
        uint32_t choice = below(sum);
        size_t at = 0;
        while (choice >= calls[at].weight) {
            choice -= calls[at++].weight;
        }
        if (calls[at].run()) {
            return;
        }
    }
}

static bool is_left_out(int step, int count, char **left_out) {
    for (int at = 0; at < count; at++) {
        if (atoi(left_out[at]) == step) {
            return true;
        }
    }
    return false;
}

/* What each thread of a program runs. */
struct program {
    uint64_t seed;
    int steps, left_out_count;
    char **left_out;
};

/* A thread of a program, and its text. */
struct thread {
    const struct program *program;
    pthread_t id;
    int number;
    char *text;
    size_t len;
};

static struct thread threads[THREADS_MAX];

/* A program that does not end shows how far it is. */
static void show_texts(int signal) {
    for (int at = 0; at < thread_count; at++) {
        if (threads[at].text && write(1, threads[at].text, threads[at].len) < 0) {
            break;
        }
    }
    need(false, signal == SIGALRM ? "it does not end" : "it ends");
}

static void run_steps(const struct program *program, int number) {
    uint64_t seed = program->seed + (uint64_t)number * 1000000007;
    name_count = 0;
    closed_port[0] = closed_port[1] = 0;
    for (int step = 0; step < program->steps; step++) {
        bool is_shared = thread_count > 1 && step % SHARED_EVERY == SHARED_EVERY - 1;
        int own = is_shared ? step : number * STEPS_MAX + step;
        if (is_left_out(own, program->left_out_count, program->left_out)) {
            continue;
        }
        state = ((is_shared ? program->seed : seed) << 20) + (uint64_t)step * 0x632be59bd9b4e019;
        print("%d:", own);
        if (is_shared) {
            role = (number + step / SHARED_EVERY) % thread_count;
            run_shared_step();
        } else if (step < 3) {
            step == 0 ? make_set() : make_connection();
        } else {
            run_step();
        }
        print("\n");
        fflush(out);
        settle();
        disturb();
    }
    for (int at = 0; at < SLOTS; at++) {
        if (slots[at].kind != NONE) {
            close(slots[at].fd);
            forget(&slots[at]);
        }
    }
}

static void *run_thread(void *argument) {
    struct thread *thread = argument;
    out = open_memstream(&thread->text, &thread->len);
    need(out != NULL, "open_memstream");
    disturbed = thread->program->seed + (uint64_t)thread->number;
    fprintf(out, "thread %d\n", thread->number);
    run_steps(thread->program, thread->number);
    fclose(out);
    return NULL;
}

static void run_program(const struct program *program) {
    alarm(60);
    printf("seed %llu\n", (unsigned long long)program->seed);
    disturbance = (int)(program->seed % 3);
    if (thread_count == 1) {
        out = stdout;
        run_steps(program, 0);
        return;
    }
    fflush(stdout);
    pthread_barrier_init(&barrier, NULL, (unsigned)thread_count);
    for (int at = 0; at < thread_count; at++) {
        threads[at] = (struct thread){.program = program, .number = at};
        int error = pthread_create(&threads[at].id, NULL, run_thread, &threads[at]);
        need(error == 0, "pthread_create");
    }
    for (int at = 0; at < thread_count; at++) {
        pthread_join(threads[at].id, NULL);
    }
    for (int at = 0; at < thread_count; at++) {
        fputs(threads[at].text, stdout);
        free(threads[at].text);
        threads[at].text = NULL;
    }
    pthread_barrier_destroy(&barrier);
}

static void note_signal(int signal) { signals = signal; }

int main(int count, char **arguments) {
    need(count > 2, "an address and a seed");
    host = arguments[1];
    struct sigaction action = {.sa_handler = note_signal};
    sigaction(SIGPIPE, &action, NULL);
    action.sa_handler = show_texts;
    sigaction(SIGALRM, &action, NULL);
    char *rest;
    uint64_t seed = strtoull(arguments[2], &rest, 10);
    int programs = *rest == '+' ? (int)strtol(rest + 1, &rest, 10) : 1;
    thread_count = *rest == 'x' ? atoi(rest + 1) : 1;
    need(thread_count > 0 && thread_count <= THREADS_MAX, "the number of threads");
    if (count > 4) {
        pause_ns = atol(arguments[4]) * 1000000;
    }
    struct program program = {
        .steps = count > 3 ? atoi(arguments[3]) : 40,
        .left_out_count = count > 5 ? count - 5 : 0,
        .left_out = arguments + 5,
    };
    for (int at = 0; at < programs; at++) {
        program.seed = seed + (uint64_t)at;
        run_program(&program);
    }
    puts("end");
    return 0;
}
