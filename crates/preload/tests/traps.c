/* What programs do rarely and what has broken other stacks. The output is the same with and without
 * the preload library.
 *
 * Usage: traps ADDRESS [PART | peer]
 * PART: one of the names in `parts` below, or all of them. `peer`: the other end of a link. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#include "connections.h"

extern char **environ;

static int readable(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    return poll(&entry, 1, 10000);
}

/* A page that is not mapped, behind one that is. */
static char *hole_after_page(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, page * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(pages != MAP_FAILED, "mmap");
    munmap(pages + page, page);
    return pages + page;
}

/* Pointers to no memory, for each call that takes one. */
static void transfers_without_memory(struct pair pair, char *hole) {
    char text[8];
    void *volatile bad = hole;
    socklen_t len = sizeof(struct sockaddr_in);
    write(pair.there, "12345678", 8);
    readable(pair.here);
    say("recvfrom", recvfrom(pair.here, bad, 8, 0, NULL, NULL));
    say("recvfrom, size", recvfrom(pair.here, text, 0, MSG_PEEK, (void *)text, bad) < 0 ? -1 : 0);
    say("sendto", sendto(pair.here, bad, 8, 0, NULL, 0));
    struct iovec piece = {.iov_base = text, .iov_len = 8}, none = {.iov_base = bad, .iov_len = 8};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_name = bad,
                             .msg_namelen = sizeof(struct sockaddr_in)};
    say("sendmsg, name", sendmsg(pair.here, &message, 0));
    message = (struct msghdr){.msg_iov = &piece, .msg_iovlen = 1, .msg_control = bad,
                              .msg_controllen = 64};
    say("sendmsg, control", sendmsg(pair.here, &message, 0));
    message = (struct msghdr){.msg_iov = bad, .msg_iovlen = 1};
    say("sendmsg, pieces", sendmsg(pair.here, &message, 0));
    say("recvmsg, pieces", recvmsg(pair.here, &message, 0));
    say("recvmsg, header", recvmsg(pair.here, bad, 0));
    struct mmsghdr many = {.msg_hdr = {.msg_iov = &none, .msg_iovlen = 1}};
    say("recvmmsg", recvmmsg(pair.here, bad, 1, 0, NULL));
    say("recvmmsg, pieces", recvmmsg(pair.here, &many, 1, 0, NULL));
    many.msg_hdr.msg_iov = &piece;
    say("recvmmsg, time", recvmmsg(pair.here, &many, 1, MSG_DONTWAIT, bad));
    say("sendmmsg", sendmmsg(pair.here, bad, 1, 0));
    many.msg_hdr.msg_iov = &none;
    say("sendmmsg, pieces", sendmmsg(pair.here, &many, 1, 0));
    say("writev, pieces", writev(pair.here, bad, 1));
    say("connect, again", connect(pair.here, bad, len));
    int ends[2];
    need(pipe(ends) == 0, "pipe");
    write(ends[1], "x", 1);
    say("splice, offset of a pipe", splice(ends[0], bad, pair.here, NULL, 1, 0));
    say("splice, offset of a socket", splice(ends[0], NULL, pair.here, bad, 1, 0));
    close(ends[0]), close(ends[1]);
    memset(text, 0, sizeof text);
    say("bytes", read_all(pair.here, text, 8));
}

