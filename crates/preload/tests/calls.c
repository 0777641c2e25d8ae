/* Calls of unmodified programs, each on a connection of its own. The output is the same with and
 * without the preload library; it has no descriptor numbers that depend on the surroundings.
 *
 * Usage: calls ADDRESS [refusals | peer]
 * `refusals`: what the library refuses and Linux does not, and urgent data, which the back end
 * `kernel` does not have. `peer`: the other end of a link. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "connections.h"

extern char **environ;

static void numbers(void) {
    struct pair pair = connection();
    int lowest = dup(0);
    close(lowest);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    printf("the lowest number: %d\n", fd == lowest);
    close(fd);
    fd = dup(pair.here);
    printf("of a duplicate: %d\n", fd == lowest);
    say("F_DUPFD", fcntl(pair.here, F_DUPFD, 200) - 200);
    say("F_DUPFD, busy", fcntl(pair.here, F_DUPFD, 200) - 200);
    say("F_DUPFD_CLOEXEC", fcntl(pair.here, F_DUPFD_CLOEXEC, 300) - 300);
    say("F_GETFD", fcntl(300, F_GETFD));
    say("F_GETFD", fcntl(200, F_GETFD));
    say("F_GETFL", fcntl(pair.here, F_GETFL) & (O_NONBLOCK | O_ACCMODE));
    fcntl(200, F_SETFL, O_NONBLOCK);
    say("F_GETFL", (fcntl(pair.here, F_GETFL) & O_NONBLOCK) != 0);
    char byte;
    say("read, nonblocking", read(fd, &byte, 1));
    fcntl(201, F_SETFL, 0);
    close(200), close(201), close(300);
    struct stat status;
    say("fstat", fstat(fd, &status));
    say("S_ISSOCK", S_ISSOCK(status.st_mode));
    int value = 0;
    socklen_t len = sizeof value;
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len);
    say("SO_TYPE", value);
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &len);
    say("SO_DOMAIN", value);
    getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value, &len);
    say("SO_PROTOCOL", value);
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &len);
    say("SO_ACCEPTCONN", value);
    say("isatty", isatty(fd));
    say("isfdtype", isfdtype(fd, S_IFSOCK));
    say("lseek", lseek(fd, 0, SEEK_CUR));
    say("pread", pread(fd, &byte, 1, 0));
    say("pwrite", pwrite(fd, &byte, 1, 0));
    say("fsync", fsync(fd));
    say("ftruncate", ftruncate(fd, 0));
    close(pair.here);
    pair.here = fd;
    exchange(pair, "a duplicate");
    say("dup2 to a file", dup2(pair.here, 400) - 400);
    int file = open("/dev/null", O_RDWR);
    say("dup2 of a file", dup2(file, 400) - 400);
    say("write to the file", write(400, "x", 1));
    say("dup2 over a file", dup2(pair.here, file) == file);
    close(pair.here);
    pair.here = file;
    exchange(pair, "over a file");
    close(400);
    fd = socket(AF_INET, SOCK_DGRAM, 136);
    printf("UDPLITE: %d\n", fd >= 0 || errno == EPROTONOSUPPORT);
    close(fd);
    say("a closed number", read(777, &byte, 1));
    say("a negative one", close(-1));
    finish(pair);
}

static void files(void) {
    struct pair pair = connection();
    char text[64] = {0};
    int file = file_of("0123456789");
    off_t offset = 3;
    say("sendfile, offset", sendfile(pair.here, file, &offset, 4));
    say("its offset", offset);
    say("the file's own", lseek(file, 0, SEEK_CUR));
    say("sendfile", sendfile(pair.here, file, NULL, 6));
    say("the file's own", lseek(file, 0, SEEK_CUR));
    say("sendfile to the end", sendfile(pair.here, file, NULL, 100));
    say("sendfile at the end", sendfile(pair.here, file, NULL, 100));
    offset = -1;
    say("a negative offset", sendfile(pair.here, file, &offset, 1));
    say("bytes", read_all(pair.there, text, 14));
    puts(text);
    int ends[2];
    need(pipe(ends) == 0, "pipe");
    say("sendfile, an offset in no memory", sendfile(pair.here, file, (off_t *)8, 1));
    say("sendfile of a closed number", sendfile(pair.here, 777, NULL, 1));
    say("sendfile of a socket", sendfile(file, pair.here, NULL, 1));
    say("sendfile of a socket to itself", sendfile(pair.here, pair.there, NULL, 1));

    say("write", write(ends[1], "abcdefgh", 8));
    say("splice to the socket", splice(ends[0], NULL, pair.here, NULL, 5, 0));
    say("splice of the rest", splice(ends[0], NULL, pair.here, NULL, 50, SPLICE_F_NONBLOCK));
    say("splice of nothing", splice(ends[0], NULL, pair.here, NULL, 50, SPLICE_F_NONBLOCK));
    memset(text, 0, sizeof text);
    say("bytes", read_all(pair.there, text, 8));
    puts(text);
    write(pair.there, "hello", 5);
    struct pollfd entry = {.fd = pair.here, .events = POLLIN};
    say("poll", poll(&entry, 1, 10000));
    say("splice to the pipe", splice(pair.here, NULL, ends[1], NULL, 50, 0));
    fcntl(pair.here, F_SETFL, O_NONBLOCK);
    say("splice of nothing", splice(pair.here, NULL, ends[1], NULL, 50, 0));
    fcntl(pair.here, F_SETFL, 0);
    say("FIONREAD", ioctl(ends[0], FIONREAD, &file) == 0 ? file : -1);
    memset(text, 0, sizeof text);
    say("read", read(ends[0], text, 50));
    puts(text);
    offset = 0;
    say("splice at an offset", splice(pair.here, &offset, ends[1], NULL, 5, 0));
    say("splice without a pipe", splice(pair.here, NULL, pair.there, NULL, 5, 0));
    say("splice of length 0", splice(pair.here, NULL, ends[1], NULL, 0, 0));
    say("tee of a socket", tee(pair.here, ends[1], 5, 0));
    struct iovec piece = {.iov_base = text, .iov_len = 5};
    say("vmsplice to a socket", vmsplice(pair.here, &piece, 1, 0));
    say("copy_file_range", copy_file_range(pair.here, NULL, 1, NULL, 5, 0));
    shutdown(pair.there, SHUT_WR);
    say("poll", poll(&entry, 1, 10000));
    say("splice at the end", splice(pair.here, NULL, ends[1], NULL, 5, 0));
    close(ends[0]), close(ends[1]);
    finish(pair);
}

static void streams(void) {
    struct pair pair = connection();
    FILE *stream = fdopen(pair.here, "r+");
    need(stream != NULL, "fdopen");
    printf("fileno: %d\n", fileno(stream) == pair.here);
    setvbuf(stream, NULL, _IOLBF, 1024);
    say("fprintf", fprintf(stream, "line %d\n", 1));
    fflush(stream);
    char text[64] = {0};
    say("bytes", read_all(pair.there, text, 7));
    printf("%s", text);
    write(pair.there, "answer\nmore", 11);
    printf("fgets: %s", fgets(text, sizeof text, stream));
    shutdown(pair.there, SHUT_WR);
    memset(text, 0, sizeof text);
    say("fread", (long)fread(text, 1, sizeof text, stream));
    say("feof", feof(stream) != 0);
    say("fclose", fclose(stream));
    say("a closed number", write(pair.here, "x", 1));
    say("end of the stream", read(pair.there, text, 1));
    close(pair.there);
    pair = connection();
    FILE *reader = fdopen(dup(pair.here), "r");
    say("fputs to a reader", fputs("x", reader));
    say("a wrong mode", fdopen(pair.here, "q") == NULL ? -1 : 0);
    fclose(reader);
    exchange(pair, "beside a stream");
    finish(pair);
}

static void faults(void) {
    struct pair pair = connection();
    long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, (size_t)page * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
    need(pages != MAP_FAILED, "mmap");
    char *hole = pages + page;
    munmap(hole, (size_t)page);
    write(pair.there, "12345678", 8);
    struct pollfd entry = {.fd = pair.here, .events = POLLIN};
    say("poll", poll(&entry, 1, 10000));
    say("read", read(pair.here, hole, 8));
    char *volatile nothing = NULL;
    say("read, null", read(pair.here, nothing, 8));
    say("recv", recv(pair.here, hole, 8, 0));
    say("write", write(pair.here, hole, 8));
    say("send", send(pair.here, hole, 8, 0));
    struct iovec bad = {.iov_base = hole, .iov_len = 8};
    say("readv", readv(pair.here, &bad, 1));
    say("writev", writev(pair.here, &bad, 1));
    say("readv, pieces", readv(pair.here, (struct iovec *)(void *)hole, 1));
    struct msghdr message = {.msg_iov = &bad, .msg_iovlen = 1};
    say("recvmsg", recvmsg(pair.here, &message, 0));
    say("sendmsg", sendmsg(pair.here, &message, 0));
    say("sendmsg, header", sendmsg(pair.here, (struct msghdr *)(void *)hole, 0));
    mprotect(pages, (size_t)page, PROT_READ);
    say("read to constant memory", read(pair.here, pages, 8));
    char *stack = alloca(3 << 20);
    say("read to fresh stack", read(pair.here, stack, 8));
    say("setsockopt", setsockopt(pair.here, SOL_SOCKET, SO_KEEPALIVE, hole, 4));
    socklen_t len = 4;
    say("getsockopt", getsockopt(pair.here, SOL_SOCKET, SO_KEEPALIVE, hole, &len));
    int value;
    say("getsockopt, size", getsockopt(pair.here, SOL_SOCKET, SO_KEEPALIVE, &value,
                                       (socklen_t *)(void *)hole));
    len = sizeof(struct sockaddr_in);
    say("getpeername", getpeername(pair.here, (struct sockaddr *)(void *)hole, &len));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    say("connect", connect(fd, (struct sockaddr *)(void *)hole, sizeof(struct sockaddr_in)));
    say("bind", bind(fd, (struct sockaddr *)(void *)hole, sizeof(struct sockaddr_in)));
    close(fd);
    int set = epoll_create1(0);
    say("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, pair.here, (struct epoll_event *)(void *)hole));
    struct epoll_event event = {.events = EPOLLOUT};
    say("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, pair.here, &event));
    say("epoll_wait", epoll_wait(set, (struct epoll_event *)(void *)hole, 1, 10000));
    say("poll", poll((struct pollfd *)(void *)hole, 1, 0));
    say("ioctl", ioctl(pair.here, FIONREAD, hole));
    close(set);
    munmap(pages, (size_t)page);
    exchange(pair, "afterwards");
    finish(pair);
}

static void on_signal(int number) {
    (void)number;
}

static void handle(int number, int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    struct sigaction before;
    need(sigaction(number, &action, &before) == 0, "sigaction");
    need(sigaction(number, NULL, &before) == 0, "sigaction");
    printf("handler: %d %d\n", before.sa_handler == on_signal,
           (before.sa_flags & SA_RESTART) == flags);
}

struct later {
    pthread_t reader;
    int fd, first, second;
};

static void *after_a_while(void *argument) {
    struct later *later = argument;
    struct timespec pause = {.tv_nsec = 50000000};
    nanosleep(&pause, NULL);
    pthread_kill(later->reader, later->first);
    nanosleep(&pause, NULL);
    if (later->second < 0) {
        return NULL;
    }
    if (later->second != 0) {
        pthread_kill(later->reader, later->second);
    } else {
        write(later->fd, "x", 1);
    }
    return NULL;
}

static void interrupted(const char *what, struct pair pair, int first, int second, int polls) {
    struct later later = {pthread_self(), pair.there, first, second};
    pthread_t thread;
    pthread_create(&thread, NULL, after_a_while, &later);
    char byte;
    if (polls) {
        struct pollfd entry = {.fd = pair.here, .events = POLLIN};
        say(what, poll(&entry, 1, 10000));
        pthread_join(thread, NULL);
        say("then", read(pair.here, &byte, 1));
        return;
    }
    say(what, read(pair.here, &byte, 1));
    pthread_join(thread, NULL);
}

/* EINTR and SA_RESTART follow the handler that ran, whatever other handlers there are. */
static void signals(void) {
    struct pair pair = connection();
    handle(SIGUSR1, SA_RESTART);
    handle(SIGUSR2, 0);
    interrupted("restarted", pair, SIGUSR1, 0, 0);
    interrupted("interrupted", pair, SIGUSR1, SIGUSR2, 0);
    interrupted("poll", pair, SIGUSR1, 0, 1);
    signal(SIGUSR2, on_signal);
    interrupted("signal(3) restarts", pair, SIGUSR2, 0, 0);
    printf("signal: %d\n", signal(SIGUSR2, SIG_DFL) == on_signal);
    signal(SIGUSR1, SIG_DFL);
    exchange(pair, "afterwards");
    finish(pair);
}

