/*
 * A server that passes its connections to other processes in messages (SCM_RIGHTS), and its client.
 *
 * `serve ADDRESS PORT`: passes a connection in each of the ways below. The process that receives it
 * has no other socket. `ask ADDRESS PORT`: a connection for each way; sends text, and expects it
 * back up to the end. Its exit status is 2 while nothing listens.
 */
#define _GNU_SOURCE
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "serving.h"

enum { TIME_MAX = 100, FDS_MAX = 4 };

enum { PLAIN, MIXED, PEEK, CUT, UNRECEIVED, ITSELF, TWO_MESSAGES, TWO_OWNERS,
       FORGED, KILLED, WAYS };

static const char *const names[WAYS] = {
    "plain", "mixed", "peek", "cut", "unreceived", "itself", "two messages", "two owners", "forged",
    "killed"};

static const char text[] = "early text, and text that the receiver reads\n";

union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
};

/* A message with these descriptors. */
static void fill(struct msghdr *message, struct iovec *part, union control *control, const int *fds,
                 int count) {
    memset(message, 0, sizeof *message);
    memset(control, 0, sizeof *control);
    part->iov_base = "m";
    part->iov_len = 1;
    message->msg_iov = part;
    message->msg_iovlen = 1;
    if (count == 0)
        return;
    message->msg_control = control;
    message->msg_controllen = CMSG_SPACE(count * sizeof(int));
    control->header.cmsg_level = SOL_SOCKET;
    control->header.cmsg_type = SCM_RIGHTS;
    control->header.cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(&control->header), fds, count * sizeof(int));
}

static void pass(int over, const int *fds, int count) {
    struct msghdr message;
    struct iovec part;
    union control control;
    fill(&message, &part, &control, fds, count);
    check(sendmsg(over, &message, 0) == 1, "sendmsg");
    check(count == 0 || !memcmp(CMSG_DATA(&control.header), fds, count * sizeof(int)),
          "the message is as it was");
}

/* Receives descriptors, for which there is so much room. Returns their count. */
static int receive(int over, int *fds, int room, int flags, int *flags_after) {
    char byte;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    union control control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control};
    message.msg_controllen = CMSG_LEN(room * sizeof(int));
    check(recvmsg(over, &message, flags) == 1, "recvmsg");
    *flags_after = message.msg_flags;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL)
        return 0;
    check(header->cmsg_type == SCM_RIGHTS, "the descriptors");
    int count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(header), count * sizeof(int));
    return count;
}

static void receiver(int way, int over) {
    int fds[FDS_MAX], after, other[FDS_MAX];
    char part[5];
    switch (way) {
    case PEEK:
        check(receive(over, other, 1, MSG_PEEK, &after) == 1, "a look");
        check(receive(over, fds, 1, 0, &after) == 1, "the descriptor");
        write_all(other[0], "looked\n", 7);
        check(close(other[0]) == 0, "close");
        break;
    case MIXED:
        check(receive(over, fds, 3, 0, &after) == 3, "three descriptors");
        write_all(fds[0], "p", 1);
        echo(fds[1], fds[2]);
        return;
    case CUT:
        check(receive(over, fds, 1, 0, &after) == 1, "one descriptor");
        check(after & MSG_CTRUNC, "MSG_CTRUNC");
        write_all(fds[0], "p", 1);
        return;
    case UNRECEIVED: {
        struct pollfd message = {.fd = over, .events = POLLIN};
        check(poll(&message, 1, 1000 * TIME_MAX) == 1, "poll");
        return;
    }
    case TWO_MESSAGES:
        check(receive(over, fds, 1, 0, &after) == 0, "none");
        check(receive(over, fds, 1, MSG_CMSG_CLOEXEC, &after) == 1, "the descriptor");
        break;
    case TWO_OWNERS:
        check(receive(over, fds, 1, 0, &after) == 1, "the descriptor");
        write_all(fds[0], "from the receiver\n", 18);
        /* The other bytes are the sender's. */
        check(recv(fds[0], part, sizeof part, MSG_WAITALL) == sizeof part, "a part");
        write_all(fds[0], part, sizeof part);
        return;
    case FORGED:
        check(receive(over, fds, 1, 0, &after) == 1, "the descriptor");
        write_all(fds[0], "p", 1);
        check(receive(over, fds, 1, 0, &after) == 1, "the descriptor");
        break;
    case KILLED:
        check(receive(over, fds, 1, 0, &after) == 1, "the descriptor");
        write_all(fds[0], "mine\n", 5);
        for (int left = 1; left > 0; usleep(1000))
            check(ioctl(fds[0], SIOCOUTQ, &left) == 0, "SIOCOUTQ");
        raise(SIGKILL);
        return;
    default:
        check(receive(over, fds, 1, 0, &after) == 1, "the descriptor");
    }
    int copy = dup(fds[0]);
    check(copy >= 0 && close(fds[0]) == 0, "dup");
    echo(copy, copy);
}

