/* Steps of random programs (`random.c`) that all threads of a program run together. Their outcome
 * does not depend on the order in which the threads run: threads note what they see, and the notes
 * are sorted. */
#pragma once
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>

#include "random.h"

enum { THREADS_MAX = 4, NOTES_MAX = 256, NOTE_LEN = 64 };

static int thread_count;
static pthread_barrier_t barrier;
/* The part of a thread in a step: 0 prepares and ends it. */
static _Thread_local int role;
/* How often a program gives the processor away between its calls: by the seed of the program. */
static int disturbance;
static _Thread_local uint64_t disturbed;

/* Lets other threads run, at times that change the order of calls. */
static inline void disturb(void) {
    uint64_t own = state;
    state = disturbed;
    uint32_t choice = below(100);
    uint32_t time_us = chance(20) ? 2000 : below(200);
    disturbed = state;
    state = own;
    if (disturbance > 0 && choice < 25) {
        sched_yield();
    } else if (disturbance > 1 && choice < 45) {
        struct timespec pause = {.tv_nsec = time_us * 1000};
        nanosleep(&pause, NULL);
    }
}

static inline void meet(void) {
    disturb();
    pthread_barrier_wait(&barrier);
    disturb();
}

/* -- notes */

static char notes[NOTES_MAX][NOTE_LEN];
static int note_count;
static pthread_mutex_t note_lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((format(printf, 1, 2))) static inline void note(const char *format, ...) {
    va_list values;
    va_start(values, format);
    pthread_mutex_lock(&note_lock);
    if (note_count < NOTES_MAX) {
        vsnprintf(notes[note_count++], NOTE_LEN, format, values);
    }
    pthread_mutex_unlock(&note_lock);
    va_end(values);
}

static inline const char *error_name(void) { return strerrorname_np(errno); }

static inline int by_text(const void *one, const void *other) { return strcmp(one, other); }

/* All threads are done; one prints what they have noted. */
static inline void print_notes(void) {
    meet();
    if (role == 0) {
        qsort(notes, note_count, NOTE_LEN, by_text);
        for (int at = 0; at < note_count; at++) {
            print(" %s;", notes[at]);
        }
        note_count = 0;
    }
    meet();
}

/* Waits for other threads, without a call of the library, for at most 20 s. */
static inline bool reaches(_Atomic long *count, long value) {
    for (int tries = 0; tries < 20000 && *count < value; tries++) {
        pause_ms(1);
    }
    return *count >= value;
}

/* Another thread has begun to wait by then. */
static inline void pause_for_waits(void) { pause_ms(pause_ns / 1000000 * 4); }

/* Waits until a thread of this process sleeps, for at most 20 s. */
static inline void await_sleep(long thread) {
    char path[64], text[64], state = 'R';
    snprintf(path, sizeof path, "/proc/self/task/%ld/stat", thread);
    for (int tries = 0; tries < 20000 && state != 'S'; tries++) {
        FILE *stat = fopen(path, "r");
        int fields = stat ? fscanf(stat, "%*d %63s %c", text, &state) : 0;
        if (stat) {
            fclose(stat);
        }
        need(fields == 2, "the state of a thread");
        pause_ms(1);
    }
}

static inline void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

/* -- ways to wait for a descriptor */

enum wait_call { WAIT_POLL, WAIT_SELECT, WAIT_SET, WAIT_CALLS };

