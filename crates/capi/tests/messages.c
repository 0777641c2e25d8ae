/*
 * Messages: UDP on IPv4 and IPv6, UNIX datagrams and seqpacket.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "check.h"

static void udp_tells_the_sender(void)
{
    mp_channel_t *channel = create();
    struct sockaddr_in address = loopback(0), from, local;
    socklen_t size = sizeof(address), from_size = sizeof(from), local_size = sizeof(local);
    mp_handle_t a = mp_socket(channel, AF_INET, (struct sockaddr *)&address, size, NULL);
    mp_handle_t b = mp_socket(channel, AF_INET, NULL, 0, NULL);
    struct mp_event event;
    char buf[64];

    CHECK(a != MP_NO_HANDLE && b != MP_NO_HANDLE);
    CHECK(mp_local_address(a, (struct sockaddr *)&address, &size) == 0);
    CHECK(mp_recvfrom(a, buf, sizeof(buf), (struct sockaddr *)&from, &from_size) == 0);
    CHECK(mp_sendto(b, "message", 7, (struct sockaddr *)&address, size) == 0);
    for (int i = 0; i < 2; i++) {
        event = next(channel);
        CHECK(event.error == 0 && event.size == 7);
        CHECK(event.cmd == (event.handle == a ? MP_RECVFROM : MP_SENDTO));
    }
    CHECK(memcmp(buf, "message", 7) == 0);
    CHECK(mp_local_address(b, (struct sockaddr *)&local, &local_size) == 0);
    CHECK(from_size == sizeof(from) && from.sin_family == AF_INET);
    CHECK(from.sin_port == local.sin_port);
    CHECK(mp_destroy(channel) == 0);
}

static void a_message_is_cut_or_lent_or_empty(void)
{
    mp_channel_t *channel = create();
    struct sockaddr_in address = loopback(0), from = loopback(7);
    socklen_t size = sizeof(address), short_size = 4;
    mp_handle_t a = mp_socket(channel, AF_INET, (struct sockaddr *)&address, size, NULL);
    int peer = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct mp_event event;
    char buf[4];

    CHECK(mp_local_address(a, (struct sockaddr *)&address, &size) == 0);
    CHECK(connect(peer, (struct sockaddr *)&address, sizeof(address)) == 0);
    send_all(peer, "longer", 6);
    CHECK(mp_recvfrom(a, buf, sizeof(buf), (struct sockaddr *)&from, &short_size) == 0);
    event = succeeds(channel, MP_RECVFROM, a);
    CHECK(event.size == 4 && (event.flags & MP_TRUNCATED) != 0 && memcmp(buf, "long", 4) == 0);
    /* The address was truncated too, and its whole size is returned. */
    CHECK(short_size == sizeof(from) && from.sin_addr.s_addr == htonl(INADDR_LOOPBACK));

    send_all(peer, "lent", 4);
    CHECK(mp_recvfrom(a, NULL, 100, NULL, NULL) == 0);
    event = succeeds(channel, MP_RECVFROM, a);
    CHECK(event.size == 4 && event.flags == MP_LENT && memcmp(event.buf, "lent", 4) == 0);
    CHECK(mp_release(&event) == 0);

    CHECK(send(peer, "", 0, 0) == 0);
    CHECK(mp_recvfrom(a, NULL, 100, NULL, NULL) == 0);
    event = succeeds(channel, MP_RECVFROM, a);
    CHECK(event.size == 0 && event.flags == 0 && event.buf == NULL);
    FAILS(mp_release(&event), -1, EINVAL);

    size = sizeof(address);
    CHECK(getsockname(peer, (struct sockaddr *)&address, &size) == 0);
    CHECK(mp_sendto(a, NULL, 0, (struct sockaddr *)&address, size) == 0);
    CHECK(succeeds(channel, MP_SENDTO, a).size == 0);
    CHECK(recv(peer, buf, sizeof(buf), 0) == 0);
    close(peer);
    CHECK(mp_destroy(channel) == 0);
}

