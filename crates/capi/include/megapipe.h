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

// Bit of `mp_event.flags`: the message was longer than asked for and the rest is lost.
#define MP_TRUNCATED 1

// Bit of `mp_event.flags`: `buf` is lent and must be given back with mp_release().
#define MP_LENT 2

// Bit of `mp_config.flags`: accepted lwsockets are backed by ordinary descriptors.
#define MP_NO_LWSOCKETS 1

// Bit of `mp_config.flags`: listeners share one accept queue instead of one per channel.
#define MP_NO_PARTITION 2

// Bit of `mp_listen_options.flags`: nobody else may listen on the address.
#define MP_EXCLUSIVE 1

// Bit of `mp_listen_options.flags`: an IPv6 socket takes IPv6 only.
#define MP_ONLY_V6 2

// Bit of `mp_connect_options.flags`: let the kernel gather small segments (no TCP_NODELAY).
#define MP_GATHER 1

// Bit of `mp_connect_options.flags`: mp_unregister() resets the connection.
#define MP_RESET_ON_CLOSE 2

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

// What a completion answers.
enum mp_cmd {
    // mp_accept(): a connection arrived.
    MP_ACCEPT = 1,
    // mp_connect(): the connection is established, or is not going to be.
    MP_CONNECT = 2,
    // mp_open(): the file is open.
    MP_OPEN = 3,
    // mp_read(), mp_readv(), mp_read_at(): bytes arrived; none means end of file.
    MP_READ = 4,
    // mp_write(), mp_writev(), mp_write_at(): all bytes were written. mp_write_quiet(): only that
    // they were not.
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
    // What mp_unregister() left; never dispatched.
    MP_UNREGISTER = 13,
    // mp_await_end(): the connection has ended in both directions; `error` is why, 0 in order.
    MP_AWAIT_END = 14,
    // mp_await_delivery(): the peer has acknowledged all bytes that were written.
    MP_AWAIT_DELIVERY = 15,
};

// Which kernel interface carries a channel: all of it on the kernel's back end, and what is
// neither TCP nor UDP on the other.
enum mp_driver {
    // io_uring if a trial of it works, else epoll. mp_report() says which and why.
    MP_DRIVER_AUTO = 0,
    // io_uring, or mp_create() fails.
    MP_DRIVER_URING = 1,
    // epoll.
    MP_DRIVER_EPOLL = 2,
};

// Who does TCP and UDP for a channel.
enum mp_backend {
    // What MEGAPIPE_BACKEND in the environment says, `kernel` or `local`; without it the kernel.
    MP_BACKEND_DEFAULT = 0,
    // The kernel.
    MP_BACKEND_KERNEL = 1,
    // The library's own TCP/IP stack, on a link.
    MP_BACKEND_LOCAL = 2,
};

// Where the library's own TCP/IP stack runs.
enum mp_placement {
    // With MP_BACKEND_DEFAULT what MEGAPIPE_PLACEMENT in the environment says, `inline`, `thread`
    // or `core`; else inline.
    MP_PLACEMENT_DEFAULT = 0,
    // Inside the channel's calls, on the channel's thread.
    MP_PLACEMENT_INLINE = 1,
    // On a thread of the library's, on the same core as the channel's thread.
    MP_PLACEMENT_THREAD = 2,
    // On a thread of the library's, on a core of its own.
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
    // The whole connection, at once, with a reset.
    MP_RESET = 2,
};

// What is behind `mp_channel_t *`; its inside is the library's.
struct mp_channel;

// What a program may choose about a channel. Let mp_config_init() fill it, then change fields.
struct mp_config {
    // sizeof(struct mp_config), set by mp_config_init().
    size_t size;
    // An enum mp_driver.
    uint32_t driver;
    // Operations gathered before they are handed to the kernel; 1 turns batching off.
    uint32_t batch;
    // Entries of the submission queue.
    uint32_t submission_entries;
    // Entries of the completion queue.
    uint32_t completion_entries;
    // lwsockets that may be open at once.
    uint32_t max_lwsockets;
    // Bytes of one receive buffer, so of one lent read at most.
    uint32_t buffer_len;
    // Receive buffers of the channel.
    uint32_t buffer_count;
    // Pin the calling thread to this core; -1 leaves it where it is.
    int32_t core;
    // MP_NO_LWSOCKETS, MP_NO_PARTITION.
    uint32_t flags;
    // Zero.
    uint32_t reserved;
    // An enum mp_backend.
    uint32_t backend;
    // Local: the largest IP packet in bytes; 0 for the link's.
    uint32_t mtu;
    // Local: the link, such as "tap:tap0" or "xdp:eth0". Null leaves it to the environment.
    const char *link;
    // Local: the stack's addresses, "10.0.0.2/24,fd00::2/64"; null or empty for those of the
    // interface, where the link shares them.
    const char *addresses;
    // Local: next hops for what is not on the link, at most one of each family, separated by a
    // comma. May be null.
    const char *gateways;
    // Local: microseconds that the stack polls its link after the last frame before it sleeps; 0
    // for 50.
    uint32_t spin_us;
    // Local: channels of the process that will share the link; 0 for one on each of its queues.
    uint32_t channels;
    // Local: an enum mp_placement.
    uint32_t placement;
    // MP_PLACEMENT_CORE: the core that the stack runs on; -1 for the next one that the process
    // may use. Else -1 or 0.
    int32_t server_core;
};

