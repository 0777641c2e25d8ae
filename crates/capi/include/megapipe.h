/*
 * megapipe: network I/O channels for message-oriented servers.
 *
 * Start at megapipe(7); each call has a page of its own in section 3. Every call that fails sets
 * errno and returns -1, NULL or MP_NO_HANDLE; mp_last_error() says why in words.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef MEGAPIPE_H
#define MEGAPIPE_H

/* Generated from crates/capi/src by `cargo xtask header`. Do not edit. */

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

// The version of this header.
#define MP_VERSION_MAJOR 0

// The version of this header.
#define MP_VERSION_MINOR 1

// The version of this header.
#define MP_VERSION_PATCH 0

// As `timeout_ns`: wait until there is a completion.
#define MP_FOREVER -1

// As `count` of mp_accept(): keep accepting until the handle is unregistered.
#define MP_ALWAYS UINT32_MAX

// The number of the first lwsocket: smaller numbers are file descriptors.
#define MP_FIRST_LWSOCKET (1 << 30)

// The CPUs that a mask may name.
#define MP_CPUS_MAX 1024

// Bit of `mp_event.flags`: the message was longer than the buffer; the excess is discarded.
#define MP_TRUNCATED 1

// Bit of `mp_event.flags`: `buf` is lent and must be returned with mp_release().
#define MP_LENT 2

// Bit of `mp_config.flags`: accepted lwsockets are backed by ordinary descriptors.
#define MP_NO_LWSOCKETS 1

// Bit of `mp_config.flags`: listeners share one accept queue instead of one per channel.
#define MP_NO_PARTITION 2

// Bit of `mp_config.flags`: the kernel serves if the daemon of the service back end gives no
// session.
#define MP_FALL_BACK 4

// Bit of `mp_config.flags`: with the local back end 127.0.0.0/8 and ::1 are the stack's.
#define MP_LOOPBACK_STACK 8

// Bit of `mp_listen_options.flags`: no other socket may listen on the address.
#define MP_EXCLUSIVE 1

// Bit of `mp_listen_options.flags`: an IPv6 socket accepts IPv6 only.
#define MP_ONLY_V6 2

// Bit of `mp_connect_options.flags`: the kernel may coalesce small segments (no TCP_NODELAY).
#define MP_GATHER 1

// Bit of `mp_connect_options.flags`: mp_unregister() resets the connection.
#define MP_RESET_ON_CLOSE 2

// Bit of `mp_connect_options.flags`: the SYN may carry the first bytes written (TCP Fast Open).
#define MP_FAST_OPEN 4

// Bit of `mp_conn_info.flags`: TCP timestamps are in use.
#define MP_CONN_TIMESTAMPS 1

// Bit of `mp_conn_info.flags`: selective acknowledgments are in use.
#define MP_CONN_SACK 2

// Bit of `mp_conn_info.flags`: windows are scaled.
#define MP_CONN_WINDOW_SCALE 4

// Bit of `mp_conn_info.flags`: explicit congestion notification is in use.
#define MP_CONN_ECN 8

// Bit of `mp_conn_info.flags`: ICMP has reported an error that need not last.
#define MP_CONN_SOFT_ERROR 16

// The operation that a completion reports.
enum mp_cmd {
    // mp_accept(): a connection arrived.
    MP_ACCEPT = 1,
    // mp_connect(): the connection is established or has failed.
    MP_CONNECT = 2,
    // mp_open(): the file is open.
    MP_OPEN = 3,
    // mp_read(), mp_readv(), mp_read_at(): bytes arrived; none means end of file.
    MP_READ = 4,
    // mp_write(), mp_writev(), mp_write_at(): all bytes were written. mp_write_quiet(): reported
    // only if the write failed.
    MP_WRITE = 5,
    // mp_recvfrom(): a message arrived.
    MP_RECVFROM = 6,
    // mp_sendto(): the message was sent.
    MP_SENDTO = 7,
    // mp_fsync(): the file's data is on the device.
    MP_FSYNC = 8,
    // mp_disconnect(): done.
    MP_DISCONNECT = 9,
    // mp_timer(): the timer expired.
    MP_TIMER = 10,
    // mp_to_fd(): the handle became a file descriptor.
    MP_TO_FD = 11,
    // mp_wake() was called.
    MP_WAKE = 12,
    // The event that mp_unregister() fills; never dispatched.
    MP_UNREGISTER = 13,
    // mp_await_end(): the connection has ended in both directions; `error` is the cause, 0 after
    // an orderly close.
    MP_AWAIT_END = 14,
    // mp_await_delivery(): the peer has acknowledged all bytes that were written.
    MP_AWAIT_DELIVERY = 15,
    // A write failed with ENOBUFS before, and the handle accepts writes again: its unsent bytes
    // have fallen to half of `mp_config.unsent_bytes_max`.
    MP_DRAINED = 16,
};