/* Waits until a call on `fd` does not block, and returns the events. */
static inline uint32_t wait_by(enum wait_call call, int fd, int timeout_ms) {
    struct pollfd entry = {.fd = fd, .events = POLLIN | POLLRDHUP};
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
    struct timeval time = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    fd_set reads;
    int set, result;
    switch (call) {
    case WAIT_POLL:
        result = poll(&entry, 1, timeout_ms);
        return result < 0 ? (uint32_t)result : (uint32_t)entry.revents;
    case WAIT_SELECT:
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        return (uint32_t)select(fd + 1, &reads, NULL, NULL, timeout_ms < 0 ? NULL : &time);
    default:
        set = epoll_create1(0);
        need(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
        result = epoll_wait(set, &event, 1, timeout_ms);
        int error = errno;
        close(set);
        errno = error;
        return result < 0 ? (uint32_t)result : result ? event.events : 0;
    }
}

/* -- bytes of one connection, written and read by threads */

static _Atomic long totals[2], sums[2];

static void write_total(int fd, long total) {
    char bytes[4000];
    long sum = 0;
    for (long done = 0; done < total;) {
        long len = 1 + below(chance(70) ? 200 : sizeof bytes);
        len = len < total - done ? len : total - done;
        for (long at = 0; at < len; at++) {
            bytes[at] = (char)((done + at) % 101);
        }
        struct iovec parts[] = {{.iov_base = bytes, .iov_len = (size_t)len / 2},
                                {.iov_base = bytes + len / 2, .iov_len = (size_t)(len - len / 2)}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        int call = below(4);
        ssize_t part = call == 0   ? write(fd, bytes, (size_t)len)
                       : call == 1 ? send(fd, bytes, (size_t)len, 0)
                       : call == 2 ? writev(fd, parts, 2)
                                   : sendmsg(fd, &message, MSG_NOSIGNAL);
        need(part > 0, "a write");
        for (long at = 0; at < part; at++) {
            sum += (done + at) % 101;
        }
        done += part;
        disturb();
    }
    note("written %ld sum %ld", total, sum);
    note("shutdown %d", shutdown(fd, SHUT_WR));
}

/* Reads to the end, perhaps as one of several readers. */
static void read_total(int fd, int direction) {
    static _Thread_local char bytes[20000];
    enum wait_call wait = below(WAIT_CALLS + 1);
    while (true) {
        size_t len = 1 + below(chance(70) ? 300 : sizeof bytes);
        if (wait < WAIT_CALLS) {
            wait_by(wait, fd, -1);
        }
        ssize_t part = recv(fd, bytes, len, wait < WAIT_CALLS ? MSG_DONTWAIT : 0);
        if (part < 0 && errno == EAGAIN && wait < WAIT_CALLS) {
            continue;
        }
        need(part >= 0, "a read");
        if (part == 0) {
            return;
        }
        long sum = 0;
        for (long at = 0; at < part; at++) {
            sum += bytes[at];
        }
        totals[direction] += part;
        sums[direction] += sum;
        disturb();
    }
}

static void transfer(void) {
    static struct pair pair;
    long there = 1 + below(chance(30) ? 300000 : 5000), back = 1 + below(5000);
    bool is_two_way = thread_count == 4;
    if (role == 0) {
        pair = connection();
        totals[0] = totals[1] = sums[0] = sums[1] = 0;
    }
    meet();
    state += (uint64_t)role << 40;
    if (role == 0) {
        write_total(pair.here, there);
    } else if (role == 1 || !is_two_way) {
        read_total(pair.there, 0);
    } else if (role == 2) {
        write_total(pair.there, back);
    } else {
        read_total(pair.here, 1);
    }
    meet();
    if (role == 0) {
        print(" transfer: read %ld sum %ld, back %ld sum %ld;", totals[0], sums[0], totals[1],
              sums[1]);
        finish(pair);
    }
    print_notes();
}

/* -- a listener of several threads */

static void accept_until_end(int listening, enum wait_call wait, int shared_set) {
    long ending = 0;
    while (ending == 0) {
        struct epoll_event event;
        if (shared_set >= 0) {
            need(epoll_wait(shared_set, &event, 1, -1) == 1, "epoll_wait");
        } else if (wait < WAIT_CALLS) {
            wait_by(wait, listening, -1);
        }
        disturb();
        int fd = accept4(listening, NULL, NULL, chance(50) ? SOCK_CLOEXEC : 0);
        if (fd < 0) {
            ending = errno == EAGAIN ? 0 : errno;
            continue;
        }
        char byte = 0;
        need(read(fd, &byte, 1) == 1, "the number of a connection");
        note("accepted %2d", byte);
        disturb();
        need(write(fd, &byte, 1) == 1, "an answer");
        need(read(fd, &byte, 1) == 0, "the end of a connection");
        close(fd);
    }
    note("accept ends %s", strerrorname_np((int)ending));
}

static void accept_all(void) {
    static int listening, set;
    bool is_blocking = chance(40), has_set = !is_blocking && chance(50);
    int connections = 1 + (int)below(20), burst = 1 + (int)below(8);
    if (role == 0) {
        listening = listener();
        set = has_set ? epoll_create1(0) : -1;
        struct epoll_event event = {.events = EPOLLIN};
        if (!is_blocking) {
            set_nonblocking(listening);
        }
        need(!has_set || epoll_ctl(set, EPOLL_CTL_ADD, listening, &event) == 0, "epoll_ctl");
    }
    meet();
    state += (uint64_t)role << 40;
    if (role > 0) {
        accept_until_end(listening, is_blocking ? WAIT_CALLS : below(WAIT_CALLS), set);
    } else {
        int fds[8];
        for (int done = 0; done < connections;) {
            int count = burst < connections - done ? burst : connections - done;
            for (int at = 0; at < count; at++) {
                char byte = (char)(done + at);
                fds[at] = connected_to(listening);
                disturb();
                need(write(fds[at], &byte, 1) == 1, "write");
            }
            for (int at = 0; at < count; at++) {
                char byte = 0;
                need(read(fds[at], &byte, 1) == 1, "read");
                need(byte == done + at, "its own answer");
                close(fds[at]);
            }
            done += count;
        }
        print(" accept by threads: shutdown %d;", shutdown(listening, chance(50) ? 0 : 2));
    }
    print_notes();
    if (role == 0) {
        close(listening);
        if (has_set) {
            close(set);
        }
    }
}

/* -- a set that one thread fills and others wait for */

enum { MEMBERS_MAX = 8, STOP = 99 };
enum set_mode { ONCE_ONLY, REARMED, EDGES, LEVELS, SET_MODES };

struct member {
    /* The end in the set, and the one that is written to. */
    int in, out;
    bool is_counter;
    _Atomic long bytes;
};

static struct {
    int fd, stop, count, messages;
    enum set_mode mode;
    struct member members[MEMBERS_MAX];
    _Atomic long seen;
} filled;

static struct member new_member(uint32_t kind) {
    int fds[2];
    struct pair pair;
    switch (kind) {
    case 0:
        need(pipe2(fds, O_NONBLOCK) == 0, "pipe2");
        return (struct member){.in = fds[0], .out = fds[1]};
    case 1:
        fds[0] = eventfd(0, EFD_NONBLOCK);
        return (struct member){.in = fds[0], .out = dup(fds[0]), .is_counter = true};
    default:
        pair = connection();
        set_nonblocking(pair.there);
        return (struct member){.in = pair.there, .out = pair.here};
    }
}

static uint32_t member_events(void) {
    static const uint32_t ways[] = {EPOLLONESHOT, EPOLLONESHOT, EPOLLET, 0};
    return EPOLLIN | ways[filled.mode];
}

static void add_member(int at) {
    struct epoll_event event = {.events = member_events(), .data.u32 = (uint32_t)at};
    need(epoll_ctl(filled.fd, EPOLL_CTL_ADD, filled.members[at].in, &event) == 0, "epoll_ctl");
}

/* Reads what is there: a message is one byte, or one of a counter. */
static long drain_member(struct member *member, bool is_all) {
    union {
        uint64_t number;
        char bytes[8];
    } to;
    long total = 0;
    ssize_t part;
    do {
        part = read(member->in, to.bytes, sizeof to);
        need(part > 0 || errno == EAGAIN, "a member's bytes");
        total += part <= 0 ? 0 : member->is_counter ? (long)to.number : part;
        disturb();
    } while (is_all && part > 0);
    return total;
}

static void note_event(struct epoll_event event) {
    struct member *member = &filled.members[event.data.u32];
    if (filled.mode == ONCE_ONLY) {
        note("member %d events %x", event.data.u32, event.events);
        filled.seen++;
        return;
    }
    need(event.events == EPOLLIN, "other events");
    long bytes = drain_member(member, filled.mode == EDGES);
    member->bytes += bytes;
    if (filled.mode == REARMED) {
        event.events = member_events();
        need(epoll_ctl(filled.fd, EPOLL_CTL_MOD, member->in, &event) == 0, "epoll_ctl");
    }
    filled.seen += bytes;
}

static void wait_for_members(void) {
    int most = 1 + (int)below(3);
    while (true) {
        struct epoll_event events[3];
        int count = epoll_wait(filled.fd, events, most, -1);
        need(count > 0, "epoll_wait");
        for (int at = 0; at < count; at++) {
            if (events[at].data.u32 == STOP) {
                return;
            }
            disturb();
            note_event(events[at]);
        }
    }
}

static void fill_set(void) {
    int late = (int)below((uint32_t)filled.count + 1);
    long expected = (long)filled.count * filled.messages;
    for (int at = late; at < filled.count; at++) {
        add_member(at);
    }
    meet();
    for (int at = 0; at < late; at++) {
        add_member(at);
        disturb();
    }
    for (int message = 0; message < filled.messages; message++) {
        for (int at = 0; at < filled.count; at++) {
            const struct member *member = &filled.members[(at + message) % filled.count];
            uint64_t one = 1;
            ssize_t len = member->is_counter ? sizeof one : 1;
            need(write(member->out, &one, (size_t)len) == len, "write");
            disturb();
        }
    }
    bool is_seen = reaches(&filled.seen, expected);
    pause_ms(1);
    print(" set of threads: mode %d all seen %d %s;", filled.mode, is_seen,
          filled.seen == expected ? "once" : "not once");
    uint64_t one = 1;
    need(write(filled.stop, &one, sizeof one) == sizeof one, "write");
}

static void wait_by_threads(void) {
    if (role == 0) {
        filled.mode = below(SET_MODES);
        filled.fd = epoll_create1(0);
        filled.stop = eventfd(0, EFD_NONBLOCK);
        filled.count = 1 + (int)below(MEMBERS_MAX);
        filled.messages = filled.mode == ONCE_ONLY ? 1 : 1 + (int)below(20);
        filled.seen = 0;
        for (int at = 0; at < filled.count; at++) {
            struct member member = new_member(below(5));
            filled.members[at] = member;
        }
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = STOP};
        need(epoll_ctl(filled.fd, EPOLL_CTL_ADD, filled.stop, &event) == 0, "epoll_ctl");
        fill_set();
    } else {
        meet();
        state += (uint64_t)role << 40;
        wait_for_members();
    }
    meet();
    if (role == 0) {
        for (int at = 0; at < filled.count; at++) {
            note("member %d bytes %ld", at, filled.members[at].bytes);
            close(filled.members[at].in);
            close(filled.members[at].out);
        }
        close(filled.stop);
        close(filled.fd);
    }
    print_notes();
}

/* -- waits that another thread ends */

enum wait_kind { RECV, READ, RECVMSG, POLL, SELECT, SET_WAIT, WRITE, ACCEPT, RECVFROM, WAIT_KINDS };
enum end_kind {
    SHUT_READS,
    SHUT_BOTH,
    SIGNAL,
    SIGNAL_RESTARTS,
    CLOSE_OWN,
    REPLACE_OWN,
    PEER_WRITES,
    PEER_SHUTS,
    PEER_CLOSES,
    PEER_RESETS,
    END_KINDS
};

static struct {
    enum wait_kind wait;
    enum end_kind end;
    struct pair pair;
    pthread_t waiter;
    _Atomic long thread, has_ended;
} ended;

static void note_signal_of_wait(int signal) { (void)signal; }

static void wait_for_end(void) {
    char bytes[4000] = {0};
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int fd = ended.pair.here;
    long result;
    ended.thread = gettid();
    switch (ended.wait) {
    case RECV:
        result = recv(fd, bytes, sizeof bytes, 0);
        break;
    case READ:
        result = read(fd, bytes, sizeof bytes);
        break;
    case RECVMSG:
        result = recvmsg(fd, &message, 0);
        break;
    case ACCEPT:
        result = accept(fd, NULL, NULL);
        if (result >= 0) {
            close((int)result);
            result = 0;
        }
        break;
    case RECVFROM:
        result = recvfrom(fd, bytes, sizeof bytes, 0, NULL, NULL);
        break;
    case WRITE:
        do {
            result = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        } while (result > 0);
        break;
    default:
        result = (int)wait_by(ended.wait - POLL, fd, -1);
    }
    /* On Linux the call of a thread goes on with the file of a number that another thread closes;
     * the library ends it with EBADF. */
    if (ended.end == CLOSE_OWN || ended.end == REPLACE_OWN) {
        note("ends");
    } else {
        note("ends with %ld %s", result, result < 0 ? error_name() : "");
    }
    ended.has_ended = 1;
}

/* A datagram, a connection or bytes reach the waiting thread. */
static void satisfy_wait(struct sockaddr_in to) {
    if (ended.wait == ACCEPT) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fd, (struct sockaddr *)&to, sizeof to);
        reaches(&ended.has_ended, 1);
        close(fd);
    } else if (ended.wait == RECVFROM) {
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        sendto(fd, "text", 4, 0, (struct sockaddr *)&to, sizeof to);
        close(fd);
    } else {
        send(ended.pair.there, "text", 4, MSG_NOSIGNAL);
    }
    reaches(&ended.has_ended, 1);
}