static void names_without_memory(struct pair pair, char *hole) {
    void *volatile bad = hole;
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    say("getsockname", getsockname(pair.here, bad, &len));
    say("getsockname, size", getsockname(pair.here, (struct sockaddr *)&name, bad));
    say("getpeername, size", getpeername(pair.here, (struct sockaddr *)&name, bad));
    int options[][2] = {{SOL_SOCKET, SO_LINGER},   {SOL_SOCKET, SO_RCVTIMEO},
                        {SOL_SOCKET, SO_ERROR},    {SOL_SOCKET, SO_RCVBUF},
                        {IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_TCP, TCP_INFO},
                        {IPPROTO_TCP, TCP_CONGESTION}};
    for (size_t at = 0; at < sizeof options / sizeof *options; at++) {
        len = 16;
        printf("option %zu: ", at);
        say("get", getsockopt(pair.here, options[at][0], options[at][1], bad, &len));
        if (options[at][1] != SO_ERROR && options[at][1] != TCP_INFO) {
            say("set", setsockopt(pair.here, options[at][0], options[at][1], bad, 16));
        }
    }
    say("FIONBIO", ioctl(pair.here, FIONBIO, bad));
    say("FIONREAD", ioctl(pair.here, FIONREAD, bad));
    say("TIOCOUTQ", ioctl(pair.here, TIOCOUTQ, bad));
    int listening = listener(), client = connected_to(listening);
    say("accept, size", accept(listening, (struct sockaddr *)&name, bad));
    close(client);
    client = connected_to(listening);
    len = sizeof name;
    say("accept, address", accept(listening, bad, &len));
    close(client);
    fcntl(listening, F_SETFL, O_NONBLOCK);
    say("accept of none", accept(listening, NULL, NULL));
    int fresh = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    say("getsockname of a new socket", getsockname(fresh, bad, &len));
    say("FIONBIO of a new socket", ioctl(fresh, FIONBIO, bad));
    say("getsockopt of a new socket", getsockopt(fresh, SOL_SOCKET, SO_TYPE, &on, bad));
    say("setsockopt of a new socket", setsockopt(fresh, SOL_SOCKET, SO_LINGER, bad, 8));
    say("setsockopt, null", setsockopt(fresh, SOL_SOCKET, SO_LINGER, NULL, 8));
    close(fresh), close(listening);
}

/* Of times libc itself makes copies. */
static void waits_without_memory(struct pair pair, char *hole) {
    void *volatile bad = hole;
    struct pollfd entry = {.fd = pair.here, .events = POLLIN};
    struct timespec now = {0};
    struct timeval never = {0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.here, &set);
    say("ppoll, mask", ppoll(&entry, 1, &now, bad));
    say("select, set", select(pair.here + 1, bad, NULL, NULL, &never));
    say("pselect, mask", pselect(pair.here + 1, &set, NULL, NULL, &now, bad));
    int queue = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLOUT};
    need(epoll_ctl(queue, EPOLL_CTL_ADD, pair.here, &event) == 0, "epoll_ctl");
    say("epoll_ctl, change", epoll_ctl(queue, EPOLL_CTL_MOD, pair.here, bad));
    say("epoll_ctl, of itself", epoll_ctl(queue, EPOLL_CTL_ADD, queue, bad));
    say("epoll_pwait", epoll_pwait(queue, bad, 1, 10000, NULL));
    say("epoll_pwait, mask", epoll_pwait(queue, &event, 1, 0, bad));
    say("epoll_pwait2, time", epoll_pwait2(queue, &event, 1, bad, NULL));
    say("epoll_wait", epoll_wait(queue, &event, 1, 10000));
    close(queue);
}

static void programs_without_memory(char *hole) {
    void *volatile bad = hole;
    char *arguments[] = {"true", NULL};
    say("execve, path", execve(bad, arguments, environ));
    say("execve, arguments", execve("/bin/true", bad, environ));
    say("execve, environment", execve("/bin/true", arguments, bad));
    char *broken[] = {bad, NULL};
    say("execve, a variable", execve("/bin/true", arguments, broken));
}

static void memory(void) {
    struct pair pair = connection();
    char *hole = hole_after_page();
    transfers_without_memory(pair, hole);
    names_without_memory(pair, hole);
    waits_without_memory(pair, hole);
    programs_without_memory(hole);
    /* Eight bytes before the hole are enough for eight. */
    write(pair.there, "12345678", 8);
    readable(pair.here);
    say("read up to a hole", read(pair.here, hole - 8, 100));
    say("write up to a hole", write(pair.here, hole - 8, 8));
    exchange(pair, "afterwards");
    finish(pair);
}

