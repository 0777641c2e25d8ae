/*
 * A program's mistakes: null pointers, stale handles, other threads, fork's children, sizes that
 * cannot be. Each is an errno value and nothing else: the channel works as before.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "check.h"

/* Every call that takes a handle, in the way it is right but for the handle. */
static void all_handle_calls_fail(mp_handle_t handle, int expected)
{
    struct mp_accept_options accept = {sizeof(accept), 1, MP_AS_FD, NULL, 0};
    struct sockaddr_in address = loopback(1);
    socklen_t size = sizeof(address);
    const uint64_t cores = 1;
    struct mp_conn_info info;
    char buf[8] = "";
    struct iovec part = {buf, sizeof(buf)};

    FAILS(mp_unregister(handle, NULL), -1, expected);
    FAILS(mp_set_cookie(handle, NULL), -1, expected);
    FAILS(mp_set_cpu_mask(handle, &cores, 1), -1, expected);
    FAILS(mp_accept(handle, 1, MP_AS_FD), -1, expected);
    FAILS(mp_accept_with(handle, &accept), -1, expected);
    FAILS(mp_read(handle, buf, 8), -1, expected);
    FAILS(mp_readv(handle, &part, 1), -1, expected);
    FAILS(mp_read_at(handle, buf, 8, 0), -1, expected);
    FAILS(mp_write(handle, buf, 8), -1, expected);
    FAILS(mp_write_quiet(handle, buf, 8), -1, expected);
    FAILS(mp_writev(handle, &part, 1), -1, expected);
    FAILS(mp_write_at(handle, buf, 8, 0), -1, expected);
    FAILS(mp_recvfrom(handle, buf, 8, NULL, NULL), -1, expected);
    FAILS(mp_sendto(handle, buf, 8, (struct sockaddr *)&address, size), -1, expected);
    FAILS(mp_fsync(handle), -1, expected);
    FAILS(mp_disconnect(handle, MP_BOTH), -1, expected);
    FAILS(mp_await_end(handle), -1, expected);
    FAILS(mp_to_fd(handle), -1, expected);
    FAILS(mp_explain(handle, NULL, 0), -1, expected);
    FAILS(mp_unsent_bytes(handle), -1, expected);
    FAILS(mp_await_delivery(handle), -1, expected);
    FAILS(mp_conn_info(handle, &info, sizeof(info)), -1, expected);
    FAILS(mp_local_address(handle, (struct sockaddr *)&address, &size), -1, expected);
    FAILS(mp_peer_address(handle, (struct sockaddr *)&address, &size), -1, expected);
}

/* Every call that takes a channel, right but for the channel; mp_wake() works from anywhere. */
static void all_channel_calls_fail(mp_channel_t *channel, int expected)
{
    struct sockaddr_in address = loopback(0);
    struct mp_counters counters;
    struct mp_event event;
    struct sockaddr *any = (struct sockaddr *)&address;
    int64_t timeout_ns;

    FAILS(mp_register(channel, 0, NULL, 0), MP_NO_HANDLE, expected);
    FAILS(mp_listen(channel, any, sizeof(address), NULL, NULL), MP_NO_HANDLE, expected);
    FAILS(mp_connect(channel, any, sizeof(address), NULL, NULL), MP_NO_HANDLE, expected);
    FAILS(mp_socket(channel, AF_INET, NULL, 0, NULL), MP_NO_HANDLE, expected);
    FAILS(mp_open(channel, "/", O_RDONLY, NULL), MP_NO_HANDLE, expected);
    FAILS(mp_timer(channel, 1, 0, NULL), MP_NO_HANDLE, expected);
    FAILS(mp_flush(channel), -1, expected);
    FAILS(mp_dispatch(channel, &event, 0), -1, expected);
    FAILS(mp_dispatch_many(channel, &event, 1, 0), -1, expected);
    FAILS(mp_report(channel, NULL, 0), -1, expected);
    FAILS(mp_counters(channel, &counters, sizeof(counters)), -1, expected);
    FAILS(mp_park(channel, &timeout_ns), -1, expected);
}

