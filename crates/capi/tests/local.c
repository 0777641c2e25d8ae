/*
 * The library's own stack, chosen by the fields of a configuration, on a TAP device that is there
 * already: tap0, with the kernel at 10.76.0.1. The stack is at 10.76.0.2.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "check.h"

static struct mp_config local_config(void)
{
    struct mp_config config;

    CHECK(mp_config_init(&config, sizeof(config)) == 0);
    config.backend = MP_BACKEND_LOCAL;
    config.link = "tap:tap0";
    config.addresses = "10.76.0.2/24";
    return config;
}

static void fields_that_are_wrong_are_named(void)
{
    struct mp_config config = local_config();

    config.backend = 7;
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "config->backend = 7: must be MP_BACKEND_DEFAULT") != NULL);
    config = local_config();
    config.placement = 4;
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "config->placement = 4: must be MP_PLACEMENT_DEF") != NULL);
    config = local_config();
    config.placement = MP_PLACEMENT_CORE;
    config.server_core = -2;
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "config->server_core = -2: must be") != NULL);
    config.server_core = 1 << 20;
    FAILS(mp_create(&config), NULL, EINVAL);
    config.server_core = 1000;
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "core 1000") != NULL);
    config.placement = MP_PLACEMENT_THREAD;
    config.server_core = 1;
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "config->server_core = 1: only MP_PLACEMENT_CORE") != NULL);
    config = local_config();
    config.backend = MP_BACKEND_KERNEL;
    config.link = config.addresses = NULL;
    config.placement = MP_PLACEMENT_INLINE;
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "config->placement = 1: only the local back end") != NULL);
    config = local_config();
    config.link = NULL;
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "link") != NULL);
    config = local_config();
    config.link = "carrier-pigeon:eth0";
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "config->link = carrier-pigeon:eth0: ") != NULL);
    config = local_config();
    config.addresses = "10.76.0.2";
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "10.76.0.2") != NULL);
    config = local_config();
    config.gateways = "nowhere";
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "config->gateways = nowhere: must be") != NULL);
    config = local_config();
    config.mtu = 70000;
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "config->mtu = 70000: must be at most") != NULL);
    config = local_config();
    config.driver = MP_DRIVER_URING;
    FAILS(mp_create(&config), NULL, ENOSYS);
    config = local_config();
    config.backend = MP_BACKEND_KERNEL;
    FAILS(mp_create(&config), NULL, EINVAL);
}

/* A program that was compiled before these fields were there. */
static void a_record_of_before_is_the_kernels(void)
{
    struct mp_config config;
    mp_channel_t *channel;
    char text[4096];

    CHECK(mp_config_init(&config, offsetof(struct mp_config, backend)) == 0);
    CHECK(config.size == 48);
    memset((char *)&config + 48, 0xa5, sizeof(config) - 48);
    channel = mp_create(&config);
    CHECK(channel != NULL);
    CHECK(mp_report(channel, text, sizeof(text)) > 0);
    CHECK(strstr(text, "our own stack") == NULL);
    CHECK(mp_destroy(channel) == 0);
}

/* A peer of the kernel's that connects to the stack and repeats what it hears. */
static void *peer(void *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    char got[8];
    ssize_t count;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = inet_addr("10.76.0.2");
    address.sin_port = htons(*(in_port_t *)port);
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    while ((count = read(fd, got, sizeof(got))) > 0)
        CHECK(write(fd, got, (size_t)count) == count);
    close(fd);
    return NULL;
}