/* Numbers from FD_SETSIZE on, and select(2) with the last one below it. */
static void high_numbers(void) {
    struct pair pair = connection();
    int high = fcntl(pair.here, F_DUPFD, FD_SETSIZE), last = dup2(pair.here, FD_SETSIZE - 1);
    say("a high number", high);
    say("the last of a set", last);
    fd_set set, other;
    struct timeval time = {.tv_sec = 10}, never = {0};
    FD_ZERO(&set);
    FD_ZERO(&other);
    FD_SET(last, &set);
    say("select", select(FD_SETSIZE, &set, NULL, NULL, &never));
    FD_SET(last, &other);
    say("select, writable", select(FD_SETSIZE, NULL, &other, NULL, &time));
    write(pair.there, "x", 1);
    FD_SET(last, &set);
    say("select, readable", select(FD_SETSIZE, &set, NULL, NULL, &time));
    say("its bit", FD_ISSET(last, &set) != 0);
    say("poll", readable(high));
    int queue = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = high};
    say("epoll_ctl", epoll_ctl(queue, EPOLL_CTL_ADD, high, &event));
    say("epoll_wait", epoll_wait(queue, &event, 1, 10000));
    char byte;
    say("read", read(high, &byte, 1));
    FD_ZERO(&set);
    FD_SET(pair.there, &set);
    close(pair.there);
    say("select of a closed number", select(FD_SETSIZE, &set, NULL, NULL, &never));
    close(queue), close(high), close(last), close(pair.here);
}

/* Calls fn for each number in /proc/self/fd, except the folder's own; returns how many. */
static int each_number(int (*work)(int)) {
    int found[4096], count = 0, done = 0;
    DIR *folder = opendir("/proc/self/fd");
    need(folder != NULL, "/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] != '.' && fd != dirfd(folder) && count < 4096) {
            found[count++] = fd;
        }
    }
    closedir(folder);
    for (int at = 0; at < count; at++) {
        done += work == NULL || work(found[at]);
    }
    return done;
}

static int kept[2];

static int closes_others(int fd) {
    return fd > 2 && fd != kept[0] && fd != kept[1] && close(fd) == 0;
}

static int is_ours(int fd) {
    return fd == kept[0] || fd == kept[1];
}

static int is_low(int fd) {
    return fd > 2 && fd < 100;
}

/* The library's own files leave the low numbers to the program. */
static void low_numbers(void) {
    int before = each_number(is_low), listening = listener();
    struct pair pair = {.here = connected_to(listening)};
    pair.there = accept(listening, NULL, NULL);
    exchange(pair, "the first connection");
    say("numbers", each_number(is_low) - before);
    finish(pair), close(listening);
}

/* Daemons close what they find in /proc/self/fd, and by number. */
static void all_numbers(void) {
    struct pair pair = connection();
    kept[0] = pair.here, kept[1] = pair.there;
    say("numbers in /proc/self/fd", each_number(is_ours));
    char path[64], target[64] = {0};
    snprintf(path, sizeof path, "/proc/self/fd/%d", pair.here);
    readlink(path, target, sizeof target - 1);
    printf("it is a socket: %d\n", strncmp(target, "socket:", 7) == 0);
    each_number(closes_others);
    exchange(pair, "numbers of /proc/self/fd closed");
    say("SYS_close_range", syscall(SYS_close_range, 100, ~0U, 0));
    exchange(pair, "a range closed by number");
    int copy = (int)syscall(SYS_dup2, pair.here, 90);
    say("SYS_dup2", copy);
    close(pair.here);
    pair.here = copy;
    exchange(pair, "a copy by number");
    copy = (int)syscall(SYS_dup, pair.here);
    need(copy >= 0, "SYS_dup");
    close(pair.here);
    pair.here = copy;
    exchange(pair, "another copy by number");
    copy = (int)syscall(SYS_dup3, pair.here, 91, O_CLOEXEC);
    say("SYS_dup3", copy);
    close(pair.here);
    pair.here = copy;
    say("F_GETFD", fcntl(copy, F_GETFD));
    exchange(pair, "a third copy by number");
    say("SYS_close", syscall(SYS_close, pair.here));
    char byte;
    say("the end", read(pair.there, &byte, 1));
    close(pair.there);
    pair = connection();
    exchange(pair, "a new connection");
    finish(pair);
}