// The kernel interface of a channel: for everything with the kernel back end, for everything
// except TCP and UDP with the library's own stack.
enum mp_driver {
    // io_uring if a trial of it works, else epoll. mp_report() names the driver and the reason.
    MP_DRIVER_AUTO = 0,
    // io_uring, or mp_create() fails.
    MP_DRIVER_URING = 1,
    // epoll.
    MP_DRIVER_EPOLL = 2,
};

// The TCP and UDP implementation of a channel.
enum mp_backend {
    // The value of MEGAPIPE_BACKEND in the environment, `kernel`, `local` or `service`; the kernel
    // if it is unset.
    MP_BACKEND_DEFAULT = 0,
    // The kernel.
    MP_BACKEND_KERNEL = 1,
    // The library's own TCP/IP stack, on a link.
    MP_BACKEND_LOCAL = 2,
    // The library's own TCP/IP stack in the daemon megapiped.
    MP_BACKEND_SERVICE = 3,
};

// Where the library's own TCP/IP stack runs.
enum mp_placement {
    // With MP_BACKEND_DEFAULT the value of MEGAPIPE_PLACEMENT in the environment, `inline`,
    // `thread` or `core`; otherwise inline.
    MP_PLACEMENT_DEFAULT = 0,
    // Inside the channel's calls, on the channel's thread.
    MP_PLACEMENT_INLINE = 1,
    // On a thread of the library, on the same core as the channel's thread.
    MP_PLACEMENT_THREAD = 2,
    // On a thread of the library, on a core of its own.
    MP_PLACEMENT_CORE = 3,
};

// What an accepted connection becomes.
enum mp_as {
    // A file descriptor of the process.
    MP_AS_FD = 0,
    // An lwsocket of the channel.
    MP_AS_LWSOCKET = 1,
};

// What mp_disconnect() closes.
enum mp_how {
    // Both directions, after the writes that are queued.
    MP_BOTH = 0,
    // The sending direction, after the writes that are queued.
    MP_WRITING = 1,
    // The whole connection, immediately, with a reset.
    MP_RESET = 2,
};

// The object behind `mp_channel_t *`; its fields are private to the library.
struct mp_channel;

// Options of a channel. Let mp_config_init() fill it, then change fields.
struct mp_config {
    // sizeof(struct mp_config), set by mp_config_init().
    size_t size;
    // An enum mp_driver.
    uint32_t driver;
    // Operations collected before they are submitted to the kernel; 1 turns batching off.
    uint32_t batch;
    // Entries of the submission queue.
    uint32_t submission_entries;
    // Entries of the completion queue.
    uint32_t completion_entries;
    // lwsockets that may be open at once.
    uint32_t max_lwsockets;
    // Bytes of one receive buffer, and so the most bytes of one lent read.
    uint32_t buffer_len;
    // Receive buffers of the channel.
    uint32_t buffer_count;
    // Core that the calling thread is pinned to; -1 does not pin it.
    int32_t core;
    // MP_NO_LWSOCKETS, MP_NO_PARTITION, MP_FALL_BACK, MP_LOOPBACK_STACK.
    uint32_t flags;
    // Zero.
    uint32_t reserved;
    // An enum mp_backend.
    uint32_t backend;
    // Local: the largest IP packet in bytes; 0 for that of the link.
    uint32_t mtu;
    // Local: the link, such as "tap:tap0" or "xdp:eth0". Null for the link that the environment
    // names. Service: the path of the daemon's socket. Null for MEGAPIPE_SERVICE of the
    // environment, else "/run/megapipe/megapiped.sock".
    const char *link;
    // Local: the stack's addresses, "10.0.0.2/24,fd00::2/64"; null or empty for those of the
    // interface, where the link shares them.
    const char *addresses;
    // Local: next hops for destinations that are not on the link, at most one of each family,
    // separated by a comma. May be null.
    const char *gateways;
    // Local: microseconds that the stack polls its link after the last frame before it sleeps, at
    // most; 0 for 50.
    uint32_t spin_us;
    // Local: channels of the process that will share the link; 0 for one on each of its queues.
    uint32_t channels;
    // Local: an enum mp_placement.
    uint32_t placement;
    // MP_PLACEMENT_CORE: the core that the stack runs on; -1 for the next one that the process may
    // use. Otherwise -1 or 0.
    int32_t server_core;
    // Unsent bytes that one handle may have; a write that would exceed them fails with ENOBUFS. 0
    // for 1 MiB, UINT64_MAX for no limit.
    uint64_t unsent_bytes_max;
};

