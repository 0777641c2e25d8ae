/*
 * Quiet writes: no event when all goes well, an event when it does not, and mp_unsent_bytes() that
 * tells what is still with the channel.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "check.h"

enum {
    LARGE = 8 << 20, /* more than a socket takes while its peer does not read */
    SMALL = 1500,    /* fits into a buffer of the channel */
};

static struct mp_counters counted(mp_channel_t *channel)
{
    struct mp_counters counters;

    CHECK(mp_counters(channel, &counters, sizeof(counters)) == 0);
    return counters;
}

/* Bytes that tell where in a stream they stand. */
static char *pattern(size_t size)
{
    char *data = (char *)malloc(size);

    CHECK(data != NULL);
    for (size_t i = 0; i < size; i++)
        data[i] = (char)(i * 7 + i / 251);
    return data;
}

/* A process that reads so many bytes, which must be these. */
static pid_t reader_of(int peer, const char *data, size_t size)
{
    pid_t reader = fork();

    CHECK(reader >= 0);
    if (reader == 0) {
        receive_exactly(peer, data, size);
        _exit(0);
    }
    return reader;
}

static void ends_well(pid_t reader)
{
    int status;

    CHECK(waitpid(reader, &status, 0) == reader && status == 0);
}

/* Dispatches, and gets no event, until nothing is left to send. */
static void until_all_is_sent(mp_channel_t *channel, mp_handle_t handle)
{
    struct mp_event event;

    for (int turn = 0; mp_unsent_bytes(handle) > 0; turn++) {
        CHECK(turn < 2000);
        CHECK(mp_dispatch(channel, &event, 10 * 1000 * 1000) == 0);
    }
    CHECK(mp_unsent_bytes(handle) == 0);
}

