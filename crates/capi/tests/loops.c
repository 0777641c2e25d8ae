/*
 * What an event loop lives on: dispatching one or many, timers, waking, pipes and event
 * descriptors, flushing, and looking in.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>

#include "check.h"

static int64_t now_ns(void)
{
    struct timespec now;

    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void dispatch_waits_as_long_as_it_is_told(void)
{
    mp_channel_t *channel = create();
    struct mp_event event;
    int64_t start = now_ns();

    CHECK(mp_dispatch(channel, &event, 0) == 0);
    CHECK(mp_dispatch(channel, &event, 50 * 1000 * 1000) == 0);
    CHECK(now_ns() - start >= 50 * 1000 * 1000);
    FAILS(mp_dispatch(channel, &event, -2), -1, EINVAL);
    FAILS(mp_dispatch(channel, &event, INT64_MIN), -1, EINVAL);
    CHECK(mp_destroy(channel) == 0);
}

static void timers_expire_once_or_in_a_rhythm(void)
{
    mp_channel_t *channel = create();
    int64_t start = now_ns();
    mp_handle_t once = mp_timer(channel, 5 * 1000 * 1000, 0, &start), often;
    struct mp_event event = succeeds(channel, MP_TIMER, once);
    uint64_t expirations = 0;

    CHECK(now_ns() - start >= 5 * 1000 * 1000);
    CHECK(event.expirations == 1 && event.cookie == &start);
    CHECK(mp_unregister(once, NULL) == 0);
    often = mp_timer(channel, 1000 * 1000, 2 * 1000 * 1000, NULL);
    CHECK(often != MP_NO_HANDLE);
    usleep(20 * 1000);
    while (expirations < 12) {
        event = succeeds(channel, MP_TIMER, often);
        CHECK(event.expirations >= 1);
        expirations += event.expirations;
    }
    CHECK(mp_unregister(often, NULL) == 0);
    quiet(channel);
    once = mp_timer(channel, UINT64_MAX, UINT64_MAX, NULL);
    CHECK(once != MP_NO_HANDLE);
    CHECK(mp_unregister(once, NULL) == 0);
    CHECK(mp_destroy(channel) == 0);
}

static void *wake_later(void *channel)
{
    usleep(20 * 1000);
    CHECK(mp_wake((mp_channel_t *)channel) == 0);
    return NULL;
}

static void another_thread_can_wake_the_channel(void)
{
    mp_channel_t *channel = create();
    struct mp_event event;
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, wake_later, channel) == 0);
    event = succeeds(channel, MP_WAKE, MP_NO_HANDLE);
    CHECK(event.cookie == NULL);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(mp_wake(channel) == 0);
    CHECK(mp_wake(channel) == 0);
    succeeds(channel, MP_WAKE, MP_NO_HANDLE);
    quiet(channel);
    CHECK(mp_destroy(channel) == 0);
}

static mp_channel_t *interrupted;
static mp_handle_t interrupted_handle;
static volatile sig_atomic_t handled, reentered;

/* Called while the thread is inside mp_dispatch(): only waking is possible. */
static void on_alarm(int signal)
{
    struct mp_event event;
    int saved = errno;

    (void)signal;
    handled = 1;
    reentered = mp_dispatch(interrupted, &event, 0) == -1 && errno == EDEADLK &&
                mp_set_cookie(interrupted_handle, NULL) == -1 && errno == EDEADLK &&
                mp_destroy(interrupted) == -1 && errno == EDEADLK;
    mp_wake(interrupted);
    errno = saved;
}

static void a_signal_handler_can_wake_and_nothing_else(void)
{
    struct sigaction action;
    struct mp_event event;

    interrupted = create();
    interrupted_handle = mp_timer(interrupted, UINT64_C(100000000000), 0, NULL);
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_alarm;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(ualarm(20 * 1000, 0) == 0);
    event = succeeds(interrupted, MP_WAKE, MP_NO_HANDLE);
    CHECK(handled && reentered && event.cookie == NULL);
    CHECK(mp_set_cookie(interrupted_handle, &action) == 0);
    CHECK(mp_destroy(interrupted) == 0);
}