static void a_message_that_is_too_long_is_refused(void)
{
    static const char much[70000];
    mp_channel_t *channel = create();
    struct sockaddr_in address = loopback(9);
    mp_handle_t a = mp_socket(channel, AF_INET, NULL, 0, NULL);

    CHECK(mp_sendto(a, much, sizeof(much), (struct sockaddr *)&address, sizeof(address)) == 0);
    CHECK(expect(channel, MP_SENDTO, a).error == EMSGSIZE);
    CHECK(mp_destroy(channel) == 0);
}

static void udp_on_ipv6(void)
{
    mp_channel_t *channel = create();
    struct sockaddr_in6 address, from;
    socklen_t size = sizeof(address), from_size = sizeof(from);
    mp_handle_t a;
    char buf[8];

    memset(&address, 0, sizeof(address));
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    a = mp_socket(channel, AF_INET6, (struct sockaddr *)&address, size, NULL);
    CHECK(a != MP_NO_HANDLE);
    CHECK(mp_local_address(a, (struct sockaddr *)&address, &size) == 0);
    CHECK(mp_recvfrom(a, buf, sizeof(buf), (struct sockaddr *)&from, &from_size) == 0);
    CHECK(mp_sendto(a, "six", 3, (struct sockaddr *)&address, size) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(next(channel).error == 0);
    CHECK(from_size == sizeof(from) && memcmp(&from, &address, sizeof(from)) == 0);
    CHECK(mp_destroy(channel) == 0);
}

static void unix_datagrams_may_have_no_sender_address(void)
{
    mp_channel_t *channel = create();
    struct sockaddr_un address, from;
    socklen_t size, from_size = sizeof(from);
    mp_handle_t a, b;
    char buf[8];

    memset(&address, 0, sizeof(address));
    address.sun_family = AF_UNIX;
    size = (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1;
    size += (socklen_t)snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                                "mp-capi-dgram-%d-%d", (int)getpid(), (int)chosen_driver);
    a = mp_socket(channel, AF_UNIX, (struct sockaddr *)&address, size, NULL);
    b = mp_socket(channel, AF_UNIX, NULL, 0, NULL);
    CHECK(a != MP_NO_HANDLE && b != MP_NO_HANDLE);
    CHECK(mp_recvfrom(a, buf, sizeof(buf), (struct sockaddr *)&from, &from_size) == 0);
    CHECK(mp_sendto(b, "anon", 4, (struct sockaddr *)&address, size) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(next(channel).error == 0);
    CHECK(memcmp(buf, "anon", 4) == 0);
    CHECK(from_size == 0 || from_size == offsetof(struct sockaddr_un, sun_path));
    CHECK(mp_destroy(channel) == 0);
}

static void seqpackets_keep_their_boundaries(void)
{
    mp_channel_t *channel = create();
    mp_handle_t handle;
    struct mp_event event;
    char buf[16];
    int fds[2];

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0);
    handle = mp_register(channel, fds[0], NULL, 0);
    CHECK(handle != MP_NO_HANDLE);
    send_all(fds[1], "one", 3);
    send_all(fds[1], "three", 5);
    CHECK(mp_read(handle, buf, sizeof(buf)) == 0);
    CHECK(mp_recvfrom(handle, buf + 8, 8, NULL, NULL) == 0);
    event = succeeds(channel, MP_READ, handle);
    CHECK(event.size == 3 && memcmp(buf, "one", 3) == 0);
    event = succeeds(channel, MP_RECVFROM, handle);
    CHECK(event.size == 5 && memcmp(buf + 8, "three", 5) == 0);
    CHECK(mp_write(handle, "back", 4) == 0);
    CHECK(succeeds(channel, MP_WRITE, handle).size == 4);
    receive_exactly(fds[1], "back", 4);
    close(fds[0]);
    close(fds[1]);
    CHECK(mp_destroy(channel) == 0);
}

int main(int argc, char **argv)
{
    choose_driver(argc, argv);
    RUN(udp_tells_the_sender);
    RUN(a_message_is_cut_or_lent_or_empty);
    RUN(a_message_that_is_too_long_is_refused);
    RUN(udp_on_ipv6);
    RUN(unix_datagrams_may_have_no_sender_address);
    RUN(seqpackets_keep_their_boundaries);
    return 0;
}