// A channel. One per thread: only the thread that created it may use it.
typedef struct mp_channel mp_channel_t;

// Names one socket, file, pipe or timer in its channel. 0 is never a valid handle.
typedef uint64_t mp_handle_t;

// One completion.
struct mp_event {
    // The operation that completed: an enum mp_cmd.
    uint32_t cmd;
    // 0, or the errno value of the cause.
    int32_t error;
    // The handle of the operation. MP_NO_HANDLE for MP_WAKE.
    mp_handle_t handle;
    // The handle's cookie.
    void *cookie;
    // Bytes read or written.
    size_t size;
    // The bytes: in lent memory (MP_LENT), else in the program's own buffer.
    const void *buf;
    // MP_ACCEPT: the new connection, a file descriptor or the number of an lwsocket.
    // MP_TO_FD: the file descriptor. Else -1.
    int32_t fd;
    // MP_ACCEPT: connections known to be in the accept queue behind this one.
    uint32_t pending;
    // MP_ACCEPT of an lwsocket: its handle, usable immediately.
    mp_handle_t connection;
    // MP_TIMER: number of expirations since the last completion of the timer.
    uint64_t expirations;
    // MP_TRUNCATED, MP_LENT.
    uint32_t flags;
    // Internal: the index of the lent buffer.
    uint32_t lent_index;
    // Internal: the generation of that buffer.
    uint32_t lent_generation;
    // Zero.
    uint32_t reserved[5];
};

// Options of a listening socket. Zero what is not needed, and set `size`.
struct mp_listen_options {
    // sizeof(struct mp_listen_options).
    size_t size;
    // Length of the accept queue (one more connection fits); 0 for 4096.
    uint32_t backlog;
    // MP_EXCLUSIVE, MP_ONLY_V6.
    uint32_t flags;
    // The cores whose connections this channel accepts, 64 in each word, or null.
    const uint64_t *cpu_mask;
    // Words in `cpu_mask`, at most 16.
    size_t cpu_mask_words;
    // Connections that may begin with the data of a SYN and not be established yet (TCP Fast
    // Open); 0 for none.
    uint32_t fast_open;
    // Unsent bytes of a connection from which on writes wait (TCP_NOTSENT_LOWAT); 0 for no limit.
    uint32_t notsent_lowat;
};

// Options of a connection. Zero what is not needed, and set `size`.
struct mp_connect_options {
    // sizeof(struct mp_connect_options).
    size_t size;
    // Nanoseconds after which connecting fails; 0 for the kernel's limit.
    uint64_t timeout_ns;
    // The local address, or null.
    const struct sockaddr *bind;
    // The size of the local address.
    socklen_t bind_size;
    // MP_GATHER, MP_RESET_ON_CLOSE, MP_FAST_OPEN.
    uint32_t flags;
    // Unsent bytes from which on writes wait (TCP_NOTSENT_LOWAT); 0 for no limit.
    uint32_t notsent_lowat;
    // Zero.
    uint32_t reserved;
};

// Options of an accept beyond those of mp_accept(). Zero what is not needed, and set `size`.
struct mp_accept_options {
    // sizeof(struct mp_accept_options).
    size_t size;
    // Number of connections; MP_ALWAYS for no limit.
    uint32_t count;
    // An enum mp_as.
    uint32_t kind;
    // The connections' cookie (lwsockets only); null otherwise.
    void *cookie;
    // If not 0, a lent read of up to this many bytes is started on each lwsocket when it is
    // accepted.
    size_t first_read;
};

