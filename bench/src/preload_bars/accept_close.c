/*
 * Times accept4(2) and close(2): connections of the program to itself, accepted and closed at once.
 *
 *     accept_close ADDRESS PORT ROUNDS
 *
 * Prints the nanoseconds of a pair in the fastest round, and the system calls of this thread in a
 * pair; -1 where they cannot be counted.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <stdint.h>
#include <unistd.h>

#include "system_call_counter.h"

enum { BATCH = 32 };

static double now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

int main(int argc, char **argv)
{
    struct sockaddr_in address;
    struct linger reset = {1, 0};
    int clients[BATCH], listener, on = 1, rounds, round, at, counts;
    double least = 1e18, calls = -1;
    uint64_t count = 0;

    if (argc != 4)
        return 2;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(argv[2]));
    rounds = atoi(argv[3]);
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
        return 2;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, BATCH) != 0)
        fail("listen");
    counts = system_call_counter("raw_syscalls/sys_enter");
    for (round = 0; round < rounds; round++) {
        double begun, ns;

        for (at = 0; at < BATCH; at++) {
            clients[at] = socket(AF_INET, SOCK_STREAM, 0);
            if (clients[at] < 0 ||
                connect(clients[at], (struct sockaddr *)&address, sizeof address) != 0)
                fail("connect");
            setsockopt(clients[at], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        if (counts >= 0)
            ioctl(counts, PERF_EVENT_IOC_ENABLE, 0);
        begun = now_ns();
        for (at = 0; at < BATCH; at++) {
            int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);

            if (fd < 0)
                fail("accept4");
            close(fd);
        }
        ns = (now_ns() - begun) / BATCH;
        if (counts >= 0)
            ioctl(counts, PERF_EVENT_IOC_DISABLE, 0);
        if (ns < least)
            least = ns;
        for (at = 0; at < BATCH; at++)
            close(clients[at]);
    }
    /* Less the calls that end the counts. */
    if (counts >= 0 && read(counts, &count, sizeof count) == sizeof count)
        calls = ((double)count - rounds) / (rounds * BATCH);
    printf("%.1f %.3f\n", least, calls);
    return 0;
}
