/*
 * mTCP's API on megapipe: sockets of a context, which belongs to one thread and one core.
 *
 * The calls, records and values are those of programs written for mTCP. mtcp(7) describes each; a
 * call that fails sets errno and returns -1 (or NULL), and mp_last_error() of megapipe.h returns
 * the cause as text.
 *
 *     cc server.c -o server $(pkg-config --cflags --libs megapipe)
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef MTCP_API_H
#define MTCP_API_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifndef UNUSED
#define UNUSED(x) ((void)(x))
#endif

#ifndef INPORT_ANY
#define INPORT_ANY ((uint16_t)0)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The kind of a descriptor. */
enum socket_type {
    MTCP_SOCK_UNUSED = 0,
    MTCP_SOCK_STREAM = 1,
    MTCP_SOCK_PROXY = 2,
    MTCP_SOCK_LISTENER = 3,
    MTCP_SOCK_EPOLL = 4,
    MTCP_SOCK_PIPE = 5,
};

/* Values of the configuration. In mtcp_setconf() a 0 leaves a value unchanged. */
struct mtcp_conf {
    /* Contexts, one for each core. */
    int num_cores;
    /* Connections of a context. */
    int max_concurrency;
    /* Receive buffers of a context. */
    int max_num_buffers;
    /* Bytes of a connection's receive buffer and of its send buffer. */
    int rcvbuf_size;
    int sndbuf_size;
    /* Seconds in TIME-WAIT. */
    int tcp_timewait;
    /* Seconds until a silent peer's connection is dropped; -1: never. */
    int tcp_timeout;
};

/* A context: the sockets of one thread. */
struct mtcp_context {
    /* The core that it was created for. */
    int cpu;
};
typedef struct mtcp_context *mctx_t;

/* The process. */
int mtcp_init(const char *config_file);
void mtcp_destroy(void);
int mtcp_getconf(struct mtcp_conf *conf);
int mtcp_setconf(const struct mtcp_conf *conf);
int mtcp_core_affinitize(int cpu);

/* Contexts. */
mctx_t mtcp_create_context(int cpu);
void mtcp_destroy_context(mctx_t mctx);

/* A registered signal interrupts waits of all contexts with EINTR. */
typedef void (*mtcp_sighandler_t)(int);
mtcp_sighandler_t mtcp_register_signal(int signum, mtcp_sighandler_t handler);

/* Descriptors, as the calls of the same names in section 2. */
int mtcp_pipe(mctx_t mctx, int pipeid[2]);
int mtcp_getsockopt(mctx_t mctx, int sockid, int level, int optname, void *optval,
                    socklen_t *optlen);
int mtcp_setsockopt(mctx_t mctx, int sockid, int level, int optname, const void *optval,
                    socklen_t optlen);
int mtcp_setsock_nonblock(mctx_t mctx, int sockid);
int mtcp_socket_ioctl(mctx_t mctx, int sockid, int request, void *argp);
int mtcp_socket(mctx_t mctx, int domain, int type, int protocol);
int mtcp_bind(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);
int mtcp_listen(mctx_t mctx, int sockid, int backlog);
int mtcp_accept(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

/*
 * Connections to daddr:dport use num_addr source addresses in turn, from saddr_base on.
 * Addresses and port are in network order.
 */
int mtcp_init_rss(mctx_t mctx, in_addr_t saddr_base, int num_addr, in_addr_t daddr,
                  in_addr_t dport);

int mtcp_connect(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);
int mtcp_close(mctx_t mctx, int sockid);
int mtcp_shutdown(mctx_t mctx, int sockid, int how);
/* Closes with a reset. */
int mtcp_abort(mctx_t mctx, int sockid);
int mtcp_getsockname(mctx_t mctx, int sock, struct sockaddr *addr, socklen_t *addrlen);
int mtcp_getpeername(mctx_t mctx, int sock, struct sockaddr *addr, socklen_t *addrlen);
ssize_t mtcp_read(mctx_t mctx, int sockid, char *buf, size_t len);
ssize_t mtcp_recv(mctx_t mctx, int sockid, char *buf, size_t len, int flags);
int mtcp_readv(mctx_t mctx, int sockid, const struct iovec *iov, int numIOV);
ssize_t mtcp_write(mctx_t mctx, int sockid, const char *buf, size_t len);
int mtcp_writev(mctx_t mctx, int sockid, const struct iovec *iov, int numIOV);

#ifdef __cplusplus
}
#endif

#endif /* MTCP_API_H */
