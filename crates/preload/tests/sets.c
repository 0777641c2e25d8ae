/* Sets and listeners while several threads use them, and as they change. The output is the same
 * with and without the preload library.
 *
 * Usage: sets ADDRESS [PART | peer]
 * PART: one of the names in `parts` below, or all of them. `peer`: the other end of a link. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <time.h>

#include "connections.h"

enum { THREADS = 3 };

static void watch(int set, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    need(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

static void say_events(const char *what, int set, int time) {
    struct epoll_event events[8];
    int count = epoll_wait(set, events, 8, time);
    say(what, count);
    for (int at = 0; at < count; at++) {
        printf("  %llu: %#x\n", (unsigned long long)events[at].data.u64, events[at].events);
    }
}

/* -- threads that wait for a set before it has a socket */

struct wait {
    int set, time;
    int count;
    struct epoll_event event;
};

static void *wait_for(void *argument) {
    struct wait *wait = argument;
    wait->count = epoll_wait(wait->set, &wait->event, 1, wait->time);
    return NULL;
}

static void *wait_with_mask(void *argument) {
    struct wait *wait = argument;
    sigset_t none;
    sigemptyset(&none);
    wait->count = epoll_pwait(wait->set, &wait->event, 1, wait->time, &none);
    return NULL;
}

static void say_wait(const char *what, const struct wait *wait) {
    printf("%s: %d, data %llu, events %#x\n", what, wait->count,
           (unsigned long long)wait->event.data.u64, wait->event.events);
}

/* A thread that waits for a set, for which it has had the time to begin. */
static pthread_t waiting(void *(*how)(void *), struct wait *wait) {
    pthread_t thread;
    need(pthread_create(&thread, NULL, how, wait) == 0, "pthread_create");
    pause_ms(50);
    return thread;
}

static void members_of_another_thread(void) {
    struct wait wait = {.set = epoll_create1(0), .time = 10000};
    pthread_t thread = waiting(wait_for, &wait);
    struct pair pair = connection();
    watch(wait.set, pair.here, EPOLLIN, 7);
    write(pair.there, "x", 1);
    pthread_join(thread, NULL);
    say_wait("a connection", &wait);
    finish(pair), close(wait.set);

    wait = (struct wait){.set = epoll_create1(0), .time = 10000};
    thread = waiting(wait_for, &wait);
    int listening = listener();
    watch(wait.set, listening, EPOLLIN, 8);
    int client = connected_to(listening);
    pthread_join(thread, NULL);
    say_wait("a listener", &wait);
    close(client), close(listening), close(wait.set);

    /* The kernel's descriptors are still waited for, and so is the time. */
    int counter = eventfd(0, 0);
    wait = (struct wait){.set = epoll_create1(0), .time = 10000};
    watch(wait.set, counter, EPOLLIN, 9);
    thread = waiting(wait_with_mask, &wait);
    pair = connection();
    watch(wait.set, pair.here, EPOLLIN, 10);
    pause_ms(50);
    eventfd_write(counter, 1);
    pthread_join(thread, NULL);
    say_wait("a counter", &wait);
    finish(pair), close(counter), close(wait.set);

    wait = (struct wait){.set = epoll_create1(0), .time = 300};
    thread = waiting(wait_for, &wait);
    pair = connection();
    watch(wait.set, pair.here, EPOLLIN, 11);
    pthread_join(thread, NULL);
    say("nothing", wait.count);
    finish(pair), close(wait.set);
}

/* Several threads wait for one empty set, and each gets a connection. */
static void members_for_many_threads(void) {
    struct wait waits[THREADS];
    pthread_t threads[THREADS];
    struct pair pairs[THREADS];
    int set = epoll_create1(0), counts = 0, sum = 0;
    for (int at = 0; at < THREADS; at++) {
        waits[at] = (struct wait){.set = set, .time = 10000};
        threads[at] = waiting(at % 2 ? wait_for : wait_with_mask, &waits[at]);
    }
    for (int at = 0; at < THREADS; at++) {
        pairs[at] = connection();
        watch(set, pairs[at].here, EPOLLIN | EPOLLONESHOT, at + 1);
        write(pairs[at].there, "x", 1);
    }
    for (int at = 0; at < THREADS; at++) {
        pthread_join(threads[at], NULL);
        counts += waits[at].count, sum += waits[at].event.data.u64;
    }
    say("threads", counts);
    say("the sum of their data", sum);
    for (int at = 0; at < THREADS; at++) {
        finish(pairs[at]);
    }
    close(set);
}

