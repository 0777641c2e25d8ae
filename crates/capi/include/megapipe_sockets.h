/*
 * BSD sockets and epoll on megapipe: on its own TCP/IP stack, or on Linux's.
 *
 * Each call does what the call of section 2 without its prefix does, with the same arguments,
 * results and errno. Descriptors of AF_INET and AF_INET6 sockets, and of sets, belong to the
 * library, and have numbers from 2^30 on; any other belongs to the process, and is passed to the C
 * library. So files, pipes, timers and sockets can be mixed, in epoll sets and poll() as well. See
 * megapipe_sockets(7); megapipe_bsd.h defines these calls under their names without the prefix.
 *
 *     cc server.c -o server $(pkg-config --cflags --libs megapipe)
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef MEGAPIPE_SOCKETS_H
#define MEGAPIPE_SOCKETS_H

#include <megapipe.h>

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For mps_init(): all threads of the process share all sockets, as descriptors are shared. */
#define MPS_SHARED 1u
/* Each thread has its own sockets, without a lock, and its own shard of the stack. */
#define MPS_PER_THREAD 2u
/* As MPS_SHARED, with numbers from 512 to 1023, which fit into an fd_set. */
#define MPS_SELECT 3u

/*
 * Sets the options of sockets, before the first one is created. A null config means the defaults,
 * and flags of 0 the value of MEGAPIPE_SOCKETS: shared, thread or select; shared if it is unset.
 */
int mps_init(const struct mp_config *config, unsigned flags);
/* Closes the calling thread's sockets, or all that threads share. */
int mps_destroy(void);

int mps_socket(int domain, int type, int protocol);
int mps_bind(int fd, const struct sockaddr *addr, socklen_t addrlen);
int mps_listen(int fd, int backlog);
int mps_accept(int fd, struct sockaddr *addr, socklen_t *addrlen);
int mps_accept4(int fd, struct sockaddr *addr, socklen_t *addrlen, int flags);
int mps_connect(int fd, const struct sockaddr *addr, socklen_t addrlen);
int mps_shutdown(int fd, int how);
int mps_close(int fd);
int mps_getsockname(int fd, struct sockaddr *addr, socklen_t *addrlen);
int mps_getpeername(int fd, struct sockaddr *addr, socklen_t *addrlen);

ssize_t mps_read(int fd, void *buf, size_t count);
ssize_t mps_readv(int fd, const struct iovec *iov, int iovcnt);
ssize_t mps_recv(int fd, void *buf, size_t len, int flags);
ssize_t mps_recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *addr,
                     socklen_t *addrlen);
ssize_t mps_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t mps_write(int fd, const void *buf, size_t count);
ssize_t mps_writev(int fd, const struct iovec *iov, int iovcnt);
ssize_t mps_send(int fd, const void *buf, size_t len, int flags);
ssize_t mps_sendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *addr,
                   socklen_t addrlen);
ssize_t mps_sendmsg(int fd, const struct msghdr *msg, int flags);
#ifdef _GNU_SOURCE
int mps_recvmmsg(int fd, struct mmsghdr *msgvec, unsigned vlen, int flags,
                 struct timespec *timeout);
int mps_sendmmsg(int fd, struct mmsghdr *msgvec, unsigned vlen, int flags);
#endif

int mps_getsockopt(int fd, int level, int optname, void *optval, socklen_t *optlen);
int mps_setsockopt(int fd, int level, int optname, const void *optval, socklen_t optlen);
int mps_ioctl(int fd, unsigned long request, ...);
int mps_fcntl(int fd, int command, ...);
int mps_dup(int fd);
int mps_dup2(int oldfd, int newfd);
int mps_dup3(int oldfd, int newfd, int flags);

int mps_epoll_create(int size);
int mps_epoll_create1(int flags);
int mps_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int mps_epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);
int mps_epoll_pwait(int epfd, struct epoll_event *events, int maxevents, int timeout,
                    const sigset_t *sigmask);
int mps_poll(struct pollfd *fds, nfds_t nfds, int timeout);
int mps_ppoll(struct pollfd *fds, nfds_t nfds, const struct timespec *timeout,
              const sigset_t *sigmask);
int mps_select(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
               struct timeval *timeout);
int mps_pselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
                const struct timespec *timeout, const sigset_t *sigmask);

#ifdef __cplusplus
}
#endif

#endif