// A channel. One per thread: only the thread that made it may use it.
typedef struct mp_channel mp_channel_t;

// Names one socket, file, pipe or timer in its channel. 0 is nobody's handle.
typedef uint64_t mp_handle_t;

// One completion.
struct mp_event {
    // What it answers: an enum mp_cmd.
    uint32_t cmd;
    // 0, or the errno value that says why the operation failed.
    int32_t error;
    // Whose operation it was. MP_NO_HANDLE for MP_WAKE.
    mp_handle_t handle;
    // The handle's cookie.
    void *cookie;
    // Bytes read or written.
    size_t size;
    // The bytes, where they were lent (MP_LENT); else where the program asked for them.
    const void *buf;
    // MP_ACCEPT: the new connection, a file descriptor or the number of an lwsocket.
    // MP_TO_FD: the file descriptor. Else -1.
    int32_t fd;
    // MP_ACCEPT: connections known to wait in the accept queue behind this one.
    uint32_t pending;
    // MP_ACCEPT of an lwsocket: its handle, usable at once.
    mp_handle_t connection;
    // MP_TIMER: how often the timer expired since its last completion.
    uint64_t expirations;
    // MP_TRUNCATED, MP_LENT.
    uint32_t flags;
    // Of the library: which lent buffer.
    uint32_t lent_index;
    // Of the library: which use of that buffer.
    uint32_t lent_generation;
    // Zero.
    uint32_t reserved[5];
};

// More about a listening socket. Zero what is not needed, and set `size`.
struct mp_listen_options {
    // sizeof(struct mp_listen_options).
    size_t size;
    // Connections that may wait in the accept queue, where one more does; 0 for 4096.
    uint32_t backlog;
    // MP_EXCLUSIVE, MP_ONLY_V6.
    uint32_t flags;
    // The cores whose connections this channel takes, 64 in each word, or null.
    const uint64_t *cpu_mask;
    // Words in `cpu_mask`, at most 16.
    size_t cpu_mask_words;
};

// More about a connection. Zero what is not needed, and set `size`.
struct mp_connect_options {
    // sizeof(struct mp_connect_options).
    size_t size;
    // Give up after so many nanoseconds; 0 leaves it to the kernel.
    uint64_t timeout_ns;
    // The local address, or null.
    const struct sockaddr *bind;
    // The size of the local address.
    socklen_t bind_size;
    // MP_GATHER, MP_RESET_ON_CLOSE.
    uint32_t flags;
};

// More about an accept than mp_accept() takes. Zero what is not needed, and set `size`.
struct mp_accept_options {
    // sizeof(struct mp_accept_options).
    size_t size;
    // How many connections; MP_ALWAYS for all that come.
    uint32_t count;
    // An enum mp_as.
    uint32_t kind;
    // The connections' cookie (lwsockets only); they have a null cookie otherwise.
    void *cookie;
    // If not 0, a lent read of up to so many bytes is posted on each lwsocket at once.
    size_t first_read;
};