/* -- sets in sets */

/* A set joins another one before it has a connection. */
static void nested_before(void) {
    int outer = epoll_create1(0), inner = epoll_create1(0);
    watch(outer, inner, EPOLLIN, 1);
    say_events("nothing", outer, 0);
    struct pair pair = connection();
    watch(inner, pair.here, EPOLLIN, 2);
    say_events("nothing", outer, 0);
    write(pair.there, "x", 1);
    say_events("outer", outer, 10000);
    say_events("inner", inner, 10000);
    struct pollfd entry = {.fd = outer, .events = POLLIN};
    say("poll", poll(&entry, 1, 10000));
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(outer, &readable);
    struct timeval time = {.tv_sec = 10};
    say("select", select(outer + 1, &readable, NULL, NULL, &time));
    char text[8];
    say("read", read(pair.here, text, 8));
    say_events("nothing", outer, 0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 3};
    say("change", epoll_ctl(outer, EPOLL_CTL_MOD, inner, &event));
    write(pair.there, "x", 1);
    say_events("outer", outer, 10000);
    say_events("once", outer, 0);
    say("again", epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event));
    say("take out", epoll_ctl(outer, EPOLL_CTL_DEL, inner, &event));
    say("take out", epoll_ctl(outer, EPOLL_CTL_DEL, inner, &event));
    say_events("nothing", outer, 0);
    finish(pair), close(inner), close(outer);
}

/* Three sets, each a member of the next; the innermost has a descriptor of the kernel, too. */
static void nested_thrice(void) {
    int sets[3], counter = eventfd(0, 0);
    for (int at = 0; at < 3; at++) {
        sets[at] = epoll_create1(0);
        if (at > 0) {
            watch(sets[at], sets[at - 1], EPOLLIN, at);
        }
    }
    watch(sets[0], counter, EPOLLIN, 10);
    eventfd_write(counter, 1);
    say_events("a counter", sets[2], 10000);
    struct pair pair = connection();
    watch(sets[0], pair.here, EPOLLIN, 11);
    say_events("a counter still", sets[2], 10000);
    eventfd_t value;
    eventfd_read(counter, &value);
    say_events("nothing", sets[2], 0);
    write(pair.there, "x", 1);
    for (int at = 2; at >= 0; at--) {
        say_events("a connection", sets[at], 10000);
    }
    struct epoll_event event = {.events = EPOLLIN};
    say("a loop", epoll_ctl(sets[0], EPOLL_CTL_ADD, sets[2], &event));
    finish(pair), close(counter);
    for (int at = 0; at < 3; at++) {
        close(sets[at]);
    }
}

/* A thread waits for a set that has an empty set, which then gets a connection. */
static void nested_while_waiting(void) {
    struct wait wait = {.set = epoll_create1(0), .time = 10000};
    int inner = epoll_create1(0);
    watch(wait.set, inner, EPOLLIN, 4);
    pthread_t thread = waiting(wait_for, &wait);
    struct pair pair = connection();
    watch(inner, pair.here, EPOLLIN, 5);
    pause_ms(20);
    write(pair.there, "x", 1);
    pthread_join(thread, NULL);
    say_wait("outer", &wait);
    /* The numbers of sets that are closed become other files'. */
    close(inner), close(wait.set);
    int fd = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0), other = epoll_create1(0);
    watch(set, fd, EPOLLIN, 6);
    watch(set, other, EPOLLIN, 7);
    say_events("a fresh socket", set, 10000);
    close(fd), close(other);
    watch(set, pair.here, EPOLLIN, 8);
    say_events("the connection", set, 10000);
    finish(pair), close(set);
}

/* -- several descriptors of one set, or of one member */