/* The process may open 16 files, from its start on. */
static void few_numbers(void) {
    int listening = listener(), clients[16], count = 0, accepted = 0;
    char text[8] = {0};
    /* Connections of more clients than there are numbers for both ends. */
    for (int fd; count < 16 && (fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0; count++) {
        struct sockaddr_in to = name_of(listening);
        need(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
        need(write(fd, "1234", 4) == 4, "write");
        clients[count] = fd;
    }
    printf("socket: %s\n", strerrorname_np(errno));
    printf("several clients: %d\n", count >= 4);
    say("accept", accept(listening, NULL, NULL));
    say("dup", dup(listening));
    say("open", open("/dev/null", O_RDONLY));
    say("epoll_create", epoll_create1(0));
    int ends[2];
    say("pipe", pipe(ends));
    /* Each number that a client frees is one for an accepted connection. */
    for (int at = 0; at < count; at++) {
        close(clients[at]);
        int fd = accept(listening, NULL, NULL);
        need(fd >= 0, "accept");
        accepted += read_all(fd, text, 4) == 4 && memcmp(text, "1234", 4) == 0;
        close(fd);
    }
    printf("all have come: %d\n", accepted == count);
    close(listening);
}

/* A filter as containers have it: no io_uring. */
static void filtered(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_register, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "a filter");
    struct pair pair = connection();
    exchange(pair, "under a filter");
    finish(pair);
}

static int replaced;

static void *waits(void *argument) {
    int how = *(int *)argument;
    char byte;
    struct pollfd entry = {.fd = replaced, .events = POLLIN};
    long result = how == 0 ? accept(replaced, NULL, NULL)
                  : how == 1 ? poll(&entry, 1, 20000)
                             : read(replaced, &byte, 1);
    return (void *)(intptr_t)result;
}

static void on_signal(int number) {
    (void)number;
}

/* A kernel descriptor takes the number of a socket that other threads wait for. */
static void replaced_numbers(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    for (int how = 0; how < 3; how++) {
        struct pair pair = {-1, -1};
        if (how > 0) {
            pair = connection();
        }
        replaced = how == 0 ? listener() : pair.here;
        pthread_t thread;
        pthread_create(&thread, NULL, waits, &how);
        pause_ms(50);
        int ends[2];
        need(pipe(ends) == 0, "pipe");
        say("dup2", dup2(ends[0], replaced) == replaced);
        say("write to what is there now", write(ends[1], "k", 1));
        char byte = 0;
        say("read of it", read(replaced, &byte, 1));
        printf("its byte: %c\n", byte);
        void *result = NULL;
        for (int tries = 0; tries < 100; tries++) {
            pthread_kill(thread, SIGUSR1);
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 1;
            if (pthread_timedjoin_np(thread, &result, &until) == 0) {
                break;
            }
        }
        printf("the wait: %d\n", how == 1 || (long)(intptr_t)result == -1);
        close(ends[0]), close(ends[1]), close(replaced);
        if (how > 0) {
            close(pair.there);
        }
    }
    signal(SIGUSR1, SIG_DFL);
}

static _Atomic int files_are_done;

static void *opens_files(void *unused) {
    while (!files_are_done) {
        FILE *file = fopen("/dev/null", "r");
        need(file != NULL, "fopen");
        fclose(file);
    }
    return unused;
}

/* Streams that a thread closes, and connections of another one, have one number after another. */
static void closed_streams(void) {
    pthread_t threads[2];
    for (int at = 0; at < 2; at++) {
        pthread_create(&threads[at], NULL, opens_files, NULL);
    }
    for (int at = 0; at < 300; at++) {
        struct pair pair = connection();
        char text[4];
        need(write(pair.here, "1234", 4) == 4, "write");
        need(read_all(pair.there, text, 4) == 4, "read");
        finish(pair);
    }
    files_are_done = 1;
    for (int at = 0; at < 2; at++) {
        pthread_join(threads[at], NULL);
    }
    puts("connections beside streams");
}

/* 1,000 children that use, close or leave what they have, and may be killed at any moment. */
static void many_children(void) {
    struct pair pair = connection();
    int listening = listener();
    exchange(pair, "before");
    unsigned state = 1;
    int numbers = each_number(NULL);
    for (int round = 0; round < 1000; round++) {
        pid_t child = fork();
        need(child >= 0, "fork");
        if (child == 0) {
            if (round % 4 == 0) {
                close(pair.here), close(listening);
            } else if (round % 4 == 1) {
                close_range(3, ~0U, 0);
            } else if (round % 4 == 2) {
                int fd = socket(AF_INET, SOCK_STREAM, 0);
                close(dup(fd)), dup2(fd, pair.here);
            }
            _exit(0);
        }
        state = state * 1103515245 + 12345;
        if (round % 2) {
            struct timespec pause = {.tv_nsec = state >> 16 & 0x3ffff};
            nanosleep(&pause, NULL);
            kill(child, SIGKILL);
        }
        need(waitpid(child, NULL, 0) == child, "waitpid");
        if (round % 100 == 0) {
            exchange(pair, "between");
        }
    }
    /* A few are made when a thread waits for the first time. */
    printf("as many numbers: %d\n", each_number(NULL) < numbers + 10);
    exchange(pair, "after");
    int client = connected_to(listening), accepted = accept(listening, NULL, NULL);
    exchange((struct pair){client, accepted}, "a new connection");
    close(client), close(accepted), close(listening);
    finish(pair);
}

static void reset(int fd) {
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    need(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0, "SO_LINGER");
    close(fd);
}

/* Connections that the peer resets, before and after accept(2). */
static void resets(void) {
    int listening = listener();
    int client = connected_to(listening);
    /* What its peer resets before the listener has it is not accepted on our own stack. */
    need(readable(listening) == 1, "poll");
    need(write(client, "abc", 3) == 3, "write");
    reset(client);
    pause_ms(50);
    char text[8] = {0};
    say("poll of a listener", readable(listening));
    int fd = accept(listening, NULL, NULL);
    printf("accept of what was reset: %d\n", fd >= 0);
    say("its bytes", read(fd, text, sizeof text));
    say("then", read(fd, text, sizeof text));
    say("at last", read(fd, text, sizeof text));
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    say("getpeername", getpeername(fd, (struct sockaddr *)&name, &len));
    say("write", send(fd, "x", 1, MSG_NOSIGNAL));
    close(fd);
    client = connected_to(listening);
    need(readable(listening) == 1, "poll");
    reset(client);
    pause_ms(50);
    fd = accept(listening, NULL, NULL);
    printf("accept without bytes: %d\n", fd >= 0);
    say("read", read(fd, text, sizeof text));
    close(fd);
    for (int order = 0; order < 2; order++) {
        client = connected_to(listening);
        fd = accept(listening, NULL, NULL);
        need(write(client, "abcdef", 6) == 6, "write");
        if (order == 1) {
            readable(fd);
            say("some bytes", read(fd, text, 2));
        }
        reset(client);
        pause_ms(50);
        struct pollfd entry = {.fd = fd, .events = 0};
        say("poll for the end", poll(&entry, 1, 10000));
        entry.events = POLLIN | POLLOUT;
        say("poll", poll(&entry, 1, 10000));
        printf("events: %x\n", (unsigned)entry.revents);
        say("getpeername", getpeername(fd, (struct sockaddr *)&name, &len));
        int left = 0;
        say("FIONREAD", ioctl(fd, FIONREAD, &left) == 0 ? left : -1);
        say("bytes", read(fd, text, sizeof text));
        say("then", read(fd, text, sizeof text));
        say("at last", read(fd, text, sizeof text));
        close(fd);
    }
    close(listening);
}

static struct pair busy;

static void *exchanges_for_ever(void *argument) {
    (void)argument;
    char text[4];
    for (;;) {
        if (write(busy.here, "1234", 4) != 4 || read_all(busy.there, text, 4) != 4) {
            say("a call beside _exit", -1);
        }
    }
    return NULL;
}

/* A thread is inside calls while another ends the process. */
static void ends(void) {
    for (int round = 0; round < 3; round++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            busy = connection();
            struct pair full = connection();
            char bytes[4096] = {0};
            fcntl(full.here, F_SETFL, O_NONBLOCK);
            while (write(full.here, bytes, sizeof bytes) > 0) {
            }
            pthread_t thread;
            pthread_create(&thread, NULL, exchanges_for_ever, NULL);
            pause_ms(20);
            round == 0 ? _exit(5) : round == 1 ? exit(5) : (void)syscall(SYS_exit_group, 5);
        }
        int status = 0;
        need(waitpid(child, &status, 0) == child, "waitpid");
        say("a child with threads", WIFEXITED(status) ? WEXITSTATUS(status) : -status);
    }
}