// Counters of a channel since it was created.
struct mp_counters {
    // Operations submitted by the program.
    uint64_t operations;
    // Completions returned to the program.
    uint64_t completions;
    // System calls that submitted, waited or polled.
    uint64_t system_calls;
    // Requests submitted to the kernel.
    uint64_t kernel_requests;
    // Completions received from the kernel.
    uint64_t kernel_answers;
    // Connections accepted.
    uint64_t accepted;
    // Reads completed with bytes that had arrived before the read.
    uint64_t reads_at_once;
    // Receives that found no free buffer.
    uint64_t buffers_exhausted;
    // Unread bytes copied out of receive buffers to free them.
    uint64_t spilled_bytes;
    // Times that receiving paused because a handle had too many unread bytes.
    uint64_t receive_paused;
    // Times that the completion queue overflowed into the kernel's list.
    uint64_t completion_overflows;
    // Times that accepting stopped for lack of descriptors.
    uint64_t accept_exhausted;
    // Connections moved to or from another channel of the same listener.
    uint64_t connections_passed;
    // Connections closed because no channel could accept them.
    uint64_t connections_dropped;
    // Datagrams of the library's own stack that were dropped because the receive queue was full.
    // Stays 0 with the kernel back end.
    uint64_t datagrams_dropped;
    // Completions of the kernel that named no live request (stays 0).
    uint64_t stray_answers;
    // Events sent by a stack that runs on a thread of its own.
    uint64_t server_events;
    // Times that such events woke the channel.
    uint64_t server_wakeups;
    // Writes rejected because their handle had too many unsent bytes.
    uint64_t writes_refused;
};

// The state of one TCP connection of the library's own stack.
struct mp_conn_info {
    // Smoothed round-trip time in nanoseconds; 0: no sample yet.
    uint64_t srtt_ns;
    // Variation of the round-trip time in nanoseconds.
    uint64_t rttvar_ns;
    // Smallest recent round-trip time in nanoseconds; 0: no sample yet.
    uint64_t min_rtt_ns;
    // Retransmission timeout in nanoseconds.
    uint64_t rto_ns;
    // Bytes received in order.
    uint64_t bytes_received;
    // Bytes sent, retransmissions included.
    uint64_t bytes_sent;
    // State of the connection, with the numbers of <netinet/tcp.h>: TCP_ESTABLISHED is 1.
    uint32_t state;
    // MP_CONN_TIMESTAMPS, MP_CONN_SACK, MP_CONN_WINDOW_SCALE, MP_CONN_ECN, MP_CONN_SOFT_ERROR.
    uint32_t flags;
    // Largest payload of a sent segment, in bytes.
    uint32_t mss;
    // Congestion window in bytes.
    uint32_t congestion_window;
    // Slow start threshold in bytes; UINT32_MAX: none yet.
    uint32_t slow_start_threshold;
    // Send window in bytes, as offered by the peer.
    uint32_t send_window;
    // Receive window in bytes, as offered to the peer.
    uint32_t receive_window;
    // Window scale of the peer.
    uint32_t send_window_shift;
    // Window scale of this end.
    uint32_t receive_window_shift;
    // Size of the send buffer in bytes.
    uint32_t send_buffer_bytes;
    // Size of the receive buffer in bytes.
    uint32_t receive_buffer_bytes;
    // Bytes in the send queue, sent or not, that the peer has not acknowledged.
    uint32_t queued_bytes;
    // Bytes sent and not acknowledged.
    uint32_t flight_bytes;
    // Bytes sent that the peer has received out of order.
    uint32_t sacked_bytes;
    // Bytes sent that are considered lost and were not retransmitted yet.
    uint32_t lost_bytes;
    // Bytes received in order and not yet read from the stack.
    uint32_t unread_bytes;
    // Bytes received out of order.
    uint32_t out_of_order_bytes;
    // Urgent bytes not yet read.
    uint32_t urgent_bytes;
    // Segments received.
    uint32_t segments_received;
    // Segments sent.
    uint32_t segments_sent;
    // Segments retransmitted.
    uint32_t segments_retransmitted;
    // Timeouts in a row without progress.
    uint32_t timeouts;
};

// The value that is never a valid handle: what a failed call returns.
#define MP_NO_HANDLE 0

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Fills a configuration with the defaults. `size` is sizeof(struct mp_config).
int mp_config_init(struct mp_config *config, size_t size);

// Creates a channel for the calling thread. A null `config` means the defaults. Null on failure.
mp_channel_t *mp_create(const struct mp_config *config);

// Destroys a channel. Its handles are invalid, operations in progress are cancelled, lent buffers
// are invalid; registered descriptors stay open.
int mp_destroy(mp_channel_t *channel);

// Registers a file descriptor and returns its handle, or sets the cookie of an lwsocket. Bit n of
// `cpu_mask` stands for core n; 0 is no mask. MP_NO_HANDLE on failure.
mp_handle_t mp_register(mp_channel_t *channel,
                        int fd,
                        void *cookie,
                        uint64_t cpu_mask);

