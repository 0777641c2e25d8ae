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
    CHECK(strstr(mp_last_error(), "backend") != NULL);
    config = local_config();
    config.link = NULL;
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "link") != NULL);
    config = local_config();
    config.link = "carrier-pigeon:eth0";
    FAILS(mp_create(&config), NULL, EINVAL);
    config = local_config();
    config.addresses = "10.76.0.2";
    FAILS(mp_create(&config), NULL, EINVAL);
    CHECK(strstr(mp_last_error(), "10.76.0.2") != NULL);
    config = local_config();
    config.gateways = "nowhere";
    FAILS(mp_create(&config), NULL, EINVAL);
    config = local_config();
    config.mtu = 70000;
    FAILS(mp_create(&config), NULL, EINVAL);
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

int main(void)
{
    RUN(fields_that_are_wrong_are_named);
    RUN(a_record_of_before_is_the_kernels);
    RUN(a_channel_has_the_stack_that_its_fields_name);
    return 0;
}
