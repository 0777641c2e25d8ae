/*
 * A ping-pong server: sends received bytes back.
 *
 * This is the event loop of listing 3.1 of the MegaPipe paper, line by line. Each line of
 * the listing is quoted above its code. Additional lines handle errors and the end of a connection
 * (the listing gets a DISCONNECT event; here a read of 0 bytes requests it), and create listen_sd.
 *
 *     cc pingpong.c -o pingpong $(pkg-config --cflags --libs megapipe)
 *     ./pingpong 7000
 *
 * Port 0 lets the kernel choose; the port is printed. SIGINT and SIGTERM end it.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _POSIX_C_SOURCE 200809L

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <megapipe.h>

enum { READSIZE = 4096 };

struct connection {
    mp_handle_t handle;
    char buf[READSIZE];
};

static mp_channel_t *ch;
static volatile sig_atomic_t stopping;

/* Ends the program after a call of the library has failed. */
static void fail(void)
{
    fprintf(stderr, "pingpong: %s\n", mp_last_error());
    exit(EXIT_FAILURE);
}

static void on_signal(int signal)
{
    int saved = errno;

    (void)signal;
    stopping = 1;
    mp_wake(ch);
    errno = saved;
}

static int listen_on(in_port_t port)
{
    struct sockaddr_in address;
    socklen_t size = sizeof(address);
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 4096) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
        perror("pingpong");
        exit(EXIT_FAILURE);
    }
    printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

/* Closes a connection; its MP_DISCONNECT event frees it. */
static void hang_up(struct connection *conn)
{
    if (mp_disconnect(conn->handle, MP_BOTH) < 0)
        fail();
}

int main(int argc, char **argv)
{
    struct sigaction action;
    struct mp_event ev;
    struct connection *conn;
    mp_handle_t handle;
    int listen_sd;

    if (argc != 2) {
        fprintf(stderr, "usage: pingpong PORT\n");
        return EXIT_FAILURE;
    }
    listen_sd = listen_on((in_port_t)atoi(argv[1]));

    /* "ch = mp_create()" */
    ch = mp_create(NULL);
    if (ch == NULL)
        fail();
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    /* "handle = mp_register(ch, listen_sd, mask=0x01)": the channel accepts for every core. */
    handle = mp_register(ch, listen_sd, NULL, 0);
    if (handle == MP_NO_HANDLE)
        fail();

    /* "mp_accept(handle)" */
    if (mp_accept(handle, 1, MP_AS_LWSOCKET) < 0)
        fail();

    /* "while true:" */
    while (!stopping) {
        /* "ev = mp_dispatch(ch)" */
        if (mp_dispatch(ch, &ev, MP_FOREVER) < 0)
            fail();

        /* "conn = ev.cookie" */
        conn = ev.cookie;

        /* "if ev.cmd == ACCEPT:" */
        if (ev.cmd == MP_ACCEPT) {
            /* "mp_accept(conn.handle)": the listener's. */
            if (mp_accept(ev.handle, 1, MP_AS_LWSOCKET) < 0)
                fail();
            if (ev.error != 0)
                continue;

            /* "conn = new Connection()" */
            conn = malloc(sizeof(*conn));
            if (conn == NULL) {
                mp_unregister(ev.connection, NULL);
                continue;
            }

            /* "conn.handle = mp_register(ch, ev.fd, cookie=conn)" */
            conn->handle = mp_register(ch, ev.fd, conn, 0);
            if (conn->handle == MP_NO_HANDLE)
                fail();

            /* "mp_read(conn.handle, conn.buf, READSIZE)" */
            if (mp_read(conn->handle, conn->buf, READSIZE) < 0)
                fail();

        /* "elif ev.cmd == READ:" */
        } else if (ev.cmd == MP_READ) {
            if (ev.error != 0 || ev.size == 0)
                hang_up(conn);

            /* "mp_write(conn.handle, conn.buf, ev.size)" */
            else if (mp_write(conn->handle, conn->buf, ev.size) < 0)
                fail();

        /* "elif ev.cmd == WRITE:" */
        } else if (ev.cmd == MP_WRITE) {
            if (ev.error != 0)
                hang_up(conn);

            /* "mp_read(conn.handle, conn.buf, READSIZE)" */
            else if (mp_read(conn->handle, conn->buf, READSIZE) < 0)
                fail();

        /* "elif ev.cmd == DISCONNECT:" */
        } else if (ev.cmd == MP_DISCONNECT) {
            /* "mp_unregister(ch, conn.handle)" */
            if (mp_unregister(conn->handle, NULL) < 0)
                fail();

            /* "delete conn" */
            free(conn);
        }
    }
    /* The end of the process closes open connections and frees their memory. */
    mp_destroy(ch);
    close(listen_sd);
    return EXIT_SUCCESS;
}
