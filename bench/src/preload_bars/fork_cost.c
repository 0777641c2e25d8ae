/*
 * Counts the messages of the parent of a fork(2), while it has connections to itself, as far as its
 * limit of files allows.
 *
 *     fork_cost ADDRESS PORT CONNECTIONS
 *
 * Prints the messages (sendmsg(2)) of the parent in a fork, which the kernel counts, and the
 * descriptors that its child has more.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "system_call_counter.h"

/* Files of others, and the exit status of a child that has no file more or less. */
enum { SPARE_FILES = 1024, MIDDLE = 128 };

/* The open descriptors of this process. */
static int open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    if (folder == NULL)
        fail("/proc/self/fd");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

int main(int argc, char **argv)
{
    struct sockaddr_in address;
    struct rlimit limit;
    int listener, on = 1, connections, at, counts, before, status = 0;
    uint64_t calls = 0;
    pid_t child;

    if (argc != 4)
        return 2;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(argv[2]));
    connections = atoi(argv[3]);
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
        return 2;
    /* A connection to itself has two numbers. */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        if (limit.rlim_max != RLIM_INFINITY && 2ul * connections + SPARE_FILES > limit.rlim_max)
            connections = (limit.rlim_max - SPARE_FILES) / 2;
    }
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 64) != 0)
        fail("listen");
    for (at = 0; at < connections; at++) {
        int client = socket(AF_INET, SOCK_STREAM, 0);

        if (client < 0 || connect(client, (struct sockaddr *)&address, sizeof address) != 0)
            fail("connect");
        if (accept(listener, NULL, NULL) < 0)
            fail("accept");
    }
    counts = system_call_counter("syscalls/sys_enter_sendmsg");
    if (counts < 0)
        fail("syscalls/sys_enter_sendmsg");
    before = open_files();
    ioctl(counts, PERF_EVENT_IOC_ENABLE, 0);
    child = fork();
    if (child == 0)
        _exit(open_files() - before + MIDDLE);
    ioctl(counts, PERF_EVENT_IOC_DISABLE, 0);
    if (child < 0)
        fail("fork");
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        fail("waitpid");
    if (read(counts, &calls, sizeof calls) != sizeof calls)
        fail("read");
    printf("%llu %d\n", (unsigned long long)calls, WEXITSTATUS(status) - MIDDLE);
    return 0;
}