// Moves an established TCP connection from the kernel to the channel's own stack, in any state of
// its transfer; the handle is that of an lwsocket. `fd` is no longer connected, and the program
// closes it. On failure (MP_NO_HANDLE) nothing has changed.
mp_handle_t mp_take_over(mp_channel_t *channel,
                         int fd,
                         void *cookie);

// Shares a connection or listener of the service: returns a token, a descriptor (close-on-exec)
// that any process may pass to mp_adopt(). The channel keeps what it shares. -1 on failure.
int mp_share(mp_handle_t handle);

// Adopts the connection or listener that a token of mp_share() stands for: the channel is one more
// owner of it. The token stays the program's, and stays an owner until its last descriptor is
// closed. MP_NO_HANDLE on failure.
mp_handle_t mp_adopt(mp_channel_t *channel,
                     int token,
                     void *cookie);

// Unregisters a handle; its completions are no longer dispatched. An lwsocket is closed; a
// descriptor of the program stays open. `rest` may be null; otherwise it is filled with the
// received bytes that were not read, lent until mp_release().
int mp_unregister(mp_handle_t handle,
                  struct mp_event *rest);

// Replaces the cookie of a handle.
int mp_set_cookie(mp_handle_t handle, void *cookie);

// Replaces the cores whose connections a listening handle accepts. Bit n of word w stands for core
// 64 * w + n.
int mp_set_cpu_mask(mp_handle_t handle,
                    const uint64_t *cpu_mask,
                    size_t words);

// Creates a listening socket. `options` may be null. MP_NO_HANDLE on failure.
mp_handle_t mp_listen(mp_channel_t *channel,
                      const struct sockaddr *address,
                      socklen_t address_size,
                      const struct mp_listen_options *options,
                      void *cookie);

// Starts a connection; MP_CONNECT reports the result. `options` may be null. MP_NO_HANDLE on
// failure.
mp_handle_t mp_connect(mp_channel_t *channel,
                       const struct sockaddr *address,
                       socklen_t address_size,
                       const struct mp_connect_options *options,
                       void *cookie);

// Creates a datagram socket: AF_INET, AF_INET6 or AF_UNIX. `address` is the address to bind, or
// null. MP_NO_HANDLE on failure.
mp_handle_t mp_socket(mp_channel_t *channel,
                      int family,
                      const struct sockaddr *address,
                      socklen_t address_size,
                      void *cookie);

// Opens a disk file with the flags of open(2); MP_OPEN reports the result. MP_NO_HANDLE on
// failure.
mp_handle_t mp_open(mp_channel_t *channel,
                    const char *path,
                    int flags,
                    void *cookie);

// Starts a timer: MP_TIMER after `after_ns` nanoseconds, and then every `period_ns` if that is not
// 0. mp_unregister() cancels it. MP_NO_HANDLE on failure.
mp_handle_t mp_timer(mp_channel_t *channel,
                     uint64_t after_ns,
                     uint64_t period_ns,
                     void *cookie);

// Accepts `count` connections (MP_ALWAYS: no limit) on a listening handle, each with an event.
// `kind` is an enum mp_as: MP_AS_LWSOCKET or MP_AS_FD.
int mp_accept(mp_handle_t handle,
              uint32_t count,
              uint32_t kind);

// As mp_accept(), with a cookie and a first read for the new lwsockets, so that data right after
// the handshake is delivered without another call.
int mp_accept_with(mp_handle_t handle,
                   const struct mp_accept_options *options);

// Reads up to `size` bytes into `buf`, which must stay valid until the event. If `buf` is null,
// the event lends a buffer of the channel, until mp_release().
int mp_read(mp_handle_t handle,
            void *buf,
            size_t size);

// Reads into several parts in order. The array and its parts must stay valid until the event.
int mp_readv(mp_handle_t handle,
             const struct iovec *parts,
             int parts_count);

// Reads up to `size` bytes of a disk file from `offset` on; else as mp_read().
int mp_read_at(mp_handle_t handle, void *buf, size_t size, uint64_t offset);

// Writes all `size` bytes or fails. The bytes are copied: the program may reuse `buf` when the
// call returns.
int mp_write(mp_handle_t handle,
             const void *buf,
             size_t size);

// As mp_write(), with an event only if the write fails. The bytes are copied as well;
// mp_unsent_bytes() returns how many are still with the channel.
int mp_write_quiet(mp_handle_t handle, const void *buf, size_t size);