/* Handlers make calls, wherever they interrupt the program. */
static struct pair beside, beneath;
static volatile sig_atomic_t handled, failures;
static volatile long value_sum;

static void send_beside(int number) {
    (void)number;
    int before = errno;
    if (handled < 5000) {
        int fd = dup(beside.here);
        failures += send(fd, "h", 1, MSG_DONTWAIT) != 1;
        failures += close(fd) != 0;
        handled++;
    }
    errno = before;
}

static void receive_beside(int number) {
    (void)number;
    char byte = 0;
    failures += write(beside.here, "n", 1) != 1;
    failures += read(beside.there, &byte, 1) != 1 || byte != 'n';
    failures += write(beneath.there, "x", 1) != 1;
    handled++;
}

static void add_value(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    failures += info->si_code != SI_QUEUE;
    value_sum += info->si_value.sival_int;
    send_beside(number);
}

static void *queue_values(void *argument) {
    pthread_t to = *(pthread_t *)argument;
    for (int value = 1; value <= 300; value++) {
        union sigval word = {.sival_int = value};
        while (pthread_sigqueue(to, SIGRTMIN, word) != 0) {
            sched_yield();
        }
        struct timespec pause = {.tv_nsec = 50000};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void exchanges(int count) {
    char text[4];
    while (count-- > 0) {
        need(write(beneath.here, "1234", 4) == 4, "write");
        need(read_all(beneath.there, text, 4) == 4, "read");
    }
}

/* Says whether every handler's byte has come, and no call of a handler has failed. */
static void say_handled(const char *what) {
    char text[5000];
    long bytes = handled > 0 ? read_all(beside.there, text, (size_t)handled) : -1;
    printf("%s: %d %d\n", what, bytes == handled, (int)failures);
    handled = failures = 0;
}

static void handlers(void) {
    beside = connection(), beneath = connection();
    int on = 1;
    setsockopt(beneath.here, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct sigaction action = {.sa_handler = send_beside, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {.it_interval.tv_usec = 400, .it_value.tv_usec = 400}, never = {0};
    setitimer(ITIMER_REAL, &often, NULL);
    exchanges(1500);
    while (handled == 0) {
        exchanges(1);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    say_handled("calls of handlers");
    action.sa_handler = receive_beside;
    sigaction(SIGUSR1, &action, NULL);
    interrupted("read beneath a handler that reads", beneath, SIGUSR1, -1, 0);
    printf("its handler: %d %d\n", (int)handled, (int)failures);
    handled = 0;
    action.sa_handler = send_beside, action.sa_flags = 0;
    sigaction(SIGUSR2, &action, NULL);
    interrupted("read beneath a handler that sends", beneath, SIGUSR2, -1, 0);
    say_handled("its handler");
    action.sa_sigaction = add_value, action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGRTMIN, &action, NULL);
    pthread_t thread, self = pthread_self();
    pthread_create(&thread, NULL, queue_values, &self);
    while (handled < 300) {
        exchanges(1);
    }
    pthread_join(thread, NULL);
    say_handled("queued signals");
    say("their values", value_sum);
    action.sa_handler = on_signal, action.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    sigaction(SIGUSR2, NULL, &action);
    printf("a handler that runs once: %d\n", action.sa_handler == SIG_DFL);
    printf("sysv_signal: %d\n", sysv_signal(SIGUSR2, on_signal) == SIG_DFL);
    raise(SIGUSR2);
    printf("then: %d\n", signal(SIGUSR2, SIG_DFL) == SIG_DFL);
    exchange(beneath, "afterwards");
    signal(SIGUSR1, SIG_DFL), signal(SIGALRM, SIG_DFL), signal(SIGRTMIN, SIG_DFL);
    finish(beside), finish(beneath);
}

static void limits(void) {
    int listening = listener();
    struct pair pairs[64];
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    struct rlimit low = {.rlim_cur = 16, .rlim_max = limit.rlim_max};
    pairs[0].here = connected_to(listening);
    pairs[1].here = connected_to(listening);
    int file, last = -1, files[32], count = 0;
    need(setrlimit(RLIMIT_NOFILE, &low) == 0, "setrlimit");
    while ((file = open("/dev/null", O_RDONLY)) >= 0) {
        files[count++] = last = file;
    }
    say("open", file);
    say("the last number", last);
    say("socket", socket(AF_INET, SOCK_STREAM, 0));
    say("accept", accept(listening, NULL, NULL));
    close(files[--count]);
    pairs[0].there = accept(listening, NULL, NULL);
    say("accept", pairs[0].there);
    say("accept", accept(listening, NULL, NULL));
    say("dup", dup(pairs[0].there));
    close(files[--count]);
    pairs[1].there = accept(listening, NULL, NULL);
    say("accept", pairs[1].there);
    exchange(pairs[0], "the first");
    exchange(pairs[1], "the second");
    setrlimit(RLIMIT_NOFILE, &limit);
    finish(pairs[0]), finish(pairs[1]);
    while (count > 0) {
        close(files[--count]);
    }
    close(listening);
}

/* A process that closes every number keeps its connections only if it leaves them out. */
static void closes(void) {
    struct pair pair = connection();
    int low = dup2(pair.here, 100), high = dup2(pair.there, 101);
    close(pair.here), close(pair.there);
    for (int fd = 3; fd < 100; fd++) {
        close(fd);
    }
    for (int fd = 102; fd < 1024; fd++) {
        close(fd);
    }
    pair = (struct pair){low, high};
    exchange(pair, "numbers closed");
    say("close_range", close_range(102, ~0U, 0));
    exchange(pair, "a range closed");
    say("SYS_close", syscall(SYS_close, pair.here));
    char byte;
    say("the end", read(pair.there, &byte, 1));
    say("a closed number", write(100, "x", 1));
    closefrom(101);
    say("closefrom", write(101, "x", 1));
    pair = connection();
    exchange(pair, "a new connection");
    finish(pair);
}

/* Java ends an accept by dup2 of another descriptor over the listener, and a signal. */
static int accepting, accepted, accept_ended;

static void *accepts(void *argument) {
    (void)argument;
    accepted = accept(accepting, NULL, NULL);
    accept_ended = errno == EINTR || errno == EBADF;
    return NULL;
}

static void replaced_listener(void) {
    accepting = listener();
    handle(SIGUSR1, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, accepts, NULL);
    struct timespec pause = {.tv_nsec = 50000000};
    nanosleep(&pause, NULL);
    int other = socket(AF_UNIX, SOCK_STREAM, 0);
    say("dup2", dup2(other, accepting) == accepting);
    nanosleep(&pause, NULL);
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, NULL);
    /* The stack ends it at once, the kernel with the signal: said when both have. */
    printf("accept: %d %d\n", accepted, accept_ended);
    signal(SIGUSR1, SIG_DFL);
    close(other), close(accepting);
}

static int spawned(posix_spawn_file_actions_t *actions, const char *script) {
    char *arguments[] = {"sh", "-c", (char *)(size_t)script, NULL};
    pid_t child;
    int status = 0;
    fflush(stdout);
    need(posix_spawn(&child, "/bin/sh", actions, NULL, arguments, environ) == 0, "posix_spawn");
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

/* Children that close, duplicate and replace their numbers leave those of the parent alone. */
static void children(void) {
    struct pair pair = connection();
    int file = file_of("text of a file\n");
    pid_t child = vfork();
    if (child == 0) {
        close(pair.here);
        dup2(file, pair.there);
        close_range(3, ~0U, 0);
        _exit(7);
    }
    int status;
    waitpid(child, &status, 0);
    say("vfork", WEXITSTATUS(status));
    exchange(pair, "after vfork");
    child = vfork();
    if (child == 0) {
        /* Its own child, which ends first. */
        pid_t inner = vfork();
        if (inner == 0) {
            close(pair.here);
            _exit(3);
        }
        close(pair.there);
        int end;
        waitpid(inner, &end, 0);
        _exit(WEXITSTATUS(end) + 1);
    }
    waitpid(child, &status, 0);
    say("vfork in vfork", WEXITSTATUS(status));
    exchange(pair, "after both");
    child = _Fork();
    if (child == 0) {
        close(pair.here);
        dup2(file, pair.there);
        _exit(9);
    }
    waitpid(child, &status, 0);
    say("_Fork", WEXITSTATUS(status));
    exchange(pair, "after _Fork");
    child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0L);
    if (child == 0) {
        close(pair.here);
        _exit(10);
    }
    waitpid(child, &status, 0);
    say("SYS_clone", WEXITSTATUS(status));
    exchange(pair, "after SYS_clone");
    child = fork();
    if (child == 0) {
        closefrom(3);
        exit(8);
    }
    waitpid(child, &status, 0);
    say("fork", WEXITSTATUS(status));
    exchange(pair, "after fork");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, pair.here);
    posix_spawn_file_actions_adddup2(&actions, file, 0);
    posix_spawn_file_actions_adddup2(&actions, file, pair.there);
    posix_spawn_file_actions_addopen(&actions, 500, "/dev/null", O_RDONLY, 0);
    say("posix_spawn", spawned(&actions, "read line && echo \"$line\"; exit 9"));
    posix_spawn_file_actions_destroy(&actions);
    exchange(pair, "after posix_spawn");
    say("system", system("exit 3") >> 8);
    exchange(pair, "after system");
    FILE *stream = popen("echo from a child", "r");
    char line[64] = {0};
    printf("popen: %s", fgets(line, sizeof line, stream));
    say("pclose", pclose(stream));
    exchange(pair, "after popen");
    close(file);
    finish(pair);
}

static const char *const exec_names[] = {"execl",   "execlp",   "execle",
                                         "fexecve", "execveat", "SYS_execve"};

enum { EXECS = sizeof exec_names / sizeof *exec_names };

/* Executes a shell that ends with the status 20 and more. */
static void end_as_shell(int way, int shell, int folder) {
    static const char *const scripts[EXECS] = {"exit 20", "exit 21", "exit $STATUS",
                                               "exit 23", "exit 24", "exit 25"};
    char *arguments[] = {"sh", "-c", (char *)(size_t)scripts[way], NULL};
    char *environment[] = {"STATUS=22", NULL};
    switch (way) {
    case 0:
        execl("/bin/sh", "sh", "-c", scripts[way], "0", "1", "2", "3", "4", "5", NULL);
        break;
    case 1:
        execlp("sh", "sh", "-c", scripts[way], NULL);
        break;
    case 2:
        execle("/bin/sh", "sh", "-c", scripts[way], "0", "1", "2", NULL, environment);
        break;
    case 3:
        fexecve(shell, arguments, environment);
        break;
    case 4:
        execveat(folder, "sh", arguments, environment, 0);
        break;
    default:
        syscall(SYS_execve, "/bin/sh", arguments, environment);
    }
    _exit(1);
}

static volatile int interrupts;

static void count_interrupt(int signal) {
    (void)signal;
    interrupts++;
}

/* Programs that children and libc start; the numbers of this process stay. */
static void programs(void) {
    struct pair pair = connection();
    int shell = open("/bin/sh", O_RDONLY | O_CLOEXEC), status;
    int folder = open("/bin", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    need(shell >= 0 && folder >= 0, "open");
    for (int way = 0; way < EXECS; way++) {
        pid_t child = vfork();
        if (child == 0) {
            dup2(pair.here, 0);
            dup2(0, pair.there);
            close(pair.here);
            end_as_shell(way, shell, folder);
        }
        waitpid(child, &status, 0);
        say(exec_names[way], WEXITSTATUS(status));
        exchange(pair, exec_names[way]);
    }
    /* What a child leaves behind in its parent's memory. */
    size_t before = mallinfo2().uordblks;
    for (int round = 0; round < 200; round++) {
        pid_t child = vfork();
        if (child == 0)
            end_as_shell(2, shell, folder);
        waitpid(child, &status, 0);
    }
    say("memory of children", mallinfo2().uordblks > before + 20000);
    close(shell), close(folder);
    say("execl of nothing", execl("/nonexistent", "a", NULL));
    say("execveat of a bad address", execveat(AT_FDCWD, (char *)8, environ, environ, 0));
    signal(SIGINT, count_interrupt);
    status = system("kill -INT $PPID; exit 8");
    printf("system: %d, %d interrupts\n", WEXITSTATUS(status), interrupts);
    raise(SIGINT);
    printf("afterwards: %d\n", interrupts);
    signal(SIGINT, SIG_DFL);
    say("a shell", system(NULL) != 0);
    say("a signal ends the shell", WTERMSIG(system("kill -KILL $$")));
    say("no mode", popen("exit 0", "x") == NULL);
    FILE *stays = popen("cat", "w"), *closes = popen("exit 9", "re");
    need(stays && closes, "popen");
    say("FD_CLOEXEC", fcntl(fileno(stays), F_GETFD));
    say("FD_CLOEXEC", fcntl(fileno(closes), F_GETFD));
    say("pclose", WEXITSTATUS(pclose(closes)));
    char line[64];
    snprintf(line, sizeof line, "test -e /proc/self/fd/%d", fileno(stays));
    closes = popen(line, "r");
    need(closes != NULL, "popen");
    say("the other stream in a child", WEXITSTATUS(pclose(closes)));
    say("pclose", pclose(stays));
    exchange(pair, "after popen");
    finish(pair);
}

/* A server that forks after listen(2); the child serves. */
static void forked_server(void) {
    int listening = listener();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        epoll_ctl(set, EPOLL_CTL_ADD, listening, &event);
        say("events without a connection", epoll_wait(set, &event, 1, 50));
        struct pair pair = {.here = connected_to(listening)};
        say("events with one", epoll_wait(set, &event, 1, 10000));
        pair.there = accept(listening, NULL, NULL);
        exchange(pair, "in the child");
        exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    say("the child", WEXITSTATUS(status));
    close(listening);
}

/* What Linux has and the library refuses. */
static void refusals(void) {
    struct pair pair = connection();
    int on = 1;
    say("FIOASYNC", ioctl(pair.here, FIOASYNC, &on));
    say("F_SETOWN", fcntl(pair.here, F_SETOWN, getpid()));
    say("sockatmark", sockatmark(pair.here));
    say("io_uring_setup", syscall(SYS_io_uring_setup, 4, NULL));
    int ends[2];
    need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &ends[0], sizeof(int));
    struct iovec piece = {.iov_base = "x", .iov_len = 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    say("SCM_RIGHTS, a file", sendmsg(ends[0], &message, 0));
    memcpy(CMSG_DATA(&control.header), &pair.here, sizeof(int));
    say("SCM_RIGHTS, a connection", sendmsg(ends[0], &message, 0));
    exchange(pair, "afterwards");
    close(ends[0]), close(ends[1]);
    finish(pair);
}

int main(int count, char **arguments) {
    need(count > 1, "an address");
    host = arguments[1];
    if (count > 2) {
        *arguments[2] == 'p' ? be_peer() : refusals();
        return 0;
    }
    forked_server();
    numbers();
    files();
    streams();
    faults();
    signals();
    handlers();
    limits();
    replaced_listener();
    children();
    programs();
    closes();
    puts("end");
    return 0;
}
