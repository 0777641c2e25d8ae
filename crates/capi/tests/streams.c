/*
 * Streams: accepting, connecting, reading, writing and closing TCP and UNIX connections.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "check.h"

static int cookie_a, cookie_b;

static void listing_3_1_registers_what_it_accepts(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, &cookie_a);
    char buf[64];
    struct mp_event event;

    CHECK(mp_read(pair.handle, buf, sizeof(buf)) == 0);
    send_all(pair.peer, "ping", 4);
    event = succeeds(channel, MP_READ, pair.handle);
    CHECK(event.cookie == &cookie_a);
    CHECK(event.size == 4 && event.buf == buf && memcmp(buf, "ping", 4) == 0);
    CHECK(event.flags == 0 && event.fd == -1 && event.connection == MP_NO_HANDLE);

    CHECK(mp_write(pair.handle, "pong", 4) == 0);
    event = succeeds(channel, MP_WRITE, pair.handle);
    CHECK(event.size == 4);
    receive_exactly(pair.peer, "pong", 4);

    CHECK(mp_set_cookie(pair.handle, &cookie_b) == 0);
    CHECK(mp_read(pair.handle, buf, sizeof(buf)) == 0);
    CHECK(shutdown(pair.peer, SHUT_WR) == 0);
    event = succeeds(channel, MP_READ, pair.handle);
    CHECK(event.size == 0 && event.cookie == &cookie_b);
    CHECK(mp_disconnect(pair.handle, MP_BOTH) == 0);
    succeeds(channel, MP_DISCONNECT, pair.handle);
    CHECK(recv(pair.peer, buf, sizeof(buf), 0) == 0);
    CHECK(mp_unregister(pair.handle, NULL) == 0);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void a_connection_can_be_accepted_as_a_descriptor(void)
{
    mp_channel_t *channel = create();
    struct sockaddr_in address;
    mp_handle_t handle, listener = listen_on_loopback(channel, &address);
    struct mp_event event;
    char buf[8];
    int peer;

    CHECK(mp_accept(listener, MP_ALWAYS, MP_AS_FD) == 0);
    CHECK(mp_flush(channel) == 0);
    peer = client_of(&address);
    event = succeeds(channel, MP_ACCEPT, listener);
    CHECK(event.fd >= 0 && event.fd < MP_FIRST_LWSOCKET && event.connection == MP_NO_HANDLE);
    CHECK((fcntl(event.fd, F_GETFD) & FD_CLOEXEC) != 0);
    handle = mp_register(channel, event.fd, NULL, 0);
    CHECK(handle != MP_NO_HANDLE);
    CHECK(mp_read(handle, buf, sizeof(buf)) == 0);
    send_all(peer, "x", 1);
    CHECK(succeeds(channel, MP_READ, handle).size == 1);

    /* The program's descriptor is its own: it works beside the handle and after it. */
    CHECK(mp_unregister(handle, NULL) == 0);
    send_all(event.fd, "y", 1);
    receive_exactly(peer, "y", 1);
    close(event.fd);
    CHECK(recv(peer, buf, sizeof(buf), 0) == 0);
    close(peer);
    CHECK(mp_destroy(channel) == 0);
}

static void a_first_read_comes_after_its_accept_and_is_lent(void)
{
    mp_channel_t *channel = create();
    struct sockaddr_in address;
    mp_handle_t connection, listener = listen_on_loopback(channel, &address);
    struct mp_accept_options options = {sizeof(options), 2, MP_AS_LWSOCKET, &cookie_a, 100};
    struct mp_event event;
    char buf[8];
    int peer;

    CHECK(mp_accept_with(listener, &options) == 0);
    CHECK(mp_flush(channel) == 0);
    for (int i = 0; i < 2; i++) {
        peer = client_of(&address);
        event = succeeds(channel, MP_ACCEPT, listener);
        connection = event.connection;
        /* A read that is asked for now comes after the first one. */
        CHECK(mp_read(connection, buf, sizeof(buf)) == 0);
        send_all(peer, "first", 5);
        event = succeeds(channel, MP_READ, connection);
        CHECK(event.cookie == &cookie_a && event.size == 5 && (event.flags & MP_LENT) != 0);
        CHECK(memcmp(event.buf, "first", 5) == 0 && event.buf != buf);
        CHECK(mp_release(&event) == 0);
        CHECK(event.buf == NULL && event.flags == 0);
        FAILS(mp_release(&event), -1, EINVAL);
        send_all(peer, "second", 6);
        event = succeeds(channel, MP_READ, connection);
        CHECK(event.size == 6 && event.buf == buf && memcmp(buf, "second", 6) == 0);
        CHECK(mp_unregister(connection, NULL) == 0);
        close(peer);
    }
    CHECK(mp_destroy(channel) == 0);
}