static void ignore_signal(int signal)
{
    (void)signal;
}

static void a_caught_signal_does_not_end_the_wait(void)
{
    mp_channel_t *channel = create();
    struct sigaction action;
    struct mp_event event;
    int64_t start = now_ns();

    memset(&action, 0, sizeof(action));
    action.sa_handler = ignore_signal;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(ualarm(10 * 1000, 0) == 0);
    CHECK(mp_dispatch(channel, &event, 60 * 1000 * 1000) == 0);
    CHECK(now_ns() - start >= 60 * 1000 * 1000);
    CHECK(mp_destroy(channel) == 0);
}

static void pipes_and_event_descriptors(void)
{
    mp_channel_t *channel = create();
    uint64_t three = 3, got = 0;
    mp_handle_t in, out, event_handle;
    struct mp_event event;
    char buf[8];
    int ends[2], counter = eventfd(0, EFD_CLOEXEC);

    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    in = mp_register(channel, ends[0], NULL, 0);
    out = mp_register(channel, ends[1], NULL, 0);
    event_handle = mp_register(channel, counter, &got, 0);
    CHECK(in != MP_NO_HANDLE && out != MP_NO_HANDLE && event_handle != MP_NO_HANDLE);
    CHECK(mp_read(in, buf, sizeof(buf)) == 0);
    CHECK(mp_read(event_handle, &got, sizeof(got)) == 0);
    CHECK(mp_write(out, "pipe", 4) == 0);
    CHECK(mp_write(event_handle, &three, sizeof(three)) == 0);
    for (int i = 0; i < 4; i++) {
        event = next(channel);
        CHECK(event.error == 0 && event.size == (event.handle == event_handle ? 8 : 4));
    }
    CHECK(got == 3 && memcmp(buf, "pipe", 4) == 0);
    CHECK(mp_unregister(out, NULL) == 0);
    close(ends[1]);
    CHECK(mp_read(in, buf, sizeof(buf)) == 0);
    CHECK(succeeds(channel, MP_READ, in).size == 0);
    close(ends[0]);
    close(counter);
    CHECK(mp_destroy(channel) == 0);
}

static void many_are_dispatched_at_once(void)
{
    enum { PAIRS = 20 };
    mp_channel_t *channel = create();
    mp_handle_t handles[PAIRS];
    struct mp_event events[PAIRS + 5];
    char bufs[PAIRS][4];
    int ends[PAIRS][2], seen = 0;

    for (int i = 0; i < PAIRS; i++) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends[i]) == 0);
        handles[i] = mp_register(channel, ends[i][0], bufs[i], 0);
        CHECK(handles[i] != MP_NO_HANDLE);
        CHECK(mp_read(handles[i], bufs[i], 4) == 0);
        send_all(ends[i][1], &i, 4);
    }
    while (seen < PAIRS) {
        int count = mp_dispatch_many(channel, events, 7, PATIENCE_NS);

        CHECK(count >= 1 && count <= 7);
        for (int i = 0; i < count; i++) {
            int value;

            CHECK(events[i].cmd == MP_READ && events[i].error == 0 && events[i].size == 4);
            CHECK(events[i].buf == events[i].cookie);
            memcpy(&value, events[i].buf, 4);
            CHECK(handles[value] == events[i].handle);
        }
        seen += count;
    }
    CHECK(mp_dispatch_many(channel, events, PAIRS + 5, 0) == 0);
    FAILS(mp_dispatch_many(channel, events, 0, 0), -1, EINVAL);
    FAILS(mp_dispatch_many(channel, events, -1, 0), -1, EINVAL);
    FAILS(mp_dispatch_many(channel, events, 1, -5), -1, EINVAL);
    CHECK(mp_destroy(channel) == 0);
    for (int i = 0; i < PAIRS; i++) {
        close(ends[i][0]);
        close(ends[i][1]);
    }
}

static void flushing_hands_over_without_waiting(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);

    CHECK(mp_write(pair.handle, "now", 3) == 0);
    CHECK(mp_flush(channel) == 0);
    receive_exactly(pair.peer, "now", 3);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