static void a_channel_has_the_stack_that_its_fields_name(void)
{
    struct mp_config config = local_config();
    mp_channel_t *channel = mp_create(&config);
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct mp_event ev;
    in_port_t port = 7600;
    mp_handle_t listener, conn;
    pthread_t thread;
    char text[4096];
    int pair[2];

    CHECK(channel != NULL);
    CHECK(mp_report(channel, text, sizeof(text)) > 0);
    CHECK(strstr(text, "our own stack") != NULL);
    address.sin_addr.s_addr = inet_addr("10.76.0.2");
    address.sin_port = htons(port);
    listener = mp_listen(channel, (struct sockaddr *)&address, sizeof(address), NULL, NULL);
    CHECK(listener != MP_NO_HANDLE);
    FAILS(mp_accept(listener, 1, MP_AS_FD), -1, EOPNOTSUPP);
    CHECK(strstr(mp_last_error(), "packet and xdp") != NULL);
    CHECK(mp_accept(listener, 1, MP_AS_LWSOCKET) == 0);
    CHECK(pthread_create(&thread, NULL, peer, &port) == 0);
    CHECK(mp_dispatch(channel, &ev, 10000000000) == 1);
    CHECK(ev.cmd == MP_ACCEPT && ev.error == 0);
    conn = ev.connection;
    CHECK(mp_explain(conn, text, sizeof(text)) > 0);
    CHECK(strstr(text, "our own stack") != NULL);
    CHECK(mp_write(conn, "hello", 5) == 0);
    CHECK(mp_dispatch(channel, &ev, 10000000000) == 1 && ev.cmd == MP_WRITE && ev.error == 0);
    CHECK(mp_read(conn, NULL, 100) == 0);
    CHECK(mp_dispatch(channel, &ev, 10000000000) == 1 && ev.cmd == MP_READ && ev.size == 5);
    CHECK(memcmp(ev.buf, "hello", 5) == 0);
    CHECK(mp_release(&ev) == 0);
    FAILS(mp_to_fd(conn), -1, EOPNOTSUPP);
    CHECK(mp_unregister(conn, NULL) == 0);
    while (mp_dispatch(channel, &ev, 100000000) == 1)
        continue;
    CHECK(pthread_join(thread, NULL) == 0);

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    FAILS(mp_take_over(channel, pair[0], NULL), MP_NO_HANDLE, EOPNOTSUPP);
    CHECK(write(pair[0], "x", 1) == 1);
    FAILS(mp_take_over(channel, -1, NULL), MP_NO_HANDLE, EBADF);
    close(pair[0]);
    close(pair[1]);

    /* The link has one queue, and this channel has it; when it is gone, another may. */
    FAILS(mp_create(&config), NULL, EBUSY);
    CHECK(mp_destroy(channel) == 0);
    channel = mp_create(&config);
    CHECK(channel != NULL);
    CHECK(mp_destroy(channel) == 0);
}

/* Waits in a poll() of the program's own until the channel has an event, and returns it. */
static struct mp_event parked(mp_channel_t *channel)
{
    struct mp_event ev;
    struct pollfd polled[8];
    int fds[8], count, has_work;
    int64_t timeout_ns;

    for (;;) {
        has_work = mp_park(channel, &timeout_ns);
        CHECK(has_work == 1 || has_work == 0);
        count = mp_descriptors(channel, fds, 8);
        CHECK(count >= 1 && count <= 8);
        for (int i = 0; i < count; i++)
            polled[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
        if (has_work == 0) {
            int patience_ms = 10000;

            if (timeout_ns != MP_FOREVER && timeout_ns / 1000000 < patience_ms)
                patience_ms = (int)(timeout_ns / 1000000) + 1;
            CHECK(poll(polled, (nfds_t)count, patience_ms) >= 0);
        }
        count = mp_dispatch(channel, &ev, 0);
        CHECK(count >= 0);
        if (count == 1)
            return ev;
    }
}

static struct mp_event parked_until(mp_channel_t *channel, enum mp_cmd cmd)
{
    struct mp_event ev = parked(channel);