static void end_wait(void) {
    struct linger linger = {.l_onoff = 1};
    struct sockaddr_in name = own_name(ended.pair.here);
    int other = -1;
    reaches(&ended.thread, 1);
    await_sleep(ended.thread);
    pause_for_waits();
    switch (ended.end) {
    case SHUT_READS:
        note("shutdown %d", shutdown(ended.pair.here, ended.wait == WRITE ? SHUT_WR : SHUT_RD));
        break;
    case SHUT_BOTH:
        note("shutdown %d", shutdown(ended.pair.here, SHUT_RDWR));
        break;
    case SIGNAL:
    case SIGNAL_RESTARTS:
        for (int count = 0; count < 3 || (ended.end == SIGNAL && !ended.has_ended); count++) {
            pthread_kill(ended.waiter, SIGUSR1);
            pause_ms(1);
        }
        satisfy_wait(name);
        break;
    case CLOSE_OWN:
        note("close %d", close(ended.pair.here));
        ended.pair.here = -1;
        satisfy_wait(name);
        break;
    case REPLACE_OWN:
        other = eventfd(0, EFD_NONBLOCK);
        note("dup2 %d", dup2(other, ended.pair.here) == ended.pair.here);
        close(other);
        satisfy_wait(name);
        break;
    case PEER_WRITES:
        satisfy_wait(name);
        break;
    case PEER_SHUTS:
        note("shutdown %d", shutdown(ended.pair.there, SHUT_WR));
        break;
    case PEER_RESETS:
        setsockopt(ended.pair.there, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        /* fall through */
    default:
        close(ended.pair.there);
        ended.pair.there = -1;
    }
}

/* Whether the end reaches that wait; the rest waits for ever, or is a matter of time. */
static bool ends(enum wait_kind wait, enum end_kind end) {
    switch (wait) {
    case ACCEPT:
        return end <= PEER_WRITES;
    case RECVFROM:
        return end >= SIGNAL && end <= PEER_WRITES;
    case WRITE:
        return end <= SHUT_BOTH || end >= PEER_CLOSES;
    case POLL:
    case SELECT:
    case SET_WAIT:
        return end <= SIGNAL || end >= PEER_WRITES;
    default:
        return true;
    }
}

static void end_waits(void) {
    enum wait_kind wait = below(WAIT_KINDS);
    enum end_kind end;
    do {
        end = below(END_KINDS);
    } while (!ends(wait, end));
    bool is_restarted = end == SIGNAL_RESTARTS;
    if (role == 0) {
        ended.wait = wait;
        ended.end = end;
        ended.thread = ended.has_ended = 0;
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
        ended.pair.there = -1;
        if (wait == ACCEPT) {
            ended.pair.here = listener();
        } else if (wait == RECVFROM) {
            ended.pair.here = socket(AF_INET, SOCK_DGRAM, 0);
            need(bind(ended.pair.here, (struct sockaddr *)&any, sizeof any) == 0, "bind");
        } else {
            ended.pair = connection();
        }
        struct sigaction action = {.sa_handler = note_signal_of_wait,
                                   .sa_flags = is_restarted ? SA_RESTART : 0};
        sigaction(SIGUSR1, &action, NULL);
        print(" wait %d ends by %d:", wait, end);
    }
    if (role == 1) {
        ended.waiter = pthread_self();
    }
    meet();
    if (role == 0) {
        end_wait();
    } else if (role == 1) {
        wait_for_end();
    } else {
        struct pair pair = connection();
        for (int at = 0; at < 20; at++) {
            char text[4];
            need(write(pair.here, "1234", 4) == 4, "write");
            need(read_all(pair.there, text, 4) == 4, "read");
            disturb();
        }
        finish(pair);
    }
    meet();
    if (role == 0) {
        if (ended.pair.here >= 0) {
            close(ended.pair.here);
        }
        if (ended.pair.there >= 0) {
            close(ended.pair.there);
        }
    }
    print_notes();
}

/* -- descriptors that threads pass to each other */

static bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

static void pass_descriptors(void) {
    static struct pair pairs[THREADS_MAX];
    static int passing[2];
    int messages = 1 + (int)below(30);
    if (role == 0) {
        need(pipe(passing) == 0, "pipe");
        for (int at = 0; at < thread_count; at++) {
            pairs[at] = connection();
        }
        for (int at = 0; at < thread_count; at++) {
            int ends[3] = {at, pairs[at].here, pairs[(at + 1) % thread_count].there};
            need(write(passing[1], ends, sizeof ends) == sizeof ends, "write");
        }
    }
    int own[3];
    meet();
    need(read(passing[0], own, sizeof own) == sizeof own, "read");
    for (int at = 0; at < messages; at++) {
        char text[24] = {0}, expected[24] = {0};
        snprintf(expected, sizeof expected, "%d.%d", own[0], at);
        need(write(own[1], expected, 24) == 24, "write");
        disturb();
        snprintf(expected, sizeof expected, "%d.%d", (own[0] + 1) % thread_count, at);
        need(read_all(own[2], text, 24) == 24 && strcmp(text, expected) == 0, "a message");
    }
    char byte;
    note("shutdown %d", shutdown(own[1], SHUT_WR));
    note("end %ld", (long)read(own[2], &byte, 1));
    note("close %d %d", close(own[1]), close(own[2]));
    meet();
    if (role == 0) {
        print(" passed descriptors:");
        for (int at = 0; at < thread_count; at++) {
            note("open %d %d", is_open(pairs[at].here), is_open(pairs[at].there));
        }
        close(passing[0]);
        close(passing[1]);
    }
    print_notes();
}

/* Threads have duplicates of one end, and all but the last one are closed. */
static void use_duplicates(void) {
    static struct pair pair;
    int count = 1 + (int)below(8);
    if (role == 0) {
        pair = connection();
    }
    meet();
    int own = chance(50) ? dup(pair.here) : fcntl(pair.here, F_DUPFD_CLOEXEC, 0);
    meet();
    if (role == 0) {
        close(pair.here);
    }
    for (int at = 0; at < count; at++) {
        need(write(own, "abcd", 4) == 4, "write");
        disturb();
    }
    if (role == 1) {
        char bytes[4000];
        close(own);
        long total = 0, part;
        while ((part = read(pair.there, bytes, sizeof bytes)) > 0) {
            total += part;
        }
        note("duplicates: %ld bytes, then %ld", total, part);
        close(pair.there);
    } else {
        note("close %d", close(own));
    }
    print_notes();
}

/* -- numbers */

static int lowest_free(void) {
    int fd = 0;
    while (fcntl(fd, F_GETFD) >= 0) {
        fd++;
    }
    return fd;
}

static int open_one(uint32_t kind, int connected) {
    switch (kind) {
    case 0:
        return socket(AF_INET, SOCK_STREAM, 0);
    case 1:
        return socket(AF_INET, SOCK_DGRAM, 0);
    case 2:
        return eventfd(0, 0);
    case 3:
        return epoll_create1(0);
    case 4:
        return dup(connected);
    default:
        return fcntl(connected, F_DUPFD, 0);
    }
}

/* In turn the lowest free number, and at once numbers that differ. */
static void compare_numbers(void) {
    static struct pair pair;
    static int numbers[THREADS_MAX][4];
    int opened[6];
    if (role == 0) {
        pair = connection();
    }
    for (int turn = 0; turn < thread_count; turn++) {
        meet();
        for (int at = 0; turn == role && at < 6; at++) {
            int free = lowest_free();
            opened[at] = open_one(below(6), pair.here);
            note("lowest number %d", opened[at] == free);
            if (chance(30) && at > 0) {
                close(opened[at - 1]);
                opened[at - 1] = -1;
            }
        }
    }
    meet();
    state += (uint64_t)role << 40;
    for (int at = 0; at < 6; at++) {
        if (opened[at] >= 0) {
            close(opened[at]);
        }
    }
    for (int tries = 0; tries < 30; tries++) {
        int fd = open_one(below(6), pair.here);
        disturb();
        need(fd >= 0 && close(fd) == 0, "a number of its own");
    }
    for (int at = 0; at < 4; at++) {
        numbers[role][at] = open_one(below(6), pair.here);
        disturb();
    }
    meet();
    if (role == 0) {
        int same = 0;
        int *all = &numbers[0][0];
        for (int one = 0; one < thread_count * 4; one++) {
            for (int other = 0; other < one; other++) {
                same += all[one] == all[other];
            }
        }
        note("same numbers %d", same);
        finish(pair);
    }
    meet();
    for (int at = 0; at < 4; at++) {
        note("close %d", close(numbers[role][at]));
    }
    print_notes();
}

/* -- datagrams */

static void pass_datagrams(void) {
    static int fd;
    static struct sockaddr_in to;
    static _Atomic long received;
    int senders = 1 + (int)below((uint32_t)thread_count - 1), count = 1 + (int)below(10);
    int receivers = thread_count - senders;
    bool is_nonblocking = chance(40);
    if (role == 0) {
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
        fd = socket(AF_INET, SOCK_DGRAM | (is_nonblocking ? SOCK_NONBLOCK : 0), 0);
        need(bind(fd, (struct sockaddr *)&any, sizeof any) == 0, "bind");
        to = own_name(fd);
        received = 0;
    }
    meet();
    state += (uint64_t)role << 40;
    if (role < senders) {
        int own = socket(AF_INET, SOCK_DGRAM, 0);
        need(connect(own, (struct sockaddr *)&to, sizeof to) == 0, "connect");
        for (int at = 0; at < count; at++) {
            char text[16] = {0};
            snprintf(text, sizeof text, "%d.%d", role, at);
            need(send(own, text, sizeof text, 0) == sizeof text, "send");
            disturb();
        }
        close(own);
        if (role == 0) {
            need(reaches(&received, (long)senders * count), "all datagrams");
            own = socket(AF_INET, SOCK_DGRAM, 0);
            for (int at = 0; at < receivers; at++) {
                sendto(own, "", 0, 0, (struct sockaddr *)&to, sizeof to);
            }
            close(own);
        }
    } else {
        enum wait_call wait = below(WAIT_CALLS);
        while (true) {
            char text[16] = {0};
            if (is_nonblocking) {
                wait_by(wait, fd, -1);
            }
            ssize_t len = recv(fd, text, sizeof text, 0);
            if (len < 0 && errno == EAGAIN) {
                continue;
            }
            need(len >= 0, "recv");
            if (len == 0) {
                break;
            }
            note("datagram %s", text);
            received++;
            disturb();
        }
    }
    meet();
    if (role == 0) {
        close(fd);
    }
    print_notes();
}

/* -- changes of a set that a thread waits for */

static void change_set(void) {
    static int set;
    static struct pair pair;
    static _Atomic long has_begun, has_ended;
    uint32_t change = below(4);
    if (role == 0) {
        set = epoll_create1(0);
        pair = connection();
        has_begun = has_ended = 0;
        struct epoll_event event = {.events = change == 1 ? 0 : EPOLLIN | EPOLLONESHOT};
        if (change > 0) {
            need(epoll_ctl(set, EPOLL_CTL_ADD, pair.there, &event) == 0, "epoll_ctl");
        }
        if (change < 2) {
            need(write(pair.here, "abc", 3) == 3, "write");
        }
    }
    meet();
    struct epoll_event event = {.events = EPOLLIN};
    if (role == 1) {
        has_begun = 1;
        /* A member that is removed reports nothing. */
        int count = epoll_wait(set, &event, 1, change == 3 ? (int)(pause_ns / 100000) : 20000);
        note("set changed by %u: %d %x", change, count, count > 0 ? event.events : 0);
        has_ended = 1;
    } else if (role == 0) {
        reaches(&has_begun, 1);
        disturb();
        switch (change) {
        case 0:
            need(epoll_ctl(set, EPOLL_CTL_ADD, pair.there, &event) == 0, "epoll_ctl");
            break;
        case 1:
            need(epoll_ctl(set, EPOLL_CTL_MOD, pair.there, &event) == 0, "epoll_ctl");
            break;
        case 2:
            need(write(pair.here, "abc", 3) == 3, "write");
            break;
        default:
            need(epoll_ctl(set, EPOLL_CTL_DEL, pair.there, NULL) == 0, "epoll_ctl");
            need(write(pair.here, "abc", 3) == 3, "write");
        }
        reaches(&has_ended, 1);
    }
    meet();
    if (role == 0) {
        close(set);
        finish(pair);
    }
    print_notes();
}

/* All threads wait for the same bytes, and one reads them. */
static void wait_for_same(void) {
    static struct pair pair;
    static _Atomic long total, begun;
    if (role == 0) {
        pair = connection();
        total = begun = 0;
    }
    meet();
    enum wait_call call = (enum wait_call)((int)below(WAIT_CALLS) + role) % WAIT_CALLS;
    if (role == 0) {
        reaches(&begun, thread_count - 1);
        disturb();
        need(write(pair.here, "abcdef", 6) == 6, "write");
    } else {
        begun++;
        note("call %d sees %x", call, wait_by(call, pair.there, 20000));
    }
    meet();
    char bytes[6];
    long part = recv(pair.there, bytes, sizeof bytes, MSG_DONTWAIT);
    need(part == 6 || errno == EAGAIN, "recv");
    total += part > 0 ? part : 0;
    meet();
    if (role == 0) {
        note("read by one of them: %ld", total);
        finish(pair);
    }
    print_notes();
}

/* -- which of them a step runs */

static void run_shared_step(void) {
    static void (*const steps[])(void) = {
        transfer,         accept_all,      wait_by_threads, end_waits,  end_waits,
        pass_descriptors, use_duplicates,  compare_numbers, pass_datagrams,
        change_set,       wait_for_same,
    };
    ONE_OF(steps)();
}