// Writes several parts with one event; else as mp_write().
int mp_writev(mp_handle_t handle, const struct iovec *parts, int parts_count);

// Writes all `size` bytes of a disk file at `offset`; else as mp_write().
int mp_write_at(mp_handle_t handle, const void *buf, size_t size, uint64_t offset);

// Receives a message, as mp_read(). `from` and `from_size` are as in recvfrom(2) and are filled
// when the event is dispatched; both may be null.
int mp_recvfrom(mp_handle_t handle,
                void *buf,
                size_t size,
                struct sockaddr *from,
                socklen_t *from_size);

// Sends a message to an address; else as mp_write().
int mp_sendto(mp_handle_t handle,
              const void *buf,
              size_t size,
              const struct sockaddr *to,
              socklen_t to_size);

// Writes a disk file's data to its device.
int mp_fsync(mp_handle_t handle);

// Closes a connection; the handle stays registered. `how` is an enum mp_how: MP_BOTH,
// MP_WRITING or MP_RESET.
int mp_disconnect(mp_handle_t handle, uint32_t how);

// Requests an event when a connection has ended in both directions, by close or reset.
int mp_await_end(mp_handle_t handle);

// Requests an event when the peer has acknowledged all bytes written to a connection of the
// library's own stack, and the FIN if the sending direction was closed.
int mp_await_delivery(mp_handle_t handle);

// Turns an lwsocket into a file descriptor; MP_TO_FD carries it, with the received bytes that were
// not read.
int mp_to_fd(mp_handle_t handle);

// Submits queued operations to the kernel now.
int mp_flush(mp_channel_t *channel);

// Returns 1 and the next completion, 0 if there was none within `timeout_ns` nanoseconds
// (MP_FOREVER: no limit), -1 on failure.
int mp_dispatch(mp_channel_t *channel, struct mp_event *event, int64_t timeout_ns);

// Returns up to `events_count` completions and their number, 0 if there was none in time, -1 on
// failure. Waits only for the first one.
int mp_dispatch_many(mp_channel_t *channel,
                     struct mp_event *events,
                     int events_count,
                     int64_t timeout_ns);

// Prepares the channel for a wait outside the library. Returns 1 if there may be an event to
// dispatch now; 0 if there is none before one of mp_descriptors() is readable or `*timeout_ns`
// nanoseconds have passed (MP_FOREVER: no limit); -1 on failure. Does not wait.
int mp_park(mp_channel_t *channel,
            int64_t *timeout_ns);

// The descriptors to poll for reading after mp_park() has returned 0: writes up to `fds_count` of
// them and returns their number. The channel owns them, and they do not change until mp_destroy().
int mp_descriptors(mp_channel_t *channel,
                   int *fds,
                   int fds_count);

// Returns the buffer that an event lends; the event then lends none.
int mp_release(struct mp_event *event);

// Makes mp_dispatch() of the channel return MP_WAKE. May be called by any thread and any signal
// handler.
int mp_wake(mp_channel_t *channel);

// The library's version, such as "0.1.0".
const char *mp_version(void);

// The last failed call of this thread and its cause, as text; empty if none has failed. Valid
// until the next failure in this thread.
const char *mp_last_error(void);

// The channel's driver, the reason for it, and what was tried, as text: written like snprintf(3).
ssize_t mp_report(mp_channel_t *channel,
                  char *text,
                  size_t size);

// The path of a handle and the reason for it, as text: written like snprintf(3).
ssize_t mp_explain(mp_handle_t handle, char *text, size_t size);

// The counters of the channel. `size` is sizeof(struct mp_counters).
int mp_counters(mp_channel_t *channel, struct mp_counters *counters, size_t size);

// The state of a TCP connection of the library's own stack. `size` is
// sizeof(struct mp_conn_info).
int mp_conn_info(mp_handle_t handle, struct mp_conn_info *info, size_t size);

// The number of bytes of the handle's writes that are not known to be with the kernel; -1 on
// failure.
ssize_t mp_unsent_bytes(mp_handle_t handle);

// The handle's own address, as getsockname(2).
int mp_local_address(mp_handle_t handle,
                     struct sockaddr *address,
                     socklen_t *address_size);

// The address of the handle's peer, as getpeername(2).
int mp_peer_address(mp_handle_t handle,
                    struct sockaddr *address,
                    socklen_t *address_size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MEGAPIPE_H */