/* Sockets and sets whose calls are made by number: libuv's UDP messages are. */
static void calls_by_number(void) {
    int fd = (int)syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(host)};
    say("SYS_bind", syscall(SYS_bind, fd, &name, sizeof name));
    name = name_of(fd);
    char text[8] = "message", got[2][8] = {{0}};
    struct iovec out = {text, 8}, in[2] = {{got[0], 8}, {got[1], 8}};
    struct mmsghdr send[2] = {0}, receive[2] = {0};
    for (int i = 0; i < 2; i++) {
        send[i].msg_hdr = (struct msghdr){
            .msg_name = &name, .msg_namelen = sizeof name, .msg_iov = &out, .msg_iovlen = 1};
        receive[i].msg_hdr = (struct msghdr){.msg_iov = &in[i], .msg_iovlen = 1};
    }
    say("SYS_sendmmsg", syscall(SYS_sendmmsg, fd, send, 2, 0));
    say("SYS_sendto", syscall(SYS_sendto, fd, text, 8, 0, &name, sizeof name));
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    say("SYS_epoll_ctl", syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event));
    say("SYS_epoll_pwait", syscall(SYS_epoll_pwait, set, &event, 1, 10000, NULL, 8));
    for (int count = 0; count < 3;) {
        long more = syscall(SYS_recvmmsg, fd, receive, 2, MSG_WAITFORONE, NULL);
        need(more > 0 && strcmp(got[0], "message") == 0, "SYS_recvmmsg");
        count += (int)more;
    }
    say("SYS_recvfrom", syscall(SYS_recvfrom, fd, text, 8, MSG_DONTWAIT, NULL, NULL));
    close(fd), close(set);
    struct pair pair = connection();
    say("SYS_write", syscall(SYS_write, pair.here, "1234", 4));
    struct pollfd entry = {.fd = pair.there, .events = POLLIN};
    struct timespec patience = {.tv_sec = 10};
    say("SYS_ppoll", syscall(SYS_ppoll, &entry, 1, &patience, NULL, 8));
    say("SYS_read", syscall(SYS_read, pair.there, text, 8));
    say("SYS_fcntl", syscall(SYS_fcntl, pair.there, F_SETFL, O_NONBLOCK));
    say("SYS_read", syscall(SYS_read, pair.there, text, 8));
    say("SYS_shutdown", syscall(SYS_shutdown, pair.here, SHUT_WR));
    readable(pair.there);
    say("SYS_read", syscall(SYS_read, pair.there, text, 8));
    finish(pair);
}

