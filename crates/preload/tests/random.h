/* The parts of random programs (`random.c`): the generator, the descriptors and what is printed of
 * them. */
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "connections.h"

enum { SLOTS = 14, NAMES = 64, STEPS_MAX = 1000 };
/* What one end of a connection writes in all: the library promises so many segments that a program
 * has not read when a RST comes. */
enum { WRITES_MAX = 6 };
/* Connections that wait at a listener; full backlogs are not part of the programs. */
enum { BACKLOG = 8, WAITING_MAX = 4 };

/* The text of a thread. */
static _Thread_local FILE *out;

#define print(...) fprintf(out, __VA_ARGS__)

/* -- a pseudo-random generator: splitmix64 */

static _Thread_local uint64_t state;

static inline uint32_t below(uint32_t limit) {
    uint64_t it = state += 0x9e3779b97f4a7c15;
    it = (it ^ (it >> 30)) * 0xbf58476d1ce4e5b9;
    it = (it ^ (it >> 27)) * 0x94d049bb133111eb;
    return (uint32_t)((it ^ (it >> 31)) >> 32) % limit;
}

static inline bool chance(uint32_t percent) { return below(100) < percent; }

#define ONE_OF(values) (values)[below(sizeof(values) / sizeof *(values))]

/* -- the descriptors of the program */

enum kind { NONE = 0, TCP = 1, UDP = 2, SET = 4, COUNTER = 8, PIPE_OUT = 16, PIPE_IN = 32 };
enum { SOCKETS = TCP | UDP, ALL = 63 };

/* What several descriptors share after dup(2). */
struct file {
    /* Its number among the files of the thread. */
    uint32_t id;
    /* It has been bound, mostly to a port that was chosen for it. */
    bool is_bound;
    /* It listened. Linux frees such a port then. */
    bool has_listened;
    /* It is connected, or was. */
    bool is_used;
    /* A set that is in another one. */
    bool is_nested;
    /* The directions that shutdown(2) has ended, a bit each. */
    int shut;
    int writes;
    /* Connections that have not been accepted. */
    int waiting;
    int references;
};

struct slot {
    enum kind kind;
    int fd;
    struct file *file;
};

static _Thread_local struct slot slots[SLOTS];
static _Thread_local uint32_t file_count;
static long pause_ns = 2000000;
static _Thread_local volatile sig_atomic_t signals;

/* Ports in the order in which they are seen. */
static _Thread_local struct {
    enum kind kind;
    in_port_t port;
} names[NAMES];
static _Thread_local int name_count;
/* The port of a socket that has been closed. */
static _Thread_local in_port_t closed_port[2];

static inline const char *name_text(enum kind kind, const struct sockaddr_in *name) {
    static _Thread_local char text[2][32];
    static _Thread_local int which;
    char *to = text[which ^= 1];
    const char *address = name->sin_addr.s_addr == inet_addr(host) ? "host"
                          : name->sin_addr.s_addr == 0             ? "any"
                                                                   : "other";
    int at = 0;
    while (at < name_count && (names[at].kind != kind || names[at].port != name->sin_port)) {
        at++;
    }
    if (name->sin_port == 0) {
        at = -1;
    } else if (at == name_count && name_count < NAMES) {
        names[name_count].kind = kind;
        names[name_count++].port = name->sin_port;
    }
    snprintf(to, 32, "%s:%d", address, at + 1);
    return to;
}

static inline struct sockaddr_in own_name(int fd) {
    struct sockaddr_in name = {0};
    socklen_t len = sizeof name;
    getsockname(fd, (struct sockaddr *)&name, &len);
    return name;
}

/* The port of a socket; 0: none. Linux still reports the port that a socket has had. */
static inline in_port_t port_of(const struct slot *slot) {
    const struct file *file = slot->file;
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    bool has_port = slot->kind == UDP || (file->is_bound && !file->has_listened)
                    || getpeername(slot->fd, (struct sockaddr *)&peer, &len) == 0;
    return has_port ? own_name(slot->fd).sin_port : 0;
}

/* A socket has got a port, which another one may have had before. It has lost it already where its
 * connection was refused. */
static inline void new_name(const struct slot *slot) {
    struct sockaddr_in name = own_name(slot->fd);
    for (int at = 0; at < name_count; at++) {
        if (names[at].kind == slot->kind && names[at].port == name.sin_port) {
            names[at].port = 0;
        }
    }
    if (name_count < NAMES) {
        names[name_count].kind = slot->kind;
        names[name_count++].port = name.sin_port;
    }
}

/* The first slot of one of the kinds from a random one on; NULL: there is none. */
static inline struct slot *pick(int kinds) {
    uint32_t from = below(SLOTS);
    for (uint32_t at = 0; at < SLOTS; at++) {
        struct slot *slot = &slots[(from + at) % SLOTS];
        if (kinds == NONE ? slot->kind == NONE : slot->kind & kinds) {
            return slot;
        }
    }
    return NULL;
}

/* The events of a file that all stacks report; NULL: of one that has no slot any more. On the back
 * end `kernel` calls alone return a reset behind the program's own end of both directions. */
static inline uint32_t common_events(const struct file *file, uint32_t events) {
    bool has_ended = !file || file->shut == 3;
    return has_ended ? events & ~(uint32_t)POLLERR : events;
}

static inline int number(const struct slot *slot) { return (int)(slot - slots); }

static inline long answer(long result) {
    if (result < 0) {
        print(" = %s", strerrorname_np(errno));
    } else {
        print(" = %ld", result);
    }
    return result;
}

/* Prints a descriptor's result: its slot. */
static inline void answer_slot(int fd, struct slot *slot, enum kind kind, struct file *file) {
    if (fd < 0) {
        answer(fd);
        return;
    }
    if (!file) {
        file = calloc(1, sizeof *file);
        need(file != NULL, "calloc");
        file->id = ++file_count;
    }
    file->references++;
    *slot = (struct slot){.kind = kind, .fd = fd, .file = file};
    print(" = [%d]", number(slot));
}

/* A slot loses its descriptor, which is closed. */
static inline void forget(struct slot *slot) {
    if (--slot->file->references == 0) {
        free(slot->file);
    }
    slot->kind = NONE;
}

static inline bool is_listener(int fd) {
    int is = 0;
    socklen_t len = sizeof is;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is, &len) == 0 && is;
}

/* Whether a call that waits for `events` would block for ever. */
static inline bool would_block(int fd, short events) {
    struct pollfd entry = {.fd = fd, .events = events};
    return !(fcntl(fd, F_GETFL) & O_NONBLOCK) && poll(&entry, 1, 0) == 0;
}

/* What has been sent arrives on every stack. */
static inline void settle(void) {
    struct pollfd entries[SLOTS];
    int count = 0;
    for (int at = 0; at < SLOTS; at++) {
        if (slots[at].kind & SOCKETS) {
            entries[count++] = (struct pollfd){.fd = slots[at].fd, .events = POLLIN};
        }
    }
    for (int i = 0; i < 2; i++) {
        struct timespec pause = {.tv_sec = pause_ns / 1000000000 / 2,
                                 .tv_nsec = pause_ns / 2 % 1000000000};
        nanosleep(&pause, NULL);
        poll(entries, count, 0);
    }
}
