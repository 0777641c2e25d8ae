/*
 * The records and constants are where src/abi.rs says that they are. Compiled as C11 and as C++,
 * with all warnings; nothing to run but the version.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <megapipe.h>

#ifdef __cplusplus
#define HOLDS(what) static_assert(what, #what)
#else
#define HOLDS(what) _Static_assert(what, #what)
#endif
#define AT(record, field, offset) HOLDS(offsetof(struct record, field) == (offset))

HOLDS(sizeof(struct mp_event) == 96);
AT(mp_event, cmd, 0);
AT(mp_event, error, 4);
AT(mp_event, handle, 8);
AT(mp_event, cookie, 16);
AT(mp_event, size, 24);
AT(mp_event, buf, 32);
AT(mp_event, fd, 40);
AT(mp_event, pending, 44);
AT(mp_event, connection, 48);
AT(mp_event, expirations, 56);
AT(mp_event, flags, 64);
AT(mp_event, lent_index, 68);
AT(mp_event, lent_generation, 72);
AT(mp_event, reserved, 76);

HOLDS(sizeof(struct mp_config) == 104);
AT(mp_config, size, 0);
AT(mp_config, driver, 8);
AT(mp_config, batch, 12);
AT(mp_config, submission_entries, 16);
AT(mp_config, completion_entries, 20);
AT(mp_config, max_lwsockets, 24);
AT(mp_config, buffer_len, 28);
AT(mp_config, buffer_count, 32);
AT(mp_config, core, 36);
AT(mp_config, flags, 40);
AT(mp_config, reserved, 44);
AT(mp_config, backend, 48);
AT(mp_config, mtu, 52);
AT(mp_config, link, 56);
AT(mp_config, addresses, 64);
AT(mp_config, gateways, 72);
AT(mp_config, spin_us, 80);
AT(mp_config, channels, 84);
AT(mp_config, placement, 88);
AT(mp_config, server_core, 92);
AT(mp_config, unsent_bytes_max, 96);

HOLDS(sizeof(struct mp_accept_options) == 32);
AT(mp_accept_options, count, 8);
AT(mp_accept_options, kind, 12);
AT(mp_accept_options, cookie, 16);
AT(mp_accept_options, first_read, 24);

HOLDS(sizeof(struct mp_listen_options) == 40);
AT(mp_listen_options, backlog, 8);
AT(mp_listen_options, flags, 12);
AT(mp_listen_options, cpu_mask, 16);
AT(mp_listen_options, cpu_mask_words, 24);
AT(mp_listen_options, fast_open, 32);
AT(mp_listen_options, notsent_lowat, 36);

HOLDS(sizeof(struct mp_connect_options) == 40);
AT(mp_connect_options, timeout_ns, 8);
AT(mp_connect_options, bind, 16);
AT(mp_connect_options, bind_size, 24);
AT(mp_connect_options, flags, 28);
AT(mp_connect_options, notsent_lowat, 32);

HOLDS(sizeof(struct mp_counters) == 152);
AT(mp_counters, operations, 0);
AT(mp_counters, datagrams_dropped, 112);
AT(mp_counters, stray_answers, 120);
AT(mp_counters, server_wakeups, 136);
AT(mp_counters, writes_refused, 144);

HOLDS(sizeof(struct mp_conn_info) == 136);
AT(mp_conn_info, srtt_ns, 0);
AT(mp_conn_info, bytes_sent, 40);
AT(mp_conn_info, state, 48);
AT(mp_conn_info, timeouts, 132);

HOLDS(MP_ACCEPT == 1 && MP_CONNECT == 2 && MP_OPEN == 3 && MP_READ == 4 && MP_WRITE == 5);
HOLDS(MP_RECVFROM == 6 && MP_SENDTO == 7 && MP_FSYNC == 8 && MP_DISCONNECT == 9);
HOLDS(MP_TIMER == 10 && MP_TO_FD == 11 && MP_WAKE == 12 && MP_UNREGISTER == 13);
HOLDS(MP_AWAIT_END == 14 && MP_AWAIT_DELIVERY == 15 && MP_DRAINED == 16);
HOLDS(MP_PLACEMENT_DEFAULT == 0 && MP_PLACEMENT_INLINE == 1 && MP_PLACEMENT_THREAD == 2);
HOLDS(MP_PLACEMENT_CORE == 3);
HOLDS(MP_DRIVER_AUTO == 0 && MP_DRIVER_URING == 1 && MP_DRIVER_EPOLL == 2);
HOLDS(MP_AS_FD == 0 && MP_AS_LWSOCKET == 1);
HOLDS(MP_BOTH == 0 && MP_WRITING == 1 && MP_RESET == 2);
HOLDS(MP_FOREVER == -1 && MP_NO_HANDLE == 0 && MP_FIRST_LWSOCKET == 1 << 30);
HOLDS(sizeof(mp_handle_t) == 8);

int main(void)
{
    char version[32];

    snprintf(version, sizeof(version), "%d.%d.%d", MP_VERSION_MAJOR, MP_VERSION_MINOR,
             MP_VERSION_PATCH);
    printf("header %s, library %s\n", version, mp_version());
    return strcmp(version, mp_version()) == 0 ? 0 : 1;
}
