/*
 * What does mp_read() and its completion cost from C? Prints nanoseconds for each read, the least
 * of some batches.
 *
 * Blocks of bytes go through a pair of sockets; each is read in small pieces, nearly all of which
 * have arrived with the piece before, so that the kernel's part is small and the same for both.
 * `read_loop` in c_overhead.rs is the same program in Rust: change both or none.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <megapipe.h>

enum { BATCHES = 20, BLOCKS = 500, BLOCK_SIZE = 4096, PIECE_SIZE = 64 };

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mp_last_error());
    exit(EXIT_FAILURE);
}

static double now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(void)
{
    static char block[BLOCK_SIZE];
    static char piece[PIECE_SIZE];
    int ends[2];
    double least = 1e18;
    mp_channel_t *channel = mp_create(NULL);
    mp_handle_t handle;

    if (channel == NULL)
        fail("mp_create");
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        perror("socketpair");
        return EXIT_FAILURE;
    }
    handle = mp_register(channel, ends[0], NULL, 0);
    if (handle == MP_NO_HANDLE)
        fail("mp_register");
    for (int batch = 0; batch < BATCHES; batch++) {
        double started = now_ns();
        size_t reads = 0;

        for (int i = 0; i < BLOCKS; i++) {
            size_t left = BLOCK_SIZE;

            if (write(ends[1], block, BLOCK_SIZE) != BLOCK_SIZE) {
                perror("write");
                return EXIT_FAILURE;
            }
            while (left > 0) {
                struct mp_event event;

                if (mp_read(handle, piece, PIECE_SIZE) != 0)
                    fail("mp_read");
                if (mp_dispatch(channel, &event, MP_FOREVER) != 1 || event.error != 0)
                    fail("mp_dispatch");
                left -= event.size;
                reads++;
            }
        }
        double each = (now_ns() - started) / (double)reads;
        if (each < least)
            least = each;
    }
    printf("%.3f\n", least);
    mp_destroy(channel);
    return EXIT_SUCCESS;
}
