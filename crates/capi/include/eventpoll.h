/*
 * The name of an internal header of mTCP, which some programs include for mTCP's epoll, such as
 * mTCP's port of lighttpd. It declares what mtcp_epoll.h declares, without the internals.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef MEGAPIPE_EVENTPOLL_H
#define MEGAPIPE_EVENTPOLL_H

#include "mtcp_epoll.h"

#endif /* MEGAPIPE_EVENTPOLL_H */