static void lent_buffers_outlive_their_handle_until_released(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    struct mp_event lent, copy;

    CHECK(mp_read(pair.handle, NULL, 4096) == 0);
    send_all(pair.peer, "kept", 4);
    lent = succeeds(channel, MP_READ, pair.handle);
    CHECK(mp_unregister(pair.handle, NULL) == 0);
    CHECK(lent.size == 4 && memcmp(lent.buf, "kept", 4) == 0);
    copy = lent;
    CHECK(mp_release(&copy) == 0);
    FAILS(mp_release(&lent), -1, EINVAL);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
    FAILS(mp_release(&lent), -1, EBADF);
}

static void reads_are_answered_in_order_into_their_own_memory(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    char a[2] = "", b[3] = "", c[8] = "", d[2] = "";
    struct iovec parts[] = {{a, 0}, {c, 3}, {NULL, 0}, {c + 4, 4}};
    struct mp_event event;

    CHECK(mp_read(pair.handle, a, 2) == 0);
    CHECK(mp_read(pair.handle, b, 3) == 0);
    CHECK(mp_readv(pair.handle, parts, 4) == 0);
    CHECK(mp_read(pair.handle, NULL, 1) == 0);
    CHECK(mp_read(pair.handle, d, 2) == 0);
    send_all(pair.peer, "aabbbcccCCCCldd", 15);
    event = succeeds(channel, MP_READ, pair.handle);
    CHECK(event.size == 2 && memcmp(a, "aa", 2) == 0);
    event = succeeds(channel, MP_READ, pair.handle);
    CHECK(event.size == 3 && memcmp(b, "bbb", 3) == 0);
    event = succeeds(channel, MP_READ, pair.handle);
    CHECK(event.size == 7 && event.buf == NULL && memcmp(c, "ccc\0CCCC", 8) == 0);
    event = succeeds(channel, MP_READ, pair.handle);
    CHECK(event.size == 1 && *(const char *)event.buf == 'l' && (event.flags & MP_LENT));
    CHECK(mp_release(&event) == 0);
    event = succeeds(channel, MP_READ, pair.handle);
    CHECK(event.size == 2 && memcmp(d, "dd", 2) == 0);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void a_write_is_whole_however_large(void)
{
    enum { SIZE = 3 << 20 };
    mp_channel_t *channel = create_without_limit();
    struct pair pair = stream_pair(channel, NULL);
    char *data = (char *)malloc(SIZE);
    struct iovec parts[] = {{data, 5}, {NULL, 0}, {data + 5, SIZE - 5}};
    struct mp_event event;
    pid_t reader;
    int status;

    CHECK(data != NULL);
    for (size_t i = 0; i < SIZE; i++)
        data[i] = (char)(i * 7 + i / 251);
    reader = fork();
    if (reader == 0) {
        receive_exactly(pair.peer, data, SIZE);
        receive_exactly(pair.peer, data, SIZE);
        _exit(0);
    }
    CHECK(mp_write(pair.handle, data, SIZE) == 0);
    CHECK(mp_writev(pair.handle, parts, 3) == 0);
    event = succeeds(channel, MP_WRITE, pair.handle);
    CHECK(event.size == SIZE);
    event = succeeds(channel, MP_WRITE, pair.handle);
    CHECK(event.size == SIZE);
    CHECK(waitpid(reader, &status, 0) == reader && status == 0);
    free(data);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void half_closed_is_not_closed(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    char buf[8];

    CHECK(mp_write(pair.handle, "bye", 3) == 0);
    CHECK(mp_disconnect(pair.handle, MP_WRITING) == 0);
    CHECK(mp_read(pair.handle, buf, sizeof(buf)) == 0);
    succeeds(channel, MP_WRITE, pair.handle);
    succeeds(channel, MP_DISCONNECT, pair.handle);
    receive_exactly(pair.peer, "bye", 3);
    CHECK(recv(pair.peer, buf, 1, 0) == 0);
    send_all(pair.peer, "still", 5);
    CHECK(succeeds(channel, MP_READ, pair.handle).size == 5);
    CHECK(mp_write(pair.handle, "no", 2) == 0);
    CHECK(expect(channel, MP_WRITE, pair.handle).error == EPIPE);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void a_reset_is_seen_on_either_side(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    struct linger at_once = {1, 0};
    char buf[8];

    CHECK(mp_read(pair.handle, buf, sizeof(buf)) == 0);
    CHECK(mp_flush(channel) == 0);
    CHECK(setsockopt(pair.peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
    close(pair.peer);
    CHECK(expect(channel, MP_READ, pair.handle).error == ECONNRESET);
    CHECK(mp_unregister(pair.handle, NULL) == 0);

    pair = stream_pair(channel, NULL);
    CHECK(mp_disconnect(pair.handle, MP_RESET) == 0);
    succeeds(channel, MP_DISCONNECT, pair.handle);
    CHECK(recv(pair.peer, buf, sizeof(buf), 0) == -1 && errno == ECONNRESET);
    CHECK(mp_unregister(pair.handle, NULL) == 0);
    quiet(channel);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void connecting_tells_how_it_went(void)
{
    mp_channel_t *channel = create();
    struct sockaddr_in address, local, closed_port = loopback(1);
    socklen_t size = sizeof(local);
    mp_handle_t listener = listen_on_loopback(channel, &address), client, server;
    struct sockaddr_in from = loopback(0);
    struct mp_connect_options options = {.size = sizeof(options),
                                         .timeout_ns = 1000000000,
                                         .bind = (struct sockaddr *)&from,
                                         .bind_size = sizeof(from),
                                         .flags = MP_GATHER};
    struct mp_event event;
    char buf[8];

    CHECK(mp_accept(listener, 1, MP_AS_LWSOCKET) == 0);
    client = mp_connect(channel, (struct sockaddr *)&address, sizeof(address), &options, &cookie_a);
    CHECK(client != MP_NO_HANDLE);
    /* What is asked for before the connection stands waits for it. */
    CHECK(mp_write(client, "early", 5) == 0);
    server = MP_NO_HANDLE;
    for (int i = 0; i < 3; i++) {
        event = next(channel);
        CHECK(event.error == 0);
        if (event.cmd == MP_ACCEPT)
            server = event.connection;
        else
            CHECK(event.handle == client && event.cookie == &cookie_a);
    }
    CHECK(server != MP_NO_HANDLE);
    CHECK(mp_local_address(client, (struct sockaddr *)&local, &size) == 0);
    CHECK(local.sin_port != 0 && size == sizeof(local));
    CHECK(mp_peer_address(server, (struct sockaddr *)&from, &size) == 0);
    CHECK(from.sin_port == local.sin_port);
    CHECK(mp_peer_address(client, (struct sockaddr *)&from, &size) == 0);
    CHECK(from.sin_port == address.sin_port);
    CHECK(mp_read(server, buf, sizeof(buf)) == 0);
    CHECK(succeeds(channel, MP_READ, server).size == 5);
    CHECK(mp_unregister(client, NULL) == 0);

    client = mp_connect(channel, (struct sockaddr *)&closed_port, sizeof(closed_port), NULL, NULL);
    CHECK(client != MP_NO_HANDLE);
    CHECK(expect(channel, MP_CONNECT, client).error == ECONNREFUSED);
    FAILS(mp_peer_address(client, (struct sockaddr *)&from, &size), -1, ENOTCONN);
    CHECK(mp_unregister(client, NULL) == 0);
    CHECK(mp_destroy(channel) == 0);
}

static void the_end_of_a_connection_is_an_event(void)
{
    mp_channel_t *channel = create();
    struct linger reset = {1, 0};
    struct mp_event first, second;
    struct pair pair = stream_pair(channel, NULL);

    /* In order: the peer closes, then this side. Which event is first is the driver's choice. */
    CHECK(mp_await_end(pair.handle) == 0);
    FAILS(mp_await_end(pair.handle), -1, EAGAIN);
    close(pair.peer);
    CHECK(mp_read(pair.handle, NULL, 16) == 0);
    CHECK(succeeds(channel, MP_READ, pair.handle).size == 0);
    CHECK(mp_disconnect(pair.handle, MP_WRITING) == 0);
    first = next(channel);
    second = next(channel);
    CHECK(first.error == 0 && second.error == 0);
    CHECK(first.cmd + second.cmd == MP_DISCONNECT + MP_AWAIT_END);
    CHECK(mp_unregister(pair.handle, NULL) == 0);
    /* By a reset, while no operation would tell. */
    pair = stream_pair(channel, NULL);
    CHECK(mp_await_end(pair.handle) == 0);
    CHECK(mp_flush(channel) == 0);
    CHECK(setsockopt(pair.peer, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) == 0);
    close(pair.peer);
    CHECK(expect(channel, MP_AWAIT_END, pair.handle).error == ECONNRESET);
    CHECK(mp_destroy(channel) == 0);
}

static void an_lwsocket_becomes_a_descriptor(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, &cookie_a);
    struct mp_event event;
    char buf[8];

    CHECK(mp_read(pair.handle, buf, 2) == 0);
    send_all(pair.peer, "abcdef", 6);
    CHECK(succeeds(channel, MP_READ, pair.handle).size == 2);
    CHECK(mp_to_fd(pair.handle) == 0);
    FAILS(mp_read(pair.handle, buf, 2), -1, ESHUTDOWN);
    event = succeeds(channel, MP_TO_FD, pair.handle);
    CHECK(event.cookie == &cookie_a && event.fd >= 0 && event.fd < MP_FIRST_LWSOCKET);
    /* What the channel had received ahead comes with it, the rest is in the socket. */
    CHECK(event.size <= 4 && (event.size == 0) == ((event.flags & MP_LENT) == 0));
    if (event.size > 0) {
        CHECK(memcmp(event.buf, "cdef", event.size) == 0);
        CHECK(mp_release(&event) == 0);
    } else {
        receive_exactly(event.fd, "cdef", 4);
    }
    FAILS(mp_read(pair.handle, buf, 2), -1, EBADF);
    send_all(event.fd, "plain", 5);
    receive_exactly(pair.peer, "plain", 5);
    close(event.fd);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void unread_bytes_come_back_with_unregister(void)
{
    mp_channel_t *channel = create();
    int fds[2];
    mp_handle_t handle;
    struct mp_event rest;
    char buf[16];
    size_t got;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    handle = mp_register(channel, fds[0], NULL, 0);
    CHECK(handle != MP_NO_HANDLE);
    CHECK(mp_read(handle, buf, 1) == 0);
    send_all(fds[1], "0123456789", 10);
    CHECK(succeeds(channel, MP_READ, handle).size == 1);
    memset(&rest, 0xff, sizeof(rest));
    CHECK(mp_unregister(handle, &rest) == 0);
    CHECK(rest.cmd == MP_UNREGISTER && rest.error == 0 && rest.handle == handle);
    got = rest.size;
    CHECK(got <= 9 && memcmp(rest.buf ? rest.buf : "", "123456789", got) == 0);
    if (rest.flags & MP_LENT)
        CHECK(mp_release(&rest) == 0);
    if (got < 9)
        receive_exactly(fds[0], "123456789" + got, 9 - got);
    close(fds[0]);
    close(fds[1]);
    CHECK(mp_destroy(channel) == 0);
}

static void unix_streams_work_the_same(void)
{
    mp_channel_t *channel = create();
    struct sockaddr_un address, told;
    socklen_t size = sizeof(told);
    mp_handle_t listener, client, server = MP_NO_HANDLE;
    struct mp_event event;
    char buf[8];
    int written;

    memset(&address, 0, sizeof(address));
    address.sun_family = AF_UNIX;
    written = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "mp-capi-%d-%d",
                       (int)getpid(), (int)chosen_driver);
    listener = mp_listen(channel, (struct sockaddr *)&address,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)written),
                         NULL, NULL);
    CHECK(listener != MP_NO_HANDLE);
    CHECK(mp_local_address(listener, (struct sockaddr *)&told, &size) == 0);
    CHECK(size == offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)written);
    CHECK(memcmp(&told, &address, size) == 0);
    CHECK(mp_accept(listener, 1, MP_AS_LWSOCKET) == 0);
    client = mp_connect(channel, (struct sockaddr *)&address, size, NULL, NULL);
    CHECK(client != MP_NO_HANDLE);
    for (int i = 0; i < 2; i++) {
        event = next(channel);
        CHECK(event.error == 0);
        if (event.cmd == MP_ACCEPT)
            server = event.connection;
    }
    CHECK(mp_write(client, "unix", 4) == 0);
    CHECK(mp_read(server, buf, sizeof(buf)) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(next(channel).error == 0);
    CHECK(memcmp(buf, "unix", 4) == 0);
    CHECK(mp_destroy(channel) == 0);
}

static void masks_partition_a_listener(void)
{
    mp_channel_t *channel = create(), *other = create();
    struct sockaddr_in address;
    socklen_t size = sizeof(address);
    uint64_t cores[16] = {0};
    struct mp_listen_options options = {.size = sizeof(options),
                                        .backlog = 16,
                                        .flags = MP_ONLY_V6,
                                        .cpu_mask = cores,
                                        .cpu_mask_words = 1};
    struct sockaddr_in6 v6;
    mp_handle_t mine, others;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    address = loopback(0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) == 0);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    mine = mp_register(channel, fd, NULL, 0x1);
    CHECK(mine != MP_NO_HANDLE);
    FAILS(mp_register(other, fd, NULL, 0x3), MP_NO_HANDLE, EBUSY);
    others = mp_register(other, fd, NULL, 0x2);
    CHECK(others != MP_NO_HANDLE);
    cores[0] = 0x2;
    FAILS(mp_set_cpu_mask(mine, cores, 1), -1, EBUSY);
    cores[0] = 0;
    FAILS(mp_set_cpu_mask(mine, cores, 1), -1, EINVAL);
    cores[15] = UINT64_C(1) << 63;
    CHECK(mp_set_cpu_mask(mine, cores, 16) == 0);
    FAILS(mp_set_cpu_mask(mine, cores, 17), -1, EINVAL);
    FAILS(mp_set_cpu_mask(mine, cores, 0), -1, EINVAL);
    FAILS(mp_set_cpu_mask(mine, NULL, 1), -1, EFAULT);
    CHECK(mp_unregister(mine, NULL) == 0 && mp_unregister(others, NULL) == 0);
    close(fd);

    memset(&v6, 0, sizeof(v6));
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
    cores[0] = 0x1;
    mine = mp_listen(channel, (struct sockaddr *)&v6, sizeof(v6), &options, NULL);
    CHECK(mine != MP_NO_HANDLE);
    CHECK(mp_unregister(mine, NULL) == 0);
    CHECK(mp_destroy(other) == 0 && mp_destroy(channel) == 0);
}

int main(int argc, char **argv)
{
    choose_driver(argc, argv);
    RUN(listing_3_1_registers_what_it_accepts);
    RUN(a_connection_can_be_accepted_as_a_descriptor);
    RUN(a_first_read_comes_after_its_accept_and_is_lent);
    RUN(lent_buffers_outlive_their_handle_until_released);
    RUN(reads_are_answered_in_order_into_their_own_memory);
    RUN(a_write_is_whole_however_large);
    RUN(half_closed_is_not_closed);
    RUN(a_reset_is_seen_on_either_side);
    RUN(connecting_tells_how_it_went);
    RUN(the_end_of_a_connection_is_an_event);
    RUN(an_lwsocket_becomes_a_descriptor);
    RUN(unread_bytes_come_back_with_unregister);
    RUN(unix_streams_work_the_same);
    RUN(masks_partition_a_listener);
    return 0;
}
