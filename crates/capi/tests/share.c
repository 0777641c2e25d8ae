/*
 * A connection and a listener that two processes own: one shares them, the other adopts them. The
 * argument is the port at 10.76.0.2, where a client sends "early late" and expects "late" back; the
 * next client expects "adopted".
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "check.h"

static struct mp_event completed(mp_channel_t *channel, uint32_t cmd)
{
    struct mp_event ev;

    CHECK(mp_dispatch(channel, &ev, PATIENCE_NS) == 1);
    CHECK(ev.cmd == cmd && ev.error == 0);
    return ev;
}

/* Reads until there are so many bytes. */
static void read_exactly(mp_channel_t *channel, mp_handle_t conn, char *to, size_t len)
{
    size_t seen = 0;

    while (seen < len) {
        CHECK(mp_read(conn, to + seen, len - seen) == 0);
        struct mp_event ev = completed(channel, MP_READ);
        CHECK(ev.size > 0);
        seen += ev.size;
    }
}

static void send_token(int over, int token)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = { .iov_base = "t", .iov_len = 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

    memset(&control, 0, sizeof control);
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &token, sizeof token);
    CHECK(sendmsg(over, &message, 0) == 1);
}

static int receive_token(int over)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char byte;
    struct iovec part = { .iov_base = &byte, .iov_len = 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    int token;

    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    CHECK(recvmsg(over, &message, 0) == 1);
    CHECK(CMSG_FIRSTHDR(&message) != NULL);
    memcpy(&token, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof token);
    return token;
}

/* Accepts one connection of the listener whose maker has ended its ownership. */
static void adopt_listener(int over, mp_channel_t *channel)
{
    int token = receive_token(over);
    mp_handle_t listener = mp_adopt(channel, token, NULL);

    CHECK(listener != MP_NO_HANDLE);
    FAILS(mp_adopt(channel, token, NULL), MP_NO_HANDLE, EEXIST);
    close(token);
    CHECK(mp_accept(listener, 1, MP_AS_LWSOCKET) == 0);
    mp_handle_t conn = completed(channel, MP_ACCEPT).connection;
    CHECK(mp_write(conn, "adopted", 7) == 0);
    completed(channel, MP_WRITE);
    CHECK(mp_unregister(conn, NULL) == 0);
    CHECK(mp_unregister(listener, NULL) == 0);
}

static void adopt(int over)
{
    struct mp_config config;
    char late[4];
    int token = receive_token(over);

    CHECK(mp_config_init(&config, sizeof(config)) == 0);
    mp_channel_t *channel = mp_create(&config);
    CHECK(channel != NULL);
    FAILS(mp_adopt(channel, over, NULL), MP_NO_HANDLE, EBADF);
    FAILS(mp_adopt(channel, -1, NULL), MP_NO_HANDLE, EBADF);
    FAILS(mp_adopt(NULL, token, NULL), MP_NO_HANDLE, EFAULT);
    mp_handle_t conn = mp_adopt(channel, token, &late);
    CHECK(conn != MP_NO_HANDLE);
    FAILS(mp_adopt(channel, token, NULL), MP_NO_HANDLE, EEXIST);
    close(token);
    read_exactly(channel, conn, late, sizeof late);
    CHECK(mp_write(conn, late, sizeof late) == 0);
    CHECK(completed(channel, MP_WRITE).cookie == &late);
    CHECK(mp_unregister(conn, NULL) == 0);
    adopt_listener(over, channel);
    CHECK(mp_destroy(channel) == 0);
    exit(0);
}

static void other_back_ends_are_named(void)
{
    struct mp_config config;
    struct sockaddr_in at = { .sin_family = AF_INET };

    CHECK(mp_config_init(&config, sizeof(config)) == 0);
    config.backend = MP_BACKEND_KERNEL;
    mp_channel_t *channel = mp_create(&config);
    CHECK(channel != NULL);
    mp_handle_t listener = mp_listen(channel, (struct sockaddr *)&at, sizeof at, NULL, NULL);
    CHECK(listener != MP_NO_HANDLE);
    FAILS(mp_share(listener), -1, EOPNOTSUPP);
    CHECK(strstr(mp_last_error(), "kernel") != NULL);
    FAILS(mp_adopt(channel, 0, NULL), MP_NO_HANDLE, EOPNOTSUPP);
    CHECK(strstr(mp_last_error(), "kernel") != NULL);
    CHECK(mp_destroy(channel) == 0);
}

int main(int count, char **arguments)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    struct mp_config config;
    char early[6];
    int pair[2], status, token;

    CHECK(count == 2);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        adopt(pair[1]);
    other_back_ends_are_named();
    at.sin_port = htons(atoi(arguments[1]));
    CHECK(inet_pton(AF_INET, "10.76.0.2", &at.sin_addr) == 1);
    CHECK(mp_config_init(&config, sizeof(config)) == 0);
    mp_channel_t *channel = mp_create(&config);
    CHECK(channel != NULL);
    mp_handle_t listener = mp_listen(channel, (struct sockaddr *)&at, sizeof at, NULL, NULL);
    CHECK(listener != MP_NO_HANDLE);
    puts("listening");
    fflush(stdout);
    CHECK(mp_accept(listener, 1, MP_AS_LWSOCKET) == 0);
    mp_handle_t conn = completed(channel, MP_ACCEPT).connection;
    read_exactly(channel, conn, early, sizeof early);
    token = mp_share(conn);
    CHECK(token >= 0);
    send_token(pair[0], token);
    close(token);
    CHECK(mp_unregister(conn, NULL) == 0);
    FAILS(mp_share(conn), -1, EBADF);
    token = mp_share(listener);
    CHECK(token >= 0);
    CHECK(mp_unregister(listener, NULL) == 0);
    CHECK(mp_flush(channel) >= 0);
    send_token(pair[0], token);
    close(token);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(mp_destroy(channel) == 0);
    return 0;
}