static void null_pointers(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    struct sockaddr_in address = loopback(0);
    struct sockaddr *any = (struct sockaddr *)&address;
    socklen_t size = sizeof(address);
    struct iovec hole = {NULL, 4};
    mp_handle_t message = mp_socket(channel, AF_INET, NULL, 0, NULL);
    char buf[4];

    all_channel_calls_fail(NULL, EFAULT);
    FAILS(mp_destroy(NULL), -1, EFAULT);
    FAILS(mp_wake(NULL), -1, EFAULT);
    FAILS(mp_config_init(NULL, sizeof(struct mp_config)), -1, EFAULT);
    FAILS(mp_listen(channel, NULL, size, NULL, NULL), MP_NO_HANDLE, EFAULT);
    FAILS(mp_connect(channel, NULL, size, NULL, NULL), MP_NO_HANDLE, EFAULT);
    FAILS(mp_open(channel, NULL, O_RDONLY, NULL), MP_NO_HANDLE, EFAULT);
    FAILS(mp_accept_with(pair.handle, NULL), -1, EFAULT);
    FAILS(mp_readv(pair.handle, NULL, 1), -1, EFAULT);
    FAILS(mp_readv(pair.handle, &hole, 1), -1, EFAULT);
    FAILS(mp_write(pair.handle, NULL, 1), -1, EFAULT);
    FAILS(mp_write_quiet(pair.handle, NULL, 1), -1, EFAULT);
    FAILS(mp_writev(pair.handle, NULL, 1), -1, EFAULT);
    FAILS(mp_writev(pair.handle, &hole, 1), -1, EFAULT);
    FAILS(mp_write_at(pair.handle, NULL, 1, 0), -1, EFAULT);
    FAILS(mp_recvfrom(message, buf, sizeof(buf), any, NULL), -1, EFAULT);
    FAILS(mp_sendto(message, NULL, 1, any, size), -1, EFAULT);
    FAILS(mp_sendto(message, "x", 1, NULL, size), -1, EFAULT);
    FAILS(mp_dispatch(channel, NULL, 0), -1, EFAULT);
    FAILS(mp_dispatch_many(channel, NULL, 1, 0), -1, EFAULT);
    FAILS(mp_park(channel, NULL), -1, EFAULT);
    FAILS(mp_descriptors(NULL, NULL, 0), -1, EFAULT);
    FAILS(mp_descriptors(channel, NULL, 1), -1, EFAULT);
    FAILS(mp_descriptors(channel, NULL, -1), -1, EINVAL);
    FAILS(mp_release(NULL), -1, EFAULT);
    FAILS(mp_counters(channel, NULL, sizeof(struct mp_counters)), -1, EFAULT);
    FAILS(mp_local_address(pair.handle, NULL, &size), -1, EFAULT);
    FAILS(mp_local_address(pair.handle, any, NULL), -1, EFAULT);
    FAILS(mp_peer_address(pair.handle, NULL, &size), -1, EFAULT);
    FAILS(mp_peer_address(pair.handle, any, NULL), -1, EFAULT);
    quiet(channel);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void stale_handles(void)
{
    mp_channel_t *channel = create();
    struct pair old = stream_pair(channel, NULL), new_one;
    mp_handle_t timer = mp_timer(channel, 1000, 0, NULL);
    char buf[8];

    all_handle_calls_fail(MP_NO_HANDLE, EBADF);
    all_handle_calls_fail(UINT64_MAX, EBADF);
    all_handle_calls_fail(UINT64_C(1) << 63, EBADF);
    CHECK(mp_read(old.handle, buf, sizeof(buf)) == 0);
    CHECK(mp_unregister(old.handle, NULL) == 0);
    all_handle_calls_fail(old.handle, EBADF);
    /* The number has a new owner; the old handle is not mistaken for it. */
    new_one = stream_pair(channel, NULL);
    all_handle_calls_fail(old.handle, EBADF);
    send_all(new_one.peer, "mine", 4);
    CHECK(mp_read(new_one.handle, NULL, 16) == 0);
    for (;;) {
        struct mp_event event = next(channel);

        CHECK(event.handle != old.handle);
        if (event.handle == timer)
            continue;
        CHECK(event.handle == new_one.handle && event.size == 4 && event.flags == MP_LENT);
        break;
    }
    CHECK(mp_unregister(timer, NULL) == 0);
    FAILS(mp_unregister(timer, NULL), -1, EBADF);
    FAILS(mp_register(channel, MP_FIRST_LWSOCKET + 12345, NULL, 0), MP_NO_HANDLE, EBADF);
    FAILS(mp_register(channel, INT32_MAX, NULL, 0), MP_NO_HANDLE, EBADF);
    FAILS(mp_register(channel, -1, NULL, 0), MP_NO_HANDLE, EBADF);
    FAILS(mp_register(channel, 1 << 29, NULL, 0), MP_NO_HANDLE, EBADF);
    close(old.peer);
    close(new_one.peer);
    CHECK(mp_destroy(channel) == 0);
    all_handle_calls_fail(new_one.handle, EBADF);
}

static void two_channels_of_one_thread(void)
{
    mp_channel_t *one = create(), *two = create();
    struct pair pair = stream_pair(one, NULL);
    struct mp_event event;
    char buf[8];

    /* A handle leads to its own channel; its number means nothing in the other. */
    CHECK(mp_read(pair.handle, buf, sizeof(buf)) == 0);
    send_all(pair.peer, "one", 3);
    succeeds(one, MP_READ, pair.handle);
    quiet(two);
    CHECK(mp_read(pair.handle, NULL, 8) == 0);
    send_all(pair.peer, "lent", 4);
    event = succeeds(one, MP_READ, pair.handle);
    CHECK(mp_destroy(two) == 0);
    CHECK(mp_release(&event) == 0);
    close(pair.peer);
    CHECK(mp_destroy(one) == 0);
}

static void wrong_kinds(void)
{
    mp_channel_t *channel = create();
    struct sockaddr_in address;
    struct pair pair = stream_pair(channel, NULL);
    mp_handle_t listener = listen_on_loopback(channel, &address);
    mp_handle_t timer = mp_timer(channel, UINT64_C(1000000000000), 0, NULL);
    socklen_t size = sizeof(address);
    char buf[8];
    struct mp_conn_info info;
    int directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    FAILS(mp_accept(pair.handle, 1, MP_AS_LWSOCKET), -1, EOPNOTSUPP);
    FAILS(mp_read(listener, buf, 8), -1, EOPNOTSUPP);
    FAILS(mp_read(timer, buf, 8), -1, EOPNOTSUPP);
    FAILS(mp_write(listener, buf, 8), -1, EOPNOTSUPP);
    FAILS(mp_write(timer, buf, 8), -1, EOPNOTSUPP);
    FAILS(mp_write_quiet(listener, buf, 8), -1, EOPNOTSUPP);
    FAILS(mp_write_quiet(timer, buf, 8), -1, EOPNOTSUPP);
    FAILS(mp_read_at(pair.handle, buf, 8, 0), -1, EOPNOTSUPP);
    FAILS(mp_write_at(pair.handle, buf, 8, 0), -1, EOPNOTSUPP);
    FAILS(mp_fsync(pair.handle), -1, EOPNOTSUPP);
    FAILS(mp_recvfrom(pair.handle, buf, 8, NULL, NULL), -1, EOPNOTSUPP);
    FAILS(mp_disconnect(listener, MP_BOTH), -1, EOPNOTSUPP);
    FAILS(mp_to_fd(timer), -1, EOPNOTSUPP);
    FAILS(mp_await_end(timer), -1, EOPNOTSUPP);
    FAILS(mp_await_end(listener), -1, EOPNOTSUPP);
    /* The kernel has no call for these. */
    FAILS(mp_await_delivery(pair.handle), -1, EOPNOTSUPP);
    FAILS(mp_conn_info(pair.handle, &info, sizeof(info)), -1, EOPNOTSUPP);
    FAILS(mp_register(channel, directory, NULL, 0), MP_NO_HANDLE, EOPNOTSUPP);
    FAILS(mp_register(channel, pair.peer, NULL, 1), MP_NO_HANDLE, EINVAL);
    CHECK(mp_local_address(timer, (struct sockaddr *)&address, &size) == -1);
    FAILS(mp_socket(channel, AF_PACKET, NULL, 0, NULL), MP_NO_HANDLE, EAFNOSUPPORT);
    quiet(channel);
    close(directory);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void values_out_of_range(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    struct sockaddr_in address;
    mp_handle_t listener = listen_on_loopback(channel, &address);
    struct mp_accept_options accept = {sizeof(accept), 1, MP_AS_LWSOCKET, NULL, SIZE_MAX};
    struct mp_listen_options listening = {.size = sizeof(listening), .flags = 0x100};
    struct mp_connect_options connecting = {.size = 3};
    struct sockaddr *any = (struct sockaddr *)&address;
    struct iovec parts[2] = {{(void *)"x", SIZE_MAX}, {(void *)"x", SIZE_MAX}};
    struct iovec nothing = {NULL, 0};
    char path[5000], buf[8];

    FAILS(mp_read(pair.handle, buf, 0), -1, EINVAL);
    FAILS(mp_read(pair.handle, buf, SIZE_MAX), -1, EINVAL);
    FAILS(mp_read(pair.handle, NULL, 0), -1, EINVAL);
    FAILS(mp_readv(pair.handle, parts, 0), -1, EINVAL);
    FAILS(mp_readv(pair.handle, parts, -1), -1, EINVAL);
    FAILS(mp_readv(pair.handle, parts, 1025), -1, EINVAL);
    FAILS(mp_readv(pair.handle, parts, 2), -1, EINVAL);
    FAILS(mp_readv(pair.handle, &nothing, 1), -1, EINVAL);
    FAILS(mp_write(pair.handle, buf, 0), -1, EINVAL);
    FAILS(mp_write(pair.handle, NULL, 0), -1, EINVAL);
    FAILS(mp_write(pair.handle, buf, SIZE_MAX), -1, EINVAL);
    FAILS(mp_write(pair.handle, buf, (size_t)1 << 31), -1, EINVAL);
    FAILS(mp_write_quiet(pair.handle, buf, 0), -1, EINVAL);
    FAILS(mp_write_quiet(pair.handle, NULL, 0), -1, EINVAL);
    FAILS(mp_write_quiet(pair.handle, buf, SIZE_MAX), -1, EINVAL);
    FAILS(mp_write_quiet(pair.handle, buf, (size_t)1 << 31), -1, EINVAL);
    CHECK(mp_unsent_bytes(pair.handle) == 0);
    FAILS(mp_writev(pair.handle, parts, 2), -1, EINVAL);
    FAILS(mp_writev(pair.handle, &nothing, 1), -1, EINVAL);
    FAILS(mp_disconnect(pair.handle, 3), -1, EINVAL);
    FAILS(mp_accept(listener, 0, MP_AS_FD), -1, EINVAL);
    FAILS(mp_accept(listener, 1, 2), -1, EINVAL);
    FAILS(mp_accept_with(listener, &accept), -1, EINVAL);
    accept.size = 0;
    FAILS(mp_accept_with(listener, &accept), -1, EINVAL);
    FAILS(mp_listen(channel, any, sizeof(address), &listening, NULL), MP_NO_HANDLE, EINVAL);
    FAILS(mp_connect(channel, any, sizeof(address), &connecting, NULL), MP_NO_HANDLE, EINVAL);
    FAILS(mp_listen(channel, any, 3, NULL, NULL), MP_NO_HANDLE, EAFNOSUPPORT);
    FAILS(mp_listen(channel, any, 0, NULL, NULL), MP_NO_HANDLE, EAFNOSUPPORT);
    FAILS(mp_listen(channel, any, 1000, NULL, NULL), MP_NO_HANDLE, EINVAL);
    memset(path, 'x', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    FAILS(mp_open(channel, path, O_RDONLY, NULL), MP_NO_HANDLE, EINVAL);
    quiet(channel);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void *use_of_another_thread(void *argument)
{
    mp_channel_t *channel = (mp_channel_t *)argument;
    mp_handle_t handle = mp_timer(channel, 1000, 0, NULL);

    CHECK(handle == MP_NO_HANDLE && errno == EPERM);
    CHECK(strstr(mp_last_error(), "another thread") != NULL);
    all_channel_calls_fail(channel, EPERM);
    FAILS(mp_destroy(channel), -1, EPERM);
    CHECK(mp_wake(channel) == 0);
    return NULL;
}

static void *use_of_another_threads_handle(void *argument)
{
    struct mp_event event = *(struct mp_event *)argument;

    CHECK(*mp_last_error() == '\0');
    all_handle_calls_fail(event.handle, EPERM);
    FAILS(mp_release(&event), -1, EPERM);
    /* A channel of its own changes nothing. */
    mp_channel_t *channel = create();
    all_handle_calls_fail(event.handle, EPERM);
    CHECK(mp_destroy(channel) == 0);
    return NULL;
}

static void other_threads(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    struct mp_event event;
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, use_of_another_thread, channel) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    succeeds(channel, MP_WAKE, MP_NO_HANDLE);
    CHECK(mp_read(pair.handle, NULL, 8) == 0);
    send_all(pair.peer, "lent", 4);
    event = succeeds(channel, MP_READ, pair.handle);
    CHECK(pthread_create(&thread, NULL, use_of_another_threads_handle, &event) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(mp_release(&event) == 0);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

/* Descriptors of the process. */
static int descriptors(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) != -1;
    return count;
}

static void *ends_without_destroying(void *argument)
{
    mp_channel_t *one = create(), *other = create();
    struct pair pair = stream_pair(one, NULL);

    CHECK(mp_read(pair.handle, NULL, 8) == 0);
    CHECK(mp_flush(one) == 0);
    CHECK(mp_timer(other, 1000, 0, NULL) != MP_NO_HANDLE);
    close(pair.peer);
    *(mp_handle_t *)argument = pair.handle;
    return NULL;
}

static void a_thread_that_ends_destroys_its_channels(void)
{
    int before = descriptors();
    mp_handle_t handle;
    pthread_t thread;

    for (int i = 0; i < 8; i++) {
        CHECK(pthread_create(&thread, NULL, ends_without_destroying, &handle) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        FAILS(mp_unregister(handle, NULL), -1, EBADF);
    }
    CHECK(descriptors() == before);
}

static void in_the_child(mp_channel_t *channel, const struct pair *pair)
{
    mp_channel_t *own;
    struct pair mine;
    char buf[8];

    all_channel_calls_fail(channel, ECHILD);
    all_handle_calls_fail(pair->handle, ECHILD);
    FAILS(mp_wake(channel), -1, ECHILD);
    CHECK(mp_destroy(channel) == 0);
    /* A channel made here works. */
    own = create();
    mine = stream_pair(own, NULL);
    CHECK(mp_read(mine.handle, buf, sizeof(buf)) == 0);
    send_all(mine.peer, "mine", 4);
    CHECK(succeeds(own, MP_READ, mine.handle).size == 4);
    close(mine.peer);
    CHECK(mp_destroy(own) == 0);
}

static void after_fork(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL);
    char buf[8];
    pid_t child;
    int status;

    CHECK(mp_read(pair.handle, buf, sizeof(buf)) == 0);
    CHECK(mp_flush(channel) == 0);
    send_all(pair.peer, "for me", 6);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        in_the_child(channel, &pair);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* The parent's channel was not disturbed: nothing was taken, nothing was closed. */
    CHECK(succeeds(channel, MP_READ, pair.handle).size == 6);
    CHECK(mp_write(pair.handle, "still", 5) == 0);
    succeeds(channel, MP_WRITE, pair.handle);
    receive_exactly(pair.peer, "still", 5);
    close(pair.peer);
    CHECK(mp_destroy(channel) == 0);
}

static void destroyed_with_everything_under_way(void)
{
    mp_channel_t *channel = create();
    struct pair pair = stream_pair(channel, NULL), reset = stream_pair(channel, NULL);
    struct sockaddr_in address, closed_port = loopback(1);
    mp_handle_t listener = listen_on_loopback(channel, &address);
    mp_handle_t file = mp_open(channel, "/etc/hostname", O_RDONLY, NULL);
    mp_handle_t message = mp_socket(channel, AF_INET, NULL, 0, NULL);
    struct mp_event lent;
    char *heap = (char *)malloc(1 << 16);
    int ends[2];

    CHECK(file != MP_NO_HANDLE && pipe2(ends, O_CLOEXEC) == 0);
    CHECK(mp_read(pair.handle, NULL, 8) == 0);
    send_all(pair.peer, "lent", 4);
    do
        lent = next(channel);
    while (lent.cmd != MP_READ);
    CHECK(mp_disconnect(reset.handle, MP_RESET) == 0);
    while (next(channel).cmd != MP_DISCONNECT)
        continue;
    CHECK(mp_read(pair.handle, heap, 1 << 16) == 0);
    CHECK(mp_recvfrom(message, heap, 1 << 16, NULL, NULL) == 0);
    CHECK(mp_read(mp_register(channel, ends[0], NULL, 0), heap, 10) == 0);
    CHECK(mp_accept(listener, MP_ALWAYS, MP_AS_LWSOCKET) == 0);
    CHECK(mp_timer(channel, 1, 1, NULL) != MP_NO_HANDLE);
    CHECK(mp_connect(channel, (struct sockaddr *)&closed_port, sizeof(closed_port), NULL, NULL) !=
          0);
    CHECK(mp_flush(channel) == 0);
    CHECK(mp_write(pair.handle, "unsent", 6) == 0);
    CHECK(mp_destroy(channel) == 0);
    /* Those buffers are no longer written to. */
    memset(heap, 0, 1 << 16);
    free(heap);
    CHECK(write(ends[1], "x", 1) == 1);
    CHECK(read(ends[0], ends, 1) == 1);
    FAILS(mp_release(&lent), -1, EBADF);
    close(pair.peer);
    close(reset.peer);
}

static void many_channels_come_and_go(void)
{
    struct mp_config config = configuration();
    mp_channel_t *kept;
    mp_handle_t timer;

    config.buffer_count = 4;
    config.submission_entries = 8;
    config.completion_entries = 8;
    config.batch = 8;
    config.max_lwsockets = 1;
    kept = create_with(&config);
    timer = mp_timer(kept, UINT64_C(1000000000000), 0, NULL);
    /* Tags repeat after 4095 channels; one that is still in use is passed over. */
    for (int i = 0; i < 4200; i++) {
        mp_channel_t *channel = create_with(&config);

        CHECK(mp_timer(channel, 1, 0, NULL) != MP_NO_HANDLE);
        CHECK(mp_destroy(channel) == 0);
    }
    CHECK(mp_set_cookie(timer, &config) == 0);
    CHECK(mp_destroy(kept) == 0);
    FAILS(mp_set_cookie(timer, NULL), -1, EBADF);
}

int main(int argc, char **argv)
{
    choose_driver(argc, argv);
    RUN(null_pointers);
    RUN(stale_handles);
    RUN(two_channels_of_one_thread);
    RUN(wrong_kinds);
    RUN(values_out_of_range);
    RUN(other_threads);
    RUN(a_thread_that_ends_destroys_its_channels);
    RUN_UNLESS_VALGRIND(after_fork);
    RUN(destroyed_with_everything_under_way);
    RUN(many_channels_come_and_go);
    return 0;
}