/* A socket that looks like a token of the service, but to the service itself. */
static void forge(int ends[2]) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    memcpy(name.sun_path + 1, "megapipe-token-0", 16);
    check(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "socketpair");
    check(bind(ends[0], (struct sockaddr *)&name, offsetof(struct sockaddr_un, sun_path) + 17) == 0,
          "bind");
}

static void expect_byte(int fd) {
    char byte;
    check(read(fd, &byte, 1) == 1 && byte == 'p', "a byte of the receiver");
}

static void serve_one(int way, int listener) {
    int pair[2], ends[2], status, fds[FDS_MAX], after;
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        alarm(TIME_MAX);
        close(listener);
        close(pair[0]);
        if (way != ITSELF)
            receiver(way, pair[1]);
        /* All of it is closed by the end of the process. */
        _exit(0);
    }
    if (way != ITSELF)
        close(pair[1]);
    int connection = accept(listener, NULL, NULL);
    check(connection >= 0, "accept");
    char early[6];
    if (way != CUT && way != UNRECEIVED)
        check(recv(connection, early, sizeof early, MSG_WAITALL) == sizeof early, "early text");
    switch (way) {
    case MIXED:
    case CUT:
        check(pipe(ends) == 0, "pipe");
        fds[0] = ends[1];
        fds[1] = fds[2] = connection;
        pass(pair[0], fds, way == MIXED ? 3 : 2);
        expect_byte(ends[0]);
        close(ends[0]);
        close(ends[1]);
        break;
    case ITSELF:
        pass(pair[0], &connection, 1);
        check(receive(pair[1], fds, 1, 0, &after) == 1, "the descriptor");
        check(fds[0] != connection, "another number");
        close(pair[1]);
        echo(connection, fds[0]);
        close(fds[0]);
        break;
    case TWO_MESSAGES: {
        struct mmsghdr messages[2];
        struct iovec parts[2];
        union control none, one;
        fill(&messages[0].msg_hdr, &parts[0], &none, NULL, 0);
        fill(&messages[1].msg_hdr, &parts[1], &one, &connection, 1);
        check(sendmmsg(pair[0], messages, 2, 0) == 2, "sendmmsg");
        check(messages[0].msg_len == 1 && messages[1].msg_len == 1, "their sizes");
        break;
    }
    case FORGED:
        forge(ends);
        pass(pair[0], &ends[1], 1);
        expect_byte(ends[0]);
        close(ends[0]);
        close(ends[1]);
        pass(pair[0], &connection, 1);
        break;
    case TWO_OWNERS:
    case KILLED:
        pass(pair[0], &connection, 1);
        check(waitpid(child, &status, 0) == child, "waitpid");
        check(way == KILLED ? WIFSIGNALED(status) : status == 0, "the receiver's end");
        child = 0;
        echo(connection, connection);
        break;
    default:
        pass(pair[0], &connection, 1);
    }
    check(close(connection) == 0, "close");
    close(pair[0]);
    check(child == 0 || (waitpid(child, &status, 0) == child && status == 0), "the receiver");
    printf("%s: passed\n", names[way]);
}

static int serve(char **arguments) {
    int listener = listener_at(arguments, 0);
    for (int way = 0; way < WAYS; way++)
        serve_one(way, listener);
    return 0;
}

static int ask(char **arguments) {
    for (int way = 0; way < WAYS; way++) {
        struct sockaddr_in at;
        int fd = socket_at(arguments, &at, 0);
        if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0)
            return 2;
        char expected[4096];
        const char *before = way == PEEK         ? "looked\n"
                             : way == TWO_OWNERS ? "from the receiver\n"
                             : way == KILLED     ? "mine\n"
                                                 : "";
        int len = snprintf(expected, sizeof expected, "%s%s", before, text + 6);
        if (way == CUT || way == UNRECEIVED)
            len = 0;
        else {
            write_all(fd, text, sizeof text - 1);
            check(shutdown(fd, SHUT_WR) == 0, "shutdown");
        }
        if (!is_answered(fd, expected, len, names[way]))
            return 1;
        close(fd);
    }
    puts("asked");
    return 0;
}

int main(int count, char **arguments) {
    alarm(TIME_MAX);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 4 && !strcmp(arguments[1], "serve"))
        return serve(arguments + 2);
    if (count == 4 && !strcmp(arguments[1], "ask"))
        return ask(arguments + 2);
    fprintf(stderr, "usage: serve ADDRESS PORT | ask ADDRESS PORT\n");
    return 1;
}