/* Waits in a poll() of the program's own; `timeout_ns` is what mp_park() allows. */
static int wait_outside(mp_channel_t *channel, int64_t timeout_ns)
{
    struct pollfd polled[8];
    int fds[8], count = mp_descriptors(channel, fds, 8);

    CHECK(count >= 1 && count <= 8);
    CHECK(mp_descriptors(channel, NULL, 0) == count);
    for (int i = 0; i < count; i++)
        polled[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    if (timeout_ns == MP_FOREVER || timeout_ns > PATIENCE_NS)
        timeout_ns = PATIENCE_NS;
    return poll(polled, (nfds_t)count, (int)((timeout_ns + 999999) / 1000000));
}

static void a_parked_channel_is_polled_from_outside(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    struct mp_event event;
    mp_handle_t timer;
    int64_t timeout_ns = 77;

    CHECK(mp_read(pair.handle, NULL, 16) == 0);
    while (mp_park(channel, &timeout_ns) == 1)
        CHECK(mp_dispatch(channel, &event, 0) == 0);
    CHECK(timeout_ns == MP_FOREVER);
    send_all(pair.peer, "hello", 5);
    while (mp_dispatch(channel, &event, 0) == 0)
        if (mp_park(channel, &timeout_ns) == 0)
            CHECK(wait_outside(channel, timeout_ns) > 0);
    CHECK(event.cmd == MP_READ && event.error == 0 && event.size == 5);
    /* A timer bounds the wait and makes no descriptor readable. */
    timer = mp_timer(channel, 20 * 1000 * 1000, 0, NULL);
    while (mp_dispatch(channel, &event, 0) == 0)
        if (mp_park(channel, &timeout_ns) == 0) {
            CHECK(timeout_ns > 0 && timeout_ns <= 20 * 1000 * 1000);
            wait_outside(channel, timeout_ns);
        }
    CHECK(event.cmd == MP_TIMER && event.handle == timer);
    /* An event that waits, and a wake-up, are work. */
    CHECK(mp_wake(channel) == 0);
    if (mp_park(channel, &timeout_ns) == 0)
        CHECK(wait_outside(channel, timeout_ns) > 0);
    succeeds(channel, MP_WAKE, MP_NO_HANDLE);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void texts_are_written_like_snprintf(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    const char *name = chosen_driver == MP_DRIVER_URING ? "uring" : "epoll";
    char text[8192], small[9];
    ssize_t size;

    memset(small, 'x', sizeof(small));
    size = mp_report(channel, text, sizeof(text));
    CHECK(size > 20 && size < (ssize_t)sizeof(text) && strlen(text) == (size_t)size);
    CHECK(strstr(text, name) != NULL);
    CHECK(mp_report(channel, small, sizeof(small) - 1) == size);
    CHECK(strlen(small) == 7 && memcmp(small, text, 7) == 0 && small[8] == 'x');
    CHECK(mp_report(channel, NULL, 0) == size);
    FAILS(mp_report(channel, NULL, 5), -1, EFAULT);

    size = mp_explain(pair.handle, text, sizeof(text));
    CHECK(size > 20 && strlen(text) == (size_t)size);
    CHECK(strstr(text, "127.0.0.1") != NULL && strstr(text, name) != NULL);
    /* A program in C gets the back end `kernel`, as the manual says. */
    CHECK(strstr(text, "kernel / ") != NULL);
    CHECK(mp_explain(pair.handle, NULL, 0) > 20);
    FAILS(mp_explain(pair.handle, NULL, 5), -1, EFAULT);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void counters_count(void)
{
    struct { struct mp_counters known; uint64_t later[2]; } record;
    mp_channel_t *channel = create();
    struct mp_counters counters;
    struct pair pair = stream_pair(channel, NULL);
    char buf[4];

    CHECK(mp_counters(channel, &counters, sizeof(counters)) == 0);
    CHECK(counters.accepted == 1 && counters.completions >= 1 && counters.stray_answers == 0);
    CHECK(mp_read(pair.handle, buf, sizeof(buf)) == 0);
    send_all(pair.peer, "x", 1);
    succeeds(channel, MP_READ, pair.handle);
    memset(&record, 0xff, sizeof(record));
    CHECK(mp_counters(channel, &record.known, sizeof(record)) == 0);
    CHECK(record.known.operations == counters.operations + 1);
    CHECK(record.known.completions == counters.completions + 1);
    CHECK(record.later[0] == 0 && record.later[1] == 0);
    /* A program of an older version has a shorter record. */
    memset(&counters, 0xff, sizeof(counters));
    CHECK(mp_counters(channel, &counters, 2 * sizeof(uint64_t)) == 0);
    CHECK(counters.completions == record.known.completions);
    CHECK(counters.system_calls == UINT64_MAX);
    FAILS(mp_counters(channel, &counters, 0), -1, EINVAL);
    FAILS(mp_counters(channel, &counters, SIZE_MAX), -1, EINVAL);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void the_configuration_is_obeyed_or_refused(void)
{
    struct mp_config config = configuration(), wrong;
    struct { struct mp_config known; uint64_t later; } newer;
    mp_channel_t *channel;

    config.batch = 1;
    config.buffer_len = 64;
    config.buffer_count = 8;
    config.core = 0;
    config.flags = MP_NO_LWSOCKETS | MP_NO_PARTITION;
    channel = create_with(&config);
    CHECK(mp_destroy(channel) == 0);

    wrong = config;
    wrong.server_core = 3;
    FAILS(mp_create(&wrong), NULL, EINVAL);
    wrong = config;
    wrong.batch = 0;
    FAILS(mp_create(&wrong), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "batch") != NULL);
    wrong = config;
    wrong.driver = 3;
    FAILS(mp_create(&wrong), NULL, EINVAL);
    wrong = config;
    wrong.flags = 0x80;
    FAILS(mp_create(&wrong), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "config->flags = 128: must be made of MP_NO_LW") != NULL);
    wrong = config;
    wrong.backend = MP_BACKEND_KERNEL;
    wrong.flags = MP_LOOPBACK_STACK;
    FAILS(mp_create(&wrong), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "MP_LOOPBACK_STACK: only the local back end") != NULL);
    wrong = config;
    wrong.size = 0;
    FAILS(mp_create(&wrong), NULL, EINVAL);
    wrong = config;
    wrong.core = 1023;
    FAILS(mp_create(&wrong), NULL, EINVAL);

    memset(&newer, 0xff, sizeof(newer));
    CHECK(mp_config_init(&newer.known, sizeof(newer)) == 0);
    CHECK(newer.known.size == sizeof(newer) && newer.known.core == -1 && newer.later == 0);
    newer.known.driver = chosen_driver;
    CHECK(mp_destroy(create_with(&newer.known)) == 0);
    newer.later = 1;
    FAILS(mp_create(&newer.known), NULL, EINVAL);
    FAILS(mp_config_init(&config, 4), -1, EINVAL);
    FAILS(mp_config_init(&config, SIZE_MAX), -1, EINVAL);

    channel = mp_create(NULL);
    CHECK(channel != NULL && mp_destroy(channel) == 0);
}

int main(int argc, char **argv)
{
    choose_driver(argc, argv);
    RUN(dispatch_waits_as_long_as_it_is_told);
    RUN(timers_expire_once_or_in_a_rhythm);
    RUN_UNLESS_VALGRIND(another_thread_can_wake_the_channel);
    RUN_UNLESS_VALGRIND(a_signal_handler_can_wake_and_nothing_else);
    RUN_UNLESS_VALGRIND(a_caught_signal_does_not_end_the_wait);
    RUN(pipes_and_event_descriptors);
    RUN(many_are_dispatched_at_once);
    RUN(flushing_hands_over_without_waiting);
    RUN(a_parked_channel_is_polled_from_outside);
    RUN(texts_are_written_like_snprintf);
    RUN(counters_count);
    RUN(the_configuration_is_obeyed_or_refused);
    return 0;
}