static void all_goes_well_and_nothing_is_said(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    struct mp_counters before = counted(channel), after;
    char buf[] = "quietly";

    CHECK(mp_unsent_bytes(pair.handle) == 0);
    CHECK(mp_write_quiet(pair.handle, buf, 7) == 0);
    /* The bytes were copied: the memory is the program's again. */
    memset(buf, 'x', sizeof(buf));
    quiet(channel);
    CHECK(mp_unsent_bytes(pair.handle) == 0);
    receive_exactly(pair.peer, "quietly", 7);
    after = counted(channel);
    CHECK(after.operations == before.operations + 1 && after.completions == before.completions);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void what_is_queued_behind_completes_after_it(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    char buf[8];

    for (int i = 0; i < 3; i++) {
        CHECK(mp_write_quiet(pair.handle, "first, ", 7) == 0);
        CHECK(mp_write(pair.handle, "then", 4) == 0);
        CHECK(succeeds(channel, MP_WRITE, pair.handle).size == 4);
        CHECK(mp_unsent_bytes(pair.handle) == 0);
        receive_exactly(pair.peer, "first, then", 11);
    }
    CHECK(mp_write_quiet(pair.handle, "bye", 3) == 0);
    CHECK(mp_disconnect(pair.handle, MP_WRITING) == 0);
    succeeds(channel, MP_DISCONNECT, pair.handle);
    receive_exactly(pair.peer, "bye", 3);
    CHECK(recv(pair.peer, buf, sizeof(buf), 0) == 0);
    CHECK(mp_unregister(pair.handle, NULL) == 0);
    quiet(channel);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void a_large_one_is_whole_and_its_rest_is_told(void)
{
    mp_channel_t *channel = create_without_limit();
    struct pair pair = stream_pair(channel, NULL);
    char *data = pattern(LARGE);
    ssize_t stuck;
    pid_t reader;

    CHECK(mp_write_quiet(pair.handle, data, LARGE - 3) == 0);
    CHECK(mp_flush(channel) == 0);
    quiet(channel);
    stuck = mp_unsent_bytes(pair.handle);
    CHECK(stuck > 0 && stuck <= LARGE - 3);
    /* Other writes count as well. */
    CHECK(mp_write(pair.handle, data + LARGE - 3, 1) == 0);
    CHECK(mp_write_quiet(pair.handle, data + LARGE - 2, 2) == 0);
    CHECK(mp_unsent_bytes(pair.handle) == stuck + 3);
    reader = reader_of(pair.peer, data, LARGE);
    CHECK(succeeds(channel, MP_WRITE, pair.handle).size == 1);
    until_all_is_sent(channel, pair.handle);
    ends_well(reader);
    free(data);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

/* Small writes until the socket takes no more; how many bytes they were. */
static size_t fill_up(mp_channel_t *channel, const struct pair *pair, const char *data, size_t max)
{
    struct mp_event event;
    size_t size = 0;

    for (int turn = 1;; turn++) {
        CHECK(size + SMALL <= max);
        CHECK(mp_write_quiet(pair->handle, data + size, SMALL) == 0);
        size += SMALL;
        if (turn % 8 == 0) {
            CHECK(mp_dispatch(channel, &event, 0) == 0);
            if (mp_unsent_bytes(pair->handle) > 0)
                return size;
        }
    }
}

static void a_full_socket_loses_and_reorders_nothing(void)
{
    enum { MAX = 64 << 20 };
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    char *data = pattern(MAX);
    size_t size;
    pid_t reader;

    size = fill_up(channel, &pair, data, MAX - 10 * SMALL);
    for (int i = 0; i < 10; i++, size += SMALL)
        CHECK(mp_write_quiet(pair.handle, data + size, SMALL) == 0);
    CHECK(mp_unsent_bytes(pair.handle) >= 10 * SMALL);
    reader = reader_of(pair.peer, data, size);
    until_all_is_sent(channel, pair.handle);
    ends_well(reader);
    /* With room again, all is as before. */
    CHECK(mp_write_quiet(pair.handle, "after", 5) == 0);
    quiet(channel);
    receive_exactly(pair.peer, "after", 5);
    free(data);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void reset(int peer)
{
    struct linger at_once = {1, 0};

    CHECK(setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
    close(peer);
}

/* The next event, which says that a write of this handle failed. */
static void a_write_fails(mp_channel_t *channel, mp_handle_t handle, void *cookie)
{
    struct mp_event event = expect(channel, MP_WRITE, handle);

    CHECK(event.error == EPIPE || event.error == ECONNRESET);
    CHECK(event.size == 0 && event.cookie == cookie && event.flags == 0);
}

static void what_fails_is_told(void)
{
    mp_channel_t *channel = create();
    int mine;
    struct pair pair = stream_pair(channel, &mine);

    reset(pair.peer);
    quiet(channel);
    CHECK(mp_write_quiet(pair.handle, "too late", 8) == 0);
    a_write_fails(channel, pair.handle, &mine);
    CHECK(mp_unsent_bytes(pair.handle) == 0);
    /* And so is each one after it. */
    CHECK(mp_write_quiet(pair.handle, "too late", 8) == 0);
    a_write_fails(channel, pair.handle, &mine);
    quiet(channel);
    CHECK(mp_destroy(channel) == 0);
}

static void a_reset_while_the_socket_is_full_fails_each_that_was_left(void)
{
    mp_channel_t *channel = create_without_limit();
    int mine;
    struct pair pair = stream_pair(channel, &mine);
    char *data = pattern(LARGE);

    CHECK(mp_write_quiet(pair.handle, data, LARGE) == 0);
    CHECK(mp_write_quiet(pair.handle, data, SMALL) == 0);
    CHECK(mp_write(pair.handle, data, SMALL) == 0);
    CHECK(mp_flush(channel) == 0);
    quiet(channel);
    CHECK(mp_unsent_bytes(pair.handle) > 2 * SMALL);
    reset(pair.peer);
    for (int i = 0; i < 3; i++)
        a_write_fails(channel, pair.handle, &mine);
    quiet(channel);
    CHECK(mp_unsent_bytes(pair.handle) == 0);
    free(data);
    CHECK(mp_destroy(channel) == 0);
}

static void it_waits_for_its_connection(void)
{
    mp_channel_t *channel = create();
    struct sockaddr_in address, closed_port = loopback(1);
    struct sockaddr *any = (struct sockaddr *)&address;
    mp_handle_t client, listener = listen_on_loopback(channel, &address);
    struct mp_accept_options options = {sizeof(options), 1, MP_AS_LWSOCKET, NULL, 100};
    struct mp_event event;

    CHECK(mp_accept_with(listener, &options) == 0);
    client = mp_connect(channel, any, sizeof(address), NULL, NULL);
    CHECK(client != MP_NO_HANDLE);
    CHECK(mp_write_quiet(client, "early", 5) == 0);
    CHECK(mp_unsent_bytes(client) == 5);
    /* The client's MP_CONNECT and the server's MP_ACCEPT and MP_READ; no MP_WRITE. */
    for (int i = 0; i < 3; i++) {
        event = next(channel);
        CHECK(event.error == 0 && event.cmd != MP_WRITE);
        if (event.cmd == MP_READ) {
            CHECK(event.size == 5 && memcmp(event.buf, "early", 5) == 0);
            CHECK(mp_release(&event) == 0);
        }
    }
    quiet(channel);
    CHECK(mp_unsent_bytes(client) == 0 && mp_unsent_bytes(listener) == 0);

    client = mp_connect(channel, (struct sockaddr *)&closed_port, sizeof(closed_port), NULL, NULL);
    CHECK(client != MP_NO_HANDLE);
    CHECK(mp_write_quiet(client, "early", 5) == 0);
    CHECK(expect(channel, MP_CONNECT, client).error == ECONNREFUSED);
    CHECK(expect(channel, MP_WRITE, client).error == ECONNREFUSED);
    CHECK(mp_unsent_bytes(client) == 0);
    CHECK(mp_destroy(channel) == 0);
}

static void to_fd_comes_after_it(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    struct mp_event event;

    CHECK(mp_write_quiet(pair.handle, "before", 6) == 0);
    CHECK(mp_to_fd(pair.handle) == 0);
    FAILS(mp_write_quiet(pair.handle, "x", 1), -1, ESHUTDOWN);
    event = succeeds(channel, MP_TO_FD, pair.handle);
    FAILS(mp_unsent_bytes(pair.handle), -1, EBADF);
    send_all(event.fd, " and after", 10);
    receive_exactly(pair.peer, "before and after", 16);
    close(event.fd);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void unregister_ends_it_without_an_event(void)
{
    mp_channel_t *channel = create();
    char *data = pattern(LARGE);

    for (int i = 0; i < 20; i++) {
        struct pair pair = stream_pair(channel, NULL);

        CHECK(mp_write_quiet(pair.handle, data, i % 2 == 0 ? SMALL : LARGE) == 0);
        CHECK(mp_unregister(pair.handle, NULL) == 0);
        FAILS(mp_unsent_bytes(pair.handle), -1, EBADF);
        FAILS(mp_write_quiet(pair.handle, data, SMALL), -1, EBADF);
        close(pair.peer);
    }
    quiet(channel);
    free(data);
    CHECK(mp_destroy(channel) == 0);
}

static void messages_pipes_and_files_take_it_too(void)
{
    mp_channel_t *channel = create();
    mp_handle_t message, pipe_end, file;
    int pair[2], ends[2], fd = memfd_create("mp-capi-quiet", MFD_CLOEXEC);
    char buf[8];

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    CHECK(pipe2(ends, O_CLOEXEC) == 0 && fd >= 0);
    message = mp_register(channel, pair[0], NULL, 0);
    pipe_end = mp_register(channel, ends[1], NULL, 0);
    file = mp_register(channel, fd, NULL, 0);
    CHECK(message != MP_NO_HANDLE && pipe_end != MP_NO_HANDLE && file != MP_NO_HANDLE);
    CHECK(mp_write_quiet(message, "one", 3) == 0);
    CHECK(mp_write_quiet(message, NULL, 0) == 0);
    CHECK(mp_write_quiet(message, "three", 5) == 0);
    CHECK(mp_write_quiet(pipe_end, "pipe", 4) == 0);
    CHECK(mp_write_quiet(file, "fi", 2) == 0);
    CHECK(mp_write_quiet(file, "le", 2) == 0);
    until_all_is_sent(channel, message);
    until_all_is_sent(channel, pipe_end);
    until_all_is_sent(channel, file);
    CHECK(recv(pair[1], buf, sizeof(buf), 0) == 3 && memcmp(buf, "one", 3) == 0);
    CHECK(recv(pair[1], buf, sizeof(buf), MSG_DONTWAIT) == 0);
    CHECK(recv(pair[1], buf, sizeof(buf), 0) == 5 && memcmp(buf, "three", 5) == 0);
    CHECK(read(ends[0], buf, sizeof(buf)) == 4 && memcmp(buf, "pipe", 4) == 0);
    CHECK(pread(fd, buf, sizeof(buf), 0) == 4 && memcmp(buf, "file", 4) == 0);
    quiet(channel);
    CHECK(mp_destroy(channel) == 0);
    close(pair[0]);
    close(pair[1]);
    close(ends[0]);
    close(ends[1]);
    close(fd);
}

/* More than any socket takes, also one whose buffers have grown. */
enum { HUGE_SIZE = 64 << 20 };

/* Writes so much to a handle that part of it waits for room in its socket. */
static void leave_unsent(mp_channel_t *channel, mp_handle_t handle, const char *data)
{
    CHECK(mp_write_quiet(handle, data, HUGE_SIZE) == 0);
    CHECK(mp_flush(channel) == 0);
    quiet(channel);
    CHECK(mp_unsent_bytes(handle) > 0);
}

static void writes_beyond_the_limit_are_refused_until_the_peer_reads(void)
{
    enum { MAX = 100000 };
    struct mp_config config = configuration();
    mp_channel_t *channel;
    int mine, other;
    struct pair pair, second;
    struct mp_event event;
    struct iovec part = {NULL, MAX};
    char *data = pattern(HUGE_SIZE);
    pid_t reader;

    CHECK(config.unsent_bytes_max == 1 << 20);
    config.unsent_bytes_max = MAX;
    channel = create_with(&config);
    pair = stream_pair(channel, &mine);
    part.iov_base = data;
    for (int turn = 1; turn <= 2; turn++) {
        /* One write may be longer than the limit, but nothing behind it. */
        leave_unsent(channel, pair.handle, data);
        FAILS(mp_write_quiet(pair.handle, data, SMALL), -1, ENOBUFS);
        FAILS(mp_write(pair.handle, data, LARGE), -1, ENOBUFS);
        FAILS(mp_writev(pair.handle, &part, 1), -1, ENOBUFS);
        CHECK(counted(channel).writes_refused == 3u * (unsigned)turn);
        quiet(channel);
        reader = reader_of(pair.peer, data, HUGE_SIZE);
        event = succeeds(channel, MP_DRAINED, pair.handle);
        CHECK(event.cookie == &mine && event.size == 0 && event.flags == 0 && event.fd == -1);
        CHECK(mp_unsent_bytes(pair.handle) <= MAX / 2);
        until_all_is_sent(channel, pair.handle);
        ends_well(reader);
    }
    /* A handle that was refused and leaves, or whose connection ends, hears no more of it. */
    second = stream_pair(channel, &other);
    leave_unsent(channel, pair.handle, data);
    leave_unsent(channel, second.handle, data);
    FAILS(mp_write(pair.handle, "x", 1), -1, ENOBUFS);
    FAILS(mp_write(second.handle, "x", 1), -1, ENOBUFS);
    CHECK(mp_unregister(pair.handle, NULL) == 0);
    reset(second.peer);
    a_write_fails(channel, second.handle, &other);
    quiet(channel);
    free(data);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

int main(int argc, char **argv)
{
    choose_driver(argc, argv);
    RUN(all_goes_well_and_nothing_is_said);
    RUN(what_is_queued_behind_completes_after_it);
    RUN(a_large_one_is_whole_and_its_rest_is_told);
    RUN(a_full_socket_loses_and_reorders_nothing);
    RUN(what_fails_is_told);
    RUN(a_reset_while_the_socket_is_full_fails_each_that_was_left);
    RUN(it_waits_for_its_connection);
    RUN(to_fd_comes_after_it);
    RUN(unregister_ends_it_without_an_event);
    RUN(messages_pipes_and_files_take_it_too);
    RUN(writes_beyond_the_limit_are_refused_until_the_peer_reads);
    return 0;
}
