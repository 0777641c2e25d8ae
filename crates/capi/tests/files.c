/*
 * Disk files: opening, reading and writing at offsets, the order of reads, fsync.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "check.h"

static char path[64];

static mp_handle_t open_file(mp_channel_t *channel, int flags)
{
    mp_handle_t file = mp_open(channel, path, flags, NULL);

    CHECK(file != MP_NO_HANDLE);
    succeeds(channel, MP_OPEN, file);
    return file;
}

static void what_is_written_is_read(void)
{
    mp_channel_t *channel = create();
    mp_handle_t file = open_file(channel, O_RDWR | O_CREAT | O_TRUNC);
    struct mp_event event;
    char buf[16] = "";

    CHECK(mp_write_at(file, "world", 5, 6) == 0);
    CHECK(succeeds(channel, MP_WRITE, file).size == 5);
    CHECK(mp_write_at(file, "hello ", 6, 0) == 0);
    CHECK(succeeds(channel, MP_WRITE, file).size == 6);
    CHECK(mp_fsync(file) == 0);
    succeeds(channel, MP_FSYNC, file);
    CHECK(mp_read_at(file, buf, sizeof(buf), 0) == 0);
    event = succeeds(channel, MP_READ, file);
    CHECK(event.size == 11 && event.buf == buf && memcmp(buf, "hello world", 11) == 0);
    CHECK(mp_read_at(file, NULL, 5, 6) == 0);
    event = succeeds(channel, MP_READ, file);
    CHECK(event.size == 5 && event.flags == MP_LENT && memcmp(event.buf, "world", 5) == 0);
    CHECK(mp_release(&event) == 0);
    CHECK(mp_read_at(file, buf, sizeof(buf), 11) == 0);
    CHECK(succeeds(channel, MP_READ, file).size == 0);
    CHECK(mp_read_at(file, buf, sizeof(buf), UINT64_C(1) << 40) == 0);
    CHECK(succeeds(channel, MP_READ, file).size == 0);
    CHECK(mp_unregister(file, NULL) == 0);
    CHECK(mp_destroy(channel) == 0);
}

/* Many reads at once, each into memory of its own: each memory gets its own bytes. */
static void reads_at_offsets_are_answered_in_order(void)
{
    enum { READS = 100, SIZE = 32 };
    static char data[READS * SIZE], bufs[READS][SIZE];
    mp_channel_t *channel = create();
    mp_handle_t file = open_file(channel, O_RDWR | O_CREAT | O_TRUNC);
    struct iovec parts[] = {{bufs[1], 10}, {bufs[1] + 10, SIZE - 10}};
    struct mp_event event;

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i / SIZE + i * 3);
    CHECK(mp_write_at(file, data, sizeof(data), 0) == 0);
    succeeds(channel, MP_WRITE, file);
    for (int i = 0; i < READS; i++) {
        uint64_t at = (uint64_t)(READS - 1 - i) * SIZE;

        if (i == 1) /* without an offset: from the beginning, since nothing was read so far */
            CHECK(mp_readv(file, parts, 2) == 0);
        else if (i % 10 == 5)
            CHECK(mp_read_at(file, NULL, SIZE, at) == 0);
        else
            CHECK(mp_read_at(file, bufs[i], SIZE, at) == 0);
    }
    for (int i = 0; i < READS; i++) {
        const char *expected = data + (i == 1 ? 0 : (READS - 1 - i) * SIZE);

        event = succeeds(channel, MP_READ, file);
        CHECK(event.size == SIZE);
        CHECK(memcmp(i % 10 == 5 ? event.buf : bufs[i], expected, SIZE) == 0);
        if (event.flags & MP_LENT)
            CHECK(mp_release(&event) == 0);
    }
    quiet(channel);

    /* What waits vanishes with its handle. */
    for (int i = 0; i < 10; i++)
        CHECK(mp_read_at(file, bufs[i], SIZE, 0) == 0);
    FAILS(mp_read_at(file, bufs[0], 0, 0), -1, EINVAL);
    FAILS(mp_read_at(file, bufs[0], SIZE_MAX, 0), -1, EINVAL);
    CHECK(mp_unregister(file, NULL) == 0);
    quiet(channel);
    CHECK(mp_destroy(channel) == 0);
}

static void opening_tells_why_not(void)
{
    mp_channel_t *channel = create();
    mp_handle_t file = mp_open(channel, "/nonexistent/file", O_RDONLY, path);
    struct mp_event event;
    char buf[4];

    CHECK(file != MP_NO_HANDLE);
    FAILS(mp_read_at(file, buf, sizeof(buf), 0), -1, EOPNOTSUPP);
    event = expect(channel, MP_OPEN, file);
    CHECK(event.error == ENOENT && event.cookie == path);
    CHECK(mp_unregister(file, NULL) == 0);

    CHECK(mp_unregister(open_file(channel, O_WRONLY | O_CREAT), NULL) == 0);
    file = mp_open(channel, path, O_WRONLY | O_CREAT | O_EXCL, NULL);
    CHECK(expect(channel, MP_OPEN, file).error == EEXIST);
    CHECK(mp_unregister(file, NULL) == 0);

    file = open_file(channel, O_RDONLY);
    CHECK(mp_write_at(file, "x", 1, 0) == 0);
    CHECK(expect(channel, MP_WRITE, file).error == EBADF);
    FAILS(mp_open(channel, path, O_RDONLY | O_DIRECTORY, NULL), MP_NO_HANDLE, EINVAL);
    FAILS(mp_open(channel, path, O_ACCMODE, NULL), MP_NO_HANDLE, EINVAL);
    CHECK(mp_destroy(channel) == 0);
}

static void a_registered_file_is_read_from_where_it_stands(void)
{
    mp_channel_t *channel = create();
    char buf[4];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    mp_handle_t file;

    CHECK(write(fd, "abcdef", 6) == 6 && lseek(fd, 2, SEEK_SET) == 2);
    file = mp_register(channel, fd, NULL, 0);
    CHECK(file != MP_NO_HANDLE);
    CHECK(mp_read(file, buf, 2) == 0);
    CHECK(succeeds(channel, MP_READ, file).size == 2 && memcmp(buf, "cd", 2) == 0);
    CHECK(mp_write(file, "EF", 2) == 0);
    CHECK(succeeds(channel, MP_WRITE, file).size == 2);
    CHECK(mp_unregister(file, NULL) == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == 6);
    CHECK(pread(fd, buf, 2, 4) == 2 && memcmp(buf, "EF", 2) == 0);
    close(fd);
    CHECK(mp_destroy(channel) == 0);
}

int main(int argc, char **argv)
{
    choose_driver(argc, argv);
    snprintf(path, sizeof(path), "/tmp/mp-capi-files-%d-%s", (int)getpid(), argv[1]);
    RUN(what_is_written_is_read);
    RUN(reads_at_offsets_are_answered_in_order);
    RUN(opening_tells_why_not);
    RUN(a_registered_file_is_read_from_where_it_stands);
    CHECK(unlink(path) == 0);
    return 0;
}