    if (ev.cmd != (uint32_t)cmd || ev.error != 0)
        fprintf(stderr, "event %u, error %d\n", ev.cmd, ev.error);
    CHECK(ev.cmd == (uint32_t)cmd && ev.error == 0);
    return ev;
}

/* One connection, by whatever the placement is; all waits are the program's own. */
static void serve_one(enum mp_placement placement, const char *told, in_port_t port)
{
    struct mp_config config = local_config();
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct mp_conn_info info;
    struct mp_event ev;
    mp_channel_t *channel;
    mp_handle_t listener, conn, timer;
    pthread_t thread;
    uint32_t cut[2];
    char text[4096];

    config.placement = placement;
    channel = mp_create(&config);
    CHECK(channel != NULL);
    address.sin_addr.s_addr = inet_addr("10.76.0.2");
    address.sin_port = htons(port);
    listener = mp_listen(channel, (struct sockaddr *)&address, sizeof(address), NULL, NULL);
    CHECK(listener != MP_NO_HANDLE);
    CHECK(mp_explain(listener, text, sizeof(text)) > 0);
    if (strstr(text, told) == NULL)
        CHECK(mp_report(channel, text, sizeof(text)) > 0);
    if (strstr(text, told) == NULL)
        fprintf(stderr, "%s is not in:\n%s", told, text);
    CHECK(strstr(text, told) != NULL);
    FAILS(mp_await_delivery(listener), -1, ENOTCONN);
    FAILS(mp_conn_info(listener, &info, sizeof(info)), -1, ENOTCONN);
    CHECK(mp_accept(listener, 1, MP_AS_LWSOCKET) == 0);
    CHECK(pthread_create(&thread, NULL, peer, &port) == 0);
    conn = parked_until(channel, MP_ACCEPT).connection;
    CHECK(mp_write(conn, "hello", 5) == 0);
    parked_until(channel, MP_WRITE);
    CHECK(mp_await_delivery(conn) == 0);
    parked_until(channel, MP_AWAIT_DELIVERY);
    CHECK(mp_conn_info(conn, &info, sizeof(info)) == 0);
    CHECK(info.state == 1 && info.queued_bytes == 0 && info.bytes_sent >= 5);
    CHECK(info.mss > 500 && info.srtt_ns > 0 && (info.flags & MP_CONN_TIMESTAMPS));
    CHECK(mp_conn_info(conn, (struct mp_conn_info *)(void *)cut, 8) == 0);
    FAILS(mp_conn_info(conn, NULL, sizeof(info)), -1, EFAULT);
    FAILS(mp_conn_info(conn, &info, 3), -1, EINVAL);
    CHECK(mp_read(conn, NULL, 100) == 0);
    ev = parked_until(channel, MP_READ);
    CHECK(ev.size == 5 && memcmp(ev.buf, "hello", 5) == 0);
    CHECK(mp_release(&ev) == 0);
    timer = mp_timer(channel, 5000000, 0, NULL);
    CHECK(parked_until(channel, MP_TIMER).handle == timer);
    CHECK(mp_await_end(conn) == 0);
    FAILS(mp_await_end(conn), -1, EAGAIN);
    CHECK(mp_disconnect(conn, MP_WRITING) == 0);
    parked_until(channel, MP_DISCONNECT);
    ev = parked_until(channel, MP_AWAIT_END);
    CHECK(ev.handle == conn);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(mp_destroy(channel) == 0);
}

static void each_placement_serves_and_can_be_polled(void)
{
    serve_one(MP_PLACEMENT_DEFAULT, "inside dispatch", 7610);
    serve_one(MP_PLACEMENT_INLINE, "inside dispatch", 7611);
    serve_one(MP_PLACEMENT_THREAD, "on a second thread", 7612);
    serve_one(MP_PLACEMENT_CORE, "on a core of its own", 7613);
}

int main(void)
{
    RUN(fields_that_are_wrong_are_named);
    RUN(a_record_of_before_is_the_kernels);
    RUN(a_channel_has_the_stack_that_its_fields_name);
    RUN(each_placement_serves_and_can_be_polled);
    return 0;
}
