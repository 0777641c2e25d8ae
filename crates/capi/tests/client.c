/*
 * A client for examples/pingpong.c, on the library itself: client PORT CONNECTIONS ROUNDS.
 * Each connection sends its own bytes, so an answer that goes astray is seen.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "check.h"

enum { MESSAGE = 1000 };

struct connection {
    mp_handle_t handle;
    int rounds_left;
    size_t received;
    char sent[MESSAGE], got[MESSAGE];
};

static void send_next(struct connection *conn, int number)
{
    for (int i = 0; i < MESSAGE; i++)
        conn->sent[i] = (char)(number * 31 + conn->rounds_left * 7 + i);
    conn->received = 0;
    CHECK(mp_write(conn->handle, conn->sent, MESSAGE) == 0);
    CHECK(mp_read(conn->handle, conn->got, MESSAGE) == 0);
}

/* Takes what came; whether the connection is done with all its rounds. */
static int on_read(struct connection *conn, int number, const struct mp_event *event)
{
    CHECK(event->size > 0);
    conn->received += event->size;
    if (conn->received < MESSAGE) {
        CHECK(mp_read(conn->handle, conn->got + conn->received, MESSAGE - conn->received) == 0);
        return 0;
    }
    CHECK(memcmp(conn->got, conn->sent, MESSAGE) == 0);
    conn->rounds_left--;
    if (conn->rounds_left > 0)
        send_next(conn, number);
    return conn->rounds_left == 0;
}

int main(int argc, char **argv)
{
    struct connection *connections;
    struct sockaddr_in address;
    mp_channel_t *channel = mp_create(NULL);
    int count, rounds, open;

    CHECK(argc == 4 && channel != NULL);
    address = loopback((in_port_t)atoi(argv[1]));
    count = open = atoi(argv[2]);
    rounds = atoi(argv[3]);
    connections = (struct connection *)calloc((size_t)count, sizeof(*connections));
    CHECK(connections != NULL);
    for (int i = 0; i < count; i++) {
        struct connection *conn = &connections[i];

        conn->rounds_left = rounds;
        conn->handle =
            mp_connect(channel, (struct sockaddr *)&address, sizeof(address), NULL, conn);
        CHECK(conn->handle != MP_NO_HANDLE);
    }
    while (open > 0) {
        struct mp_event event = next(channel);
        struct connection *conn = (struct connection *)event.cookie;
        int number = (int)(conn - connections);

        CHECK(event.error == 0 && event.handle == conn->handle);
        if (event.cmd == MP_CONNECT) {
            send_next(conn, number);
        } else if (event.cmd == MP_READ && on_read(conn, number, &event)) {
            CHECK(mp_unregister(conn->handle, NULL) == 0);
            open--;
        }
    }
    CHECK(mp_destroy(channel) == 0);
    free(connections);
    printf("%d connections, %d rounds each\n", count, rounds);
    return 0;
}