/* Addresses before the stack runs and after: those of another family, and of clients in sets. */
static void bound_clients(void) {
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    int of_v6 = socket(AF_INET6, SOCK_STREAM, 0), of_v4 = socket(AF_INET, SOCK_DGRAM, 0);
    say("an address of IPv4", bind(of_v6, (struct sockaddr *)&v4, sizeof v4));
    say("an address of IPv6", bind(of_v4, (struct sockaddr *)&v6, sizeof v6));
    close(of_v6), close(of_v4);
    int listening = listener(), set = epoll_create1(0);
    struct sockaddr_in to = name_of(listening);
    for (int i = 0; i < 3; i++) {
        struct pair pair = {.here = socket(AF_INET, SOCK_STREAM, 0)};
        need(bind(pair.here, (struct sockaddr *)&v4, sizeof v4) == 0, "bind");
        struct epoll_event event = {.events = EPOLLIN};
        say("watch", epoll_ctl(set, EPOLL_CTL_ADD, pair.here, &event));
        say("connect", connect(pair.here, (struct sockaddr *)&to, sizeof to));
        pair.there = accept(listening, NULL, NULL);
        exchange(pair, "a bound client");
        say("the other way", write(pair.there, "x", 1));
        say("epoll_wait", epoll_wait(set, &event, 1, 10000));
        finish(pair);
    }
    close(listening), close(set);
}

static const struct part parts[] = {
    {"ends", ends},
    {"low", low_numbers},
    {"memory", memory},
    {"high", high_numbers},
    {"all", all_numbers},
    {"replaced", replaced_numbers},
    {"streams", closed_streams},
    {"by_number", calls_by_number},
    {"bound", bound_clients},
    {"resets", resets},
    {"children", many_children},
    {"few", few_numbers},
    {"filter", filtered},
};

int main(int count, char **arguments) {
    return run_parts(count, arguments, parts, sizeof parts / sizeof *parts, "few");
}
