/*
 * The calls of BSD sockets and epoll under their own names, on megapipe: a program includes this
 * before any other header, or is compiled with
 *
 *     cc -include megapipe_bsd.h server.c -o server $(pkg-config --cflags --libs megapipe)
 *
 * and its calls of socket() are calls of mps_socket() of megapipe_sockets.h. Only the
 * functions get other symbols: function pointers follow, and members, methods and variables of the
 * same names are not affected. Objects that were compiled without this header still call the C
 * library.
 *
 * pipe(), eventfd() and the like stay the kernel's: epoll sets and poll() accept them together with
 * sockets, a signal handler may write to them, and a child inherits them.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef MEGAPIPE_BSD_H
#define MEGAPIPE_BSD_H

/*
 * With _FORTIFY_SOURCE, read(), recv(), recvfrom(), poll() and ppoll() are inline wrappers in
 * the C library's headers, which would bypass these definitions.
 */
#undef _FORTIFY_SOURCE

#include <megapipe_sockets.h>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#if defined(__USE_FORTIFY_LEVEL) && __USE_FORTIFY_LEVEL > 0
#error "include megapipe_bsd.h before any other header, or compile with -U_FORTIFY_SOURCE"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MPS_INSTEAD(name) extern __typeof__(name) name __asm__("mps_" #name)

MPS_INSTEAD(socket);
MPS_INSTEAD(bind);
MPS_INSTEAD(listen);
MPS_INSTEAD(accept);
MPS_INSTEAD(connect);
MPS_INSTEAD(shutdown);
MPS_INSTEAD(close);
MPS_INSTEAD(getsockname);
MPS_INSTEAD(getpeername);

MPS_INSTEAD(read);
MPS_INSTEAD(readv);
MPS_INSTEAD(recv);
MPS_INSTEAD(recvfrom);
MPS_INSTEAD(recvmsg);
MPS_INSTEAD(write);
MPS_INSTEAD(writev);
MPS_INSTEAD(send);
MPS_INSTEAD(sendto);
MPS_INSTEAD(sendmsg);

MPS_INSTEAD(getsockopt);
MPS_INSTEAD(setsockopt);
MPS_INSTEAD(ioctl);
MPS_INSTEAD(dup);
MPS_INSTEAD(dup2);

MPS_INSTEAD(epoll_create);
MPS_INSTEAD(epoll_create1);
MPS_INSTEAD(epoll_ctl);
MPS_INSTEAD(epoll_wait);
MPS_INSTEAD(epoll_pwait);
MPS_INSTEAD(poll);
MPS_INSTEAD(select);
#if defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 200112L
MPS_INSTEAD(pselect);
#endif

#ifdef _GNU_SOURCE
MPS_INSTEAD(accept4);
MPS_INSTEAD(recvmmsg);
MPS_INSTEAD(sendmmsg);
MPS_INSTEAD(dup3);
MPS_INSTEAD(ppoll);
#endif

/* With _FILE_OFFSET_BITS=64 the C library has already given this function another symbol. */
#ifdef __USE_FILE_OFFSET64
#define fcntl(...) mps_fcntl(__VA_ARGS__)
#else
MPS_INSTEAD(fcntl);
#endif

#undef MPS_INSTEAD

/*
 * Without MPS_SELECT, descriptors do not fit into an fd_set. FD_SET() must not write past the set:
 * the C library aborts the process, as with _FORTIFY_SOURCE.
 */
#ifdef __GLIBC__
extern long int __fdelt_chk(long int);
#undef FD_SET
#undef FD_CLR
#undef FD_ISSET
#define MPS_FD_WORD(fd, set) (__FDS_BITS(set)[__fdelt_chk(fd)])
#define FD_SET(fd, set) ((void)(MPS_FD_WORD(fd, set) |= __FD_MASK(fd)))
#define FD_CLR(fd, set) ((void)(MPS_FD_WORD(fd, set) &= ~__FD_MASK(fd)))
#define FD_ISSET(fd, set) ((MPS_FD_WORD(fd, set) & __FD_MASK(fd)) != 0)
#endif

#ifdef __cplusplus
}
#endif

#endif
