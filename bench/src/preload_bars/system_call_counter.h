/*
 * Counts what the calling thread does at a tracepoint, as `raw_syscalls/sys_enter`: a system call
 * (perf_event_open(2), which root may use on tracepoints).
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* A counter that is not enabled yet; -1 if there can be none, with errno. */
static inline int system_call_counter(const char *event)
{
    static const char *const places[] = {
        "/sys/kernel/tracing/events/%s/id",
        "/sys/kernel/debug/tracing/events/%s/id",
    };
    char place[256];
    struct perf_event_attr attributes;
    FILE *file = NULL;
    unsigned id = 0;
    size_t at;
    int found;

    for (at = 0; file == NULL && at < sizeof places / sizeof places[0]; at++)
        if (snprintf(place, sizeof place, places[at], event) < (int)sizeof place)
            file = fopen(place, "r");
    if (file == NULL)
        return -1;
    found = fscanf(file, "%u", &id);
    fclose(file);
    if (found != 1)
        return -1;
    memset(&attributes, 0, sizeof attributes);
    attributes.type = PERF_TYPE_TRACEPOINT;
    attributes.size = sizeof attributes;
    attributes.config = id;
    attributes.disabled = 1;
    return (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}