static void duplicated_sets(void) {
    int set = epoll_create1(0), copy = dup(set), third = dup2(copy, 100), counter = eventfd(0, 0);
    struct pair pair = connection();
    watch(set, pair.here, EPOLLIN, 1);
    watch(copy, counter, EPOLLIN, 2);
    write(pair.there, "x", 1);
    say_events("a duplicate", copy, 10000);
    say_events("a duplicate of it", third, 10000);
    close(set);
    say_events("with the first one closed", copy, 10000);
    eventfd_write(counter, 1);
    char text[8];
    say("read", read(pair.here, text, 8));
    say_events("a counter", third, 10000);
    finish(pair), close(copy), close(third), close(counter);
}

/* A socket joins a set under its second number, before it is connected. */
static void duplicated_members(void) {
    int listening = listener(), set = epoll_create1(0);
    struct sockaddr_in to = name_of(listening);
    int fd = socket(AF_INET, SOCK_STREAM, 0), copy = dup(fd);
    watch(set, copy, EPOLLOUT, 1);
    need(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    say_events("a duplicate", set, 10000);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 2};
    say("change of the first", epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    say("change of the second", epoll_ctl(set, EPOLL_CTL_MOD, copy, &event));
    close(fd), close(copy), close(listening), close(set);
}

/* A set knows a member by the number that it had when it joined. */
static void members_by_number(void) {
    int listening = listener(), set = epoll_create1(0), other = dup(listening);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 2};
    watch(set, listening, EPOLLIN, 1);
    say("the other number", epoll_ctl(set, EPOLL_CTL_ADD, other, &event));
    say("again", epoll_ctl(set, EPOLL_CTL_ADD, other, &event));
    int client = connected_to(listening);
    say_events("a listener", set, 10000);
    say("the other number leaves", epoll_ctl(set, EPOLL_CTL_DEL, other, NULL));
    say_events("a listener", set, 10000);
    close(other), close(set);

    set = epoll_create1(0);
    int there = accept(listening, NULL, NULL), copy = dup(there);
    need(write(client, "bytes", 5) == 5, "write");
    watch(set, there, EPOLLIN, 1);
    close(there);
    say_events("a number that is closed", set, 10000);
    int third = fcntl(copy, F_DUPFD, 200);
    say("change of a new number", epoll_ctl(set, EPOLL_CTL_MOD, third, &event));
    need(dup2(copy, there) == there, "dup2");
    say("the old number", epoll_ctl(set, EPOLL_CTL_ADD, there, &event));
    say("its change", epoll_ctl(set, EPOLL_CTL_MOD, there, &event));
    say_events("the old number", set, 10000);
    close(there), close(third), close(copy), close(client), close(listening), close(set);
}

/* A set is closed, or another one has its number, before its member is connected. */
static void closed_before(void) {
    int listening = listener(), set = epoll_create1(0);
    struct sockaddr_in to = name_of(listening);
    for (int again = 0; again < 2; again++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        watch(set, fd, EPOLLOUT, 1);
        int number = set;
        close(set);
        set = again ? dup2(epoll_create1(0), number) : -1;
        say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
        if (again) {
            say_events("another set", set, 0);
        }
        close(fd);
        set = again ? set : epoll_create1(0);
    }
    close(listening), close(set);
}

/* -- listeners that are shut down */

struct accept_call {
    pthread_t thread;
    int listening, result, error;
};

static void *accept_one(void *argument) {
    struct accept_call *call = argument;
    call->result = accept(call->listening, NULL, NULL);
    call->error = errno;
    return NULL;
}

static int try_to_connect(struct sockaddr_in to) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    say("connect", connect(fd, (struct sockaddr *)&to, sizeof to));
    return fd;
}

static void say_poll(const char *what, int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT};
    say(what, poll(&entry, 1, 0));
    printf("  %#x\n", entry.revents);
}

/* Threads that are blocked in accept(2) get an error when the listener is shut down. */
static void shut_down_while_accepting(void) {
    int listening = listener();
    struct sockaddr_in at = name_of(listening);
    struct accept_call calls[THREADS];
    for (int i = 0; i < THREADS; i++) {
        calls[i] = (struct accept_call){.listening = listening, .result = -1};
        need(pthread_create(&calls[i].thread, NULL, accept_one, &calls[i]) == 0, "pthread_create");
    }
    pause_ms(50);
    say("shutdown of writing", shutdown(listening, SHUT_WR));
    close(try_to_connect(at));
    pause_ms(50);
    say("shutdown of reading", shutdown(listening, SHUT_RD));
    int accepted = 0, refused = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(calls[i].thread, NULL);
        accepted += calls[i].result >= 0;
        refused += calls[i].result < 0 && calls[i].error == EINVAL;
        close(calls[i].result);
    }
    say("accepted", accepted);
    say("refused", refused);
    close(listening);
}