// What a channel counted since it was made.
struct mp_counters {
    // Operations taken from the program.
    uint64_t operations;
    // Completions handed to the program.
    uint64_t completions;
    // System calls that submitted, waited or polled.
    uint64_t system_calls;
    // Requests handed to the kernel.
    uint64_t kernel_requests;
    // Answers taken from the kernel.
    uint64_t kernel_answers;
    // Connections accepted.
    uint64_t accepted;
    // Reads answered from bytes that had arrived before the read.
    uint64_t reads_at_once;
    // Times a receive found no free buffer.
    uint64_t buffers_exhausted;
    // Unread bytes moved out of receive buffers to make them free.
    uint64_t spilled_bytes;
    // Times receiving paused because a handle had too much unread.
    uint64_t receive_paused;
    // Times the completion queue overflowed into the kernel's list.
    uint64_t completion_overflows;
    // Times accepting stopped for want of descriptors.
    uint64_t accept_exhausted;
    // Connections handed to or taken from a sibling channel of the same listener.
    uint64_t connections_passed;
    // Connections closed because nobody could take them.
    uint64_t connections_dropped;
    // Datagrams of the library's own stack that came while too many waited to be read. Stays 0 on
    // the kernel's back end.
    uint64_t datagrams_dropped;
    // Answers of the kernel that named no live request (stays 0).
    uint64_t stray_answers;
    // Events that a stack on a thread of its own has told.
    uint64_t server_events;
    // Times that they woke the channel.
    uint64_t server_wakeups;
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
    // Send window in bytes: what the peer has offered.
    uint32_t send_window;
    // Receive window in bytes: what the peer has been offered.
    uint32_t receive_window;
    // Shift of the peer's window.
    uint32_t send_window_shift;
    // Shift of our window.
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
    // Bytes received in order that are still with the stack.
    uint32_t unread_bytes;
    // Bytes received out of order.
    uint32_t out_of_order_bytes;
    // Urgent bytes that are still to be read.
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

// The value that is nobody's handle: what a failed call returns.
#define MP_NO_HANDLE 0

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Fills a configuration with the defaults. `size` is sizeof(struct mp_config).
int mp_config_init(struct mp_config *config, size_t size);

// Makes a channel for the calling thread. A null `config` means the defaults. Null on failure.
mp_channel_t *mp_create(const struct mp_config *config);

// Ends a channel. Its handles are gone, operations under way are cancelled, lent buffers are
// invalid; descriptors that were registered stay open.
int mp_destroy(mp_channel_t *channel);

// Makes a handle in the channel for a file descriptor, or gives an lwsocket of the channel its
// cookie. Bit n of `cpu_mask` stands for core n; 0 is no mask. MP_NO_HANDLE on failure.
mp_handle_t mp_register(mp_channel_t *channel,
                        int fd,
                        void *cookie,
                        uint64_t cpu_mask);

// Takes an established TCP connection of the kernel's over into the channel's own stack, in the
// middle of whatever it does; the handle is an lwsocket's. `fd` is no connection any more then,
// and the program's to close. MP_NO_HANDLE on failure: nothing has changed.
mp_handle_t mp_take_over(mp_channel_t *channel,
                         int fd,
                         void *cookie);

// Takes a handle out of its channel; none of its completions is seen any more. An lwsocket is
// closed; a descriptor of the program stays open. `rest` may be null; else it tells the bytes
// that had arrived and were not read, lent until mp_release().
int mp_unregister(mp_handle_t handle,
                  struct mp_event *rest);

// Replaces the cookie of a handle.
int mp_set_cookie(mp_handle_t handle, void *cookie);

// Replaces the cores whose connections a listening handle takes. Bit n of word w stands for core
// 64 * w + n.
int mp_set_cpu_mask(mp_handle_t handle,
                    const uint64_t *cpu_mask,
                    size_t words);

// Makes a listening socket. `options` may be null. MP_NO_HANDLE on failure.
mp_handle_t mp_listen(mp_channel_t *channel,
                      const struct sockaddr *address,
                      socklen_t address_size,
                      const struct mp_listen_options *options,
                      void *cookie);

// Starts a connection; MP_CONNECT tells how it went. `options` may be null. MP_NO_HANDLE on
// failure.
mp_handle_t mp_connect(mp_channel_t *channel,
                       const struct sockaddr *address,
                       socklen_t address_size,
                       const struct mp_connect_options *options,
                       void *cookie);

// Makes a datagram socket: AF_INET, AF_INET6 or AF_UNIX. `address` is where it is bound, or
// null. MP_NO_HANDLE on failure.
mp_handle_t mp_socket(mp_channel_t *channel,
                      int family,
                      const struct sockaddr *address,
                      socklen_t address_size,
                      void *cookie);

// Opens a disk file with the flags of open(2); MP_OPEN tells how it went. MP_NO_HANDLE on
// failure.
mp_handle_t mp_open(mp_channel_t *channel, const char *path, int flags, void *cookie);

// Sets a timer: MP_TIMER after so many nanoseconds, and then in each period if that is not 0.
// mp_unregister() cancels it. MP_NO_HANDLE on failure.
mp_handle_t mp_timer(mp_channel_t *channel,
                     uint64_t after_ns,
                     uint64_t period_ns,
                     void *cookie);

// Asks a listening handle for `count` connections (MP_ALWAYS: all that come), each an event of
// its own. `kind` is an enum mp_as: MP_AS_LWSOCKET or MP_AS_FD.
int mp_accept(mp_handle_t handle,
              uint32_t count,
              uint32_t kind);

// The same with a cookie and a first read for the new lwsockets, so that data which follows the
// handshake is delivered without another call.
int mp_accept_with(mp_handle_t handle,
                   const struct mp_accept_options *options);

// Reads up to `size` bytes into `buf`, which must stay valid until the event. A null `buf` lends
// the channel's own buffer by the event, until mp_release().
int mp_read(mp_handle_t handle,
            void *buf,
            size_t size);

// Reads into several parts, one after the other. The array and its parts must stay valid until
// the event.
int mp_readv(mp_handle_t handle,
             const struct iovec *parts,
             int parts_count);

// Reads up to `size` bytes of a disk file from `offset` on; else as mp_read().
int mp_read_at(mp_handle_t handle, void *buf, size_t size, uint64_t offset);

// Writes all `size` bytes or fails. The bytes are copied: `buf` is the program's again when the
// call returns.
int mp_write(mp_handle_t handle,
             const void *buf,
             size_t size);

// Writes as mp_write() does, but gives an event only if the write fails. The bytes are copied all
// the same; mp_unsent_bytes() tells how many are still with the channel.
int mp_write_quiet(mp_handle_t handle,
                   const void *buf,
                   size_t size);

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

// Brings a disk file's data to its device.
int mp_fsync(mp_handle_t handle);

// Closes a connection; the handle stays registered. `how` is an enum mp_how: MP_BOTH,
// MP_WRITING or MP_RESET.
int mp_disconnect(mp_handle_t handle, uint32_t how);

// Asks for an event when a connection has ended in both directions, in order or by a reset.
int mp_await_end(mp_handle_t handle);

// Asks for an event when the peer has acknowledged all bytes that were written to a connection of
// the library's own stack, and its end if the sending direction was closed.
int mp_await_delivery(mp_handle_t handle);

// Turns an lwsocket into a file descriptor; MP_TO_FD carries it, and the bytes that had arrived
// and were not read.
int mp_to_fd(mp_handle_t handle);

// Hands what is queued to the kernel now.
int mp_flush(mp_channel_t *channel);

// The next completion: 1 and the event, 0 if there was none in `timeout_ns` nanoseconds
// (MP_FOREVER: wait until there is one), -1 on failure.
int mp_dispatch(mp_channel_t *channel, struct mp_event *event, int64_t timeout_ns);

// Up to `events_count` completions: how many, 0 if there was none in time, -1 on failure. Waits
// for the first one only.
int mp_dispatch_many(mp_channel_t *channel,
                     struct mp_event *events,
                     int events_count,
                     int64_t timeout_ns);

// Prepares the channel for a wait outside of the library: 1 if there may be an event to dispatch
// now; 0 if there is none before one of mp_descriptors() is readable or `*timeout_ns` nanoseconds
// have passed (MP_FOREVER: no limit); -1 on failure. Does not wait.
int mp_park(mp_channel_t *channel,
            int64_t *timeout_ns);

// The descriptors to poll for reading after mp_park() has returned 0: writes up to `fds_count` of
// them and returns how many there are. They stay the channel's, and the same until mp_destroy().
int mp_descriptors(mp_channel_t *channel,
                   int *fds,
                   int fds_count);

// Gives the buffer back that an event lends; the event then lends none.
int mp_release(struct mp_event *event);

// Lets mp_dispatch() of the channel return with MP_WAKE. Any thread and any signal handler may
// call this.
int mp_wake(mp_channel_t *channel);

// The library's version, such as "0.1.0".
const char *mp_version(void);

// What this thread's last failed call was and why, in words; empty if none has failed. Valid
// until the next failure in this thread.
const char *mp_last_error(void);

// Which driver serves the channel, why, and what was tried, as text: written like snprintf(3).
ssize_t mp_report(mp_channel_t *channel,
                  char *text,
                  size_t size);

// Which path a handle takes and why, as text: written like snprintf(3).
ssize_t mp_explain(mp_handle_t handle, char *text, size_t size);

// What the channel counted. `size` is sizeof(struct mp_counters).
int mp_counters(mp_channel_t *channel, struct mp_counters *counters, size_t size);

// The state of a TCP connection of the library's own stack. `size` is
// sizeof(struct mp_conn_info).
int mp_conn_info(mp_handle_t handle, struct mp_conn_info *info, size_t size);

// How many bytes of the handle's writes are not known to be with the kernel; -1 on failure.
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
