/*
 * What the C tests share: a check that says where it failed, a channel of the driver that the
 * command line names, and waiting for an event with a limit.
 *
 * A test program takes the driver's name, runs all its cases, and exits with 0, with 1 at the
 * first check that fails, or with 77 if the driver does not work here. If MEGAPIPE_VALGRIND is in
 * the environment, cases that valgrind cannot follow are left out, and it says so.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef CHECK_H
#define CHECK_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <megapipe.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s\n  errno %d (%s), last error \"%s\"\n", __FILE__,          \
                    __LINE__, #condition, errno, strerror(errno), mp_last_error());               \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/*
 * The call fails in its own way (-1, NULL, MP_NO_HANDLE), with this errno and a text that begins
 * with the call's name.
 */
#define FAILS(call, failed, expected)                                                             \
    do {                                                                                          \
        errno = 0;                                                                                \
        CHECK((call) == (failed));                                                                \
        CHECK(errno == (expected));                                                               \
        CHECK(names_its_call(#call));                                                             \
    } while (0)

/* The last error's text is "NAME: why", as the call in the program's text is "NAME(...)". */
static inline int names_its_call(const char *call)
{
    size_t size = strcspn(call, "(");

    return strncmp(mp_last_error(), call, size) == 0 && mp_last_error()[size] == ':';
}

#define RUN(test)                                                                                 \
    do {                                                                                          \
        printf("%s\n", #test);                                                                    \
        fflush(stdout);                                                                           \
        test();                                                                                   \
    } while (0)

/*
 * For a case with a ring in a fork's child, or with a thread or a signal that has to run while
 * another thread waits in io_uring_enter().
 */
#define RUN_UNLESS_VALGRIND(test)                                                                 \
    do {                                                                                          \
        if (getenv("MEGAPIPE_VALGRIND") == NULL)                                                  \
            RUN(test);                                                                            \
        else                                                                                      \
            printf("%s left out: valgrind cannot follow it\n", #test);                            \
    } while (0)

enum { SKIPPED = 77 };
static const int64_t PATIENCE_NS = 10 * INT64_C(1000000000);

static enum mp_driver chosen_driver;

static inline void choose_driver(int argc, char **argv)
{
    CHECK(argc == 2);
    if (strcmp(argv[1], "uring") == 0)
        chosen_driver = MP_DRIVER_URING;
    else if (strcmp(argv[1], "epoll") == 0)
        chosen_driver = MP_DRIVER_EPOLL;
    else
        CHECK(!"the driver is uring or epoll");
}

static inline struct mp_config configuration(void)
{
    struct mp_config config;

    CHECK(mp_config_init(&config, sizeof(config)) == 0);
    config.driver = chosen_driver;
    return config;
}

static inline mp_channel_t *create_with(const struct mp_config *config)
{
    mp_channel_t *channel;

    errno = 0;
    channel = mp_create(config);
    CHECK(channel == NULL || errno == 0);
    if (channel == NULL && errno == ENOSYS) {
        printf("%s\n", mp_last_error());
        exit(SKIPPED);
    }
    CHECK(channel != NULL);
    return channel;
}

/* A channel whose handles may have any number of unsent bytes. */
static inline mp_channel_t *create_without_limit(void)
{
    struct mp_config config = configuration();

    config.unsent_bytes_max = UINT64_MAX;
    return create_with(&config);
}

static inline mp_channel_t *create(void)
{
    struct mp_config config = configuration();

    return create_with(&config);
}

/* The next event, whatever it is. */
static inline struct mp_event next(mp_channel_t *channel)
{
    struct mp_event event;

    memset(&event, 0xff, sizeof(event));
    CHECK(mp_dispatch(channel, &event, PATIENCE_NS) == 1);
    for (size_t i = 0; i < sizeof(event.reserved) / sizeof(event.reserved[0]); i++)
        CHECK(event.reserved[i] == 0);
    return event;
}

/* The next event, which must be of this kind and of this handle. */
static inline struct mp_event expect(mp_channel_t *channel, enum mp_cmd cmd, mp_handle_t handle)
{
    struct mp_event event = next(channel);

    if (event.cmd != (uint32_t)cmd)
        fprintf(stderr, "event %u came instead of %u, error %d\n", event.cmd, (unsigned)cmd,
                event.error);
    CHECK(event.cmd == (uint32_t)cmd);
    CHECK(event.handle == handle);
    return event;
}

/* The same, and the operation succeeded. */
static inline struct mp_event succeeds(mp_channel_t *channel, enum mp_cmd cmd, mp_handle_t handle)
{
    struct mp_event event = expect(channel, cmd, handle);

    if (event.error != 0)
        fprintf(stderr, "event %u: %s\n", event.cmd, strerror(event.error));
    CHECK(event.error == 0);
    return event;
}

/* Nothing is there and nothing comes for a moment; which is no failure. */
static inline void quiet(mp_channel_t *channel)
{
    struct mp_event event;

    errno = 0;
    CHECK(mp_dispatch(channel, &event, 20 * 1000 * 1000) == 0);
    CHECK(errno == 0);
}

static inline struct sockaddr_in loopback(in_port_t port)
{
    struct sockaddr_in address;

    memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
}

/* A listening handle on a port that the kernel chooses. */
static inline mp_handle_t listen_on_loopback(mp_channel_t *channel, struct sockaddr_in *address)
{
    socklen_t size = sizeof(*address);
    mp_handle_t listener;

    *address = loopback(0);
    listener = mp_listen(channel, (struct sockaddr *)address, sizeof(*address), NULL, NULL);
    CHECK(listener != MP_NO_HANDLE);
    CHECK(mp_local_address(listener, (struct sockaddr *)address, &size) == 0);
    CHECK(size == sizeof(*address) && address->sin_port != 0);
    return listener;
}

/* An ordinary blocking client. */
static inline int client_of(const struct sockaddr_in *address)
{
    struct timeval limit = {10, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    CHECK(connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0);
    return fd;
}

static inline void send_all(int fd, const void *data, size_t size)
{
    CHECK(send(fd, data, size, MSG_NOSIGNAL) == (ssize_t)size);
}

static inline void receive_exactly(int fd, const void *data, size_t size)
{
    char *got = (char *)malloc(size);

    CHECK(got != NULL);
    CHECK(recv(fd, got, size, MSG_WAITALL) == (ssize_t)size);
    CHECK(memcmp(got, data, size) == 0);
    free(got);
}

/* A connected pair: a handle in the channel and an ordinary descriptor. */
struct pair {
    mp_handle_t handle;
    int peer;
};

static inline struct pair stream_pair(mp_channel_t *channel, void *cookie)
{
    struct sockaddr_in address;
    struct mp_event event;
    struct pair pair;
    mp_handle_t listener = listen_on_loopback(channel, &address);

    CHECK(mp_accept(listener, 1, MP_AS_LWSOCKET) == 0);
    CHECK(mp_flush(channel) == 0);
    pair.peer = client_of(&address);
    event = succeeds(channel, MP_ACCEPT, listener);
    CHECK(event.fd >= MP_FIRST_LWSOCKET);
    pair.handle = mp_register(channel, event.fd, cookie, 0);
    CHECK(pair.handle != MP_NO_HANDLE && pair.handle == event.connection);
    CHECK(mp_unregister(listener, NULL) == 0);
    return pair;
}

#endif