/* A listener at a port that the program has selected: Linux keeps no other. */
static int listener_at_port(void) {
    int keeper = keeper_of_port(), on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = name_of(keeper);
    need(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0, "setsockopt");
    need(bind(fd, (struct sockaddr *)&at, sizeof at) == 0, "bind");
    need(listen(fd, 16) == 0, "listen");
    return fd;
}

/* A listener that is shut down keeps its address, and listens again. */
static void shut_down_and_listen(void) {
    int listening = listener_at_port(), set = epoll_create1(0);
    struct sockaddr_in at = name_of(listening);
    watch(set, listening, EPOLLIN, 1);
    say_events("its set", set, 0);
    say("shutdown", shutdown(listening, SHUT_RD));
    say("accept", accept(listening, NULL, NULL));
    say_poll("poll", listening);
    say_events("its set", set, 10000);
    int accepts = -1;
    socklen_t len = sizeof accepts;
    getsockopt(listening, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &len);
    say("it listens", accepts);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
    say("add it again", epoll_ctl(set, EPOLL_CTL_ADD, listening, &event));
    say("change it", epoll_ctl(set, EPOLL_CTL_MOD, listening, &event));
    say_events("its set", set, 10000);
    close(try_to_connect(at));
    need(name_of(listening).sin_port == at.sin_port, "its port");
    say("listen", listen(listening, 16));
    say_events("its set", set, 0);
    say_poll("poll", listening);
    int client = try_to_connect(at);
    say_events("its set", set, 10000);
    int there = accept(listening, NULL, NULL);
    exchange((struct pair){.here = client, .there = there}, "a connection");
    close(client), close(there);

    client = try_to_connect(at);
    say("shutdown with a connection", shutdown(listening, SHUT_RDWR));
    struct pollfd entry = {.fd = client, .events = POLLIN};
    say("poll", poll(&entry, 1, 10000));
    char text[8];
    say("read", read(client, text, 8));
    close(client), close(listening), close(set);
}

/* A listener has no sending side, and its end is an edge. */
static void shut_down_other_direction(void) {
    int listening = listener(), set = epoll_create1(0);
    watch(set, listening, EPOLLIN | EPOLLET, 1);
    say("shutdown", shutdown(listening, SHUT_WR));
    say_events("nothing", set, 0);
    int client = connected_to(listening);
    say_events("a connection", set, 10000);
    say_events("no other one", set, 0);
    say("shutdown", shutdown(listening, SHUT_WR));
    say_events("the same", set, 0);
    close(accept(listening, NULL, NULL)), close(client), close(listening), close(set);
}

/* Sockets that have served nothing. */
static void shut_down_new_ones(void) {
    int listening = listener();
    say("shutdown", shutdown(listening, SHUT_RDWR));
    say("accept", accept(listening, NULL, NULL));
    say("listen", listen(listening, 16));
    say("listen again", listen(listening, 8));
    int client = connected_to(listening);
    say("accept", accept(listening, NULL, NULL) >= 0);
    close(client), close(listening);
    int fresh = socket(AF_INET, SOCK_STREAM, 0);
    say("shutdown of a fresh socket", shutdown(fresh, SHUT_RDWR));
    close(fresh);
}

static const struct part parts[] = {
    {"later", members_of_another_thread},
    {"many", members_for_many_threads},
    {"nested", nested_before},
    {"thrice", nested_thrice},
    {"while", nested_while_waiting},
    {"copies", duplicated_sets},
    {"members", duplicated_members},
    {"numbers", members_by_number},
    {"closed", closed_before},
    {"accepting", shut_down_while_accepting},
    {"again", shut_down_and_listen},
    {"sends", shut_down_other_direction},
    {"new", shut_down_new_ones},
};

int main(int count, char **arguments) {
    return run_parts(count, arguments, parts, sizeof parts / sizeof *parts, NULL);
}
