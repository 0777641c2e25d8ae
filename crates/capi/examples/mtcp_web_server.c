/*
 * A web server on mTCP's API: one thread and one context for each core, each with its own listener
 * and epoll set; serves the files of one directory from memory.
 *
 *     cc mtcp_web_server.c -o web_server $(pkg-config --cflags --libs megapipe) -lpthread
 *     ./web_server CONFIG DIRECTORY PORT
 *
 * SIGINT ends it. GET and HEAD; connections stay open unless the client sends "Connection: close".
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

enum { FILES_MAX = 256, REQUEST_MAX = 4096, HEADER_MAX = 256, EVENTS = 1024, CORES_MAX = 64 };

/* Files are read once and never change. */
struct file {
    char name[256];
    char *bytes;
    size_t size;
};

static struct file files[FILES_MAX];
static int file_count;
static int port;
static atomic_int stopping;

/* A connection, found by its descriptor. */
struct connection {
    char request[REQUEST_MAX];
    size_t received;
    char header[HEADER_MAX];
    size_t header_size, header_sent;
    const struct file *file; /* the body; none for errors and HEAD */
    size_t body_sent;
    int answering, closing;
};

struct server {
    pthread_t thread;
    int core;
    mctx_t mctx;
    int set, listener;
    struct connection **connections;
    int connections_max;
    int failed;
};

static void on_signal(int signal)
{
    (void)signal;
    stopping = 1;
}

static int load_files(const char *path)
{
    DIR *directory = opendir(path);
    struct dirent *entry;

    if (directory == NULL)
        return -1;
    while ((entry = readdir(directory)) != NULL && file_count < FILES_MAX) {
        struct file *file = &files[file_count];
        char full[4096];
        FILE *stream;
        long size;

        if (entry->d_type != DT_REG)
            continue;
        snprintf(full, sizeof full, "%s/%s", path, entry->d_name);
        if ((stream = fopen(full, "rb")) == NULL)
            continue;
        snprintf(file->name, sizeof file->name, "%s", entry->d_name);
        fseek(stream, 0, SEEK_END);
        size = ftell(stream);
        rewind(stream);
        file->size = size < 0 ? 0 : (size_t)size;
        file->bytes = malloc(file->size + 1);
        if (file->bytes != NULL && fread(file->bytes, 1, file->size, stream) == file->size)
            file_count++;
        fclose(stream);
    }
    closedir(directory);
    return file_count;
}

static const struct file *find_file(const char *name, size_t size)
{
    for (int index = 0; index < file_count; index++)
        if (strlen(files[index].name) == size && memcmp(files[index].name, name, size) == 0)
            return &files[index];
    return NULL;
}

static void watch(struct server *server, int op, int fd, uint32_t events)
{
    struct mtcp_epoll_event event = {.events = events, .data = {.sockid = fd}};

    mtcp_epoll_ctl(server->mctx, server->set, op, fd, &event);
}

static void drop(struct server *server, int fd)
{
    free(server->connections[fd]);
    server->connections[fd] = NULL;
    /* Closing a descriptor removes it from its epoll sets. */
    mtcp_close(server->mctx, fd);
}

/* Whether a header line of the request has this value. */
static int says(const char *request, const char *name, const char *value)
{
    const char *line = strcasestr(request, name);
    const char *end = line ? strstr(line, "\r\n") : NULL;
    const char *found = line ? strcasestr(line, value) : NULL;

    return found != NULL && end != NULL && found < end;
}

/* Builds the response to the request, whose header is complete and ends in a NUL. */
static void prepare(struct connection *connection)
{
    char *request = connection->request;
    int head = strncmp(request, "HEAD /", 6) == 0;
    int get = strncmp(request, "GET /", 5) == 0;
    const char *status = "200 OK";
    size_t size = 0;

    connection->file = NULL;
    if (get || head) {
        char *name = request + (head ? 6 : 5);
        connection->file = find_file(name, strcspn(name, " ?\r\n"));
        status = connection->file ? "200 OK" : "404 Not Found";
    } else {
        status = "501 Not Implemented";
    }
    size = connection->file ? connection->file->size : 0;
    connection->closing = says(request, "\r\nConnection:", "close")
        || (strstr(request, " HTTP/1.0\r\n") && !says(request, "\r\nConnection:", "keep-alive"));
    connection->header_size = (size_t)snprintf(
        connection->header, HEADER_MAX,
        "HTTP/1.1 %s\r\nServer: mtcp_web_server\r\nContent-Length: %zu\r\nConnection: %s\r\n\r\n",
        status, size, connection->closing ? "close" : "keep-alive");
    if (head)
        connection->file = NULL;
    connection->header_sent = connection->body_sent = 0;
    connection->answering = 1;
}

/* Sends the rest of the response: 1 when all is sent, 0 when the socket is full, -1 on failure. */
static int answer(struct server *server, int fd, struct connection *connection)
{
    for (;;) {
        size_t body = connection->file ? connection->file->size - connection->body_sent : 0;
        size_t header = connection->header_size - connection->header_sent;
        struct iovec parts[2] = {
            {connection->header + connection->header_sent, header},
            {body ? connection->file->bytes + connection->body_sent : NULL, body},
        };
        int sent;

        if (header + body == 0)
            return 1;
        sent = mtcp_writev(server->mctx, fd, parts, body ? 2 : 1);
        if (sent < 0)
            return errno == EAGAIN ? 0 : -1;
        if ((size_t)sent < header) {
            connection->header_sent += (size_t)sent;
        } else {
            connection->header_sent += header;
            connection->body_sent += (size_t)sent - header;
        }
    }
}

/* Answers whole requests as long as their responses fit into the buffer. */
static void go_on(struct server *server, int fd, struct connection *connection)
{
    for (;;) {
        char *end;
        size_t head;

        if (connection->answering) {
            int done = answer(server, fd, connection);
            if (done < 0 || (done > 0 && connection->closing)) {
                drop(server, fd);
                return;
            }
            if (done == 0) {
                watch(server, MTCP_EPOLL_CTL_MOD, fd, MTCP_EPOLLOUT);
                return;
            }
            connection->answering = 0;
            watch(server, MTCP_EPOLL_CTL_MOD, fd, MTCP_EPOLLIN);
        }
        connection->request[connection->received] = 0;
        end = strstr(connection->request, "\r\n\r\n");
        if (end == NULL) {
            if (connection->received == REQUEST_MAX - 1)
                drop(server, fd);
            return;
        }
        /* The line end before the empty line belongs to the last header. */
        end[2] = 0;
        prepare(connection);
        head = (size_t)(end + 4 - connection->request);
        connection->received -= head;
        memmove(connection->request, end + 4, connection->received);
    }
}

static void on_readable(struct server *server, int fd)
{
    struct connection *connection = server->connections[fd];
    ssize_t size = mtcp_read(server->mctx, fd, connection->request + connection->received,
                             REQUEST_MAX - 1 - connection->received);

    if (size < 0 && errno == EAGAIN)
        return;
    if (size <= 0) {
        drop(server, fd);
        return;
    }
    connection->received += (size_t)size;
    go_on(server, fd, connection);
}

static void accept_all(struct server *server)
{
    int fd;

    while ((fd = mtcp_accept(server->mctx, server->listener, NULL, NULL)) >= 0) {
        struct connection *connection = calloc(1, sizeof *connection);

        if (fd >= server->connections_max || connection == NULL) {
            free(connection);
            mtcp_close(server->mctx, fd);
            continue;
        }
        server->connections[fd] = connection;
        mtcp_setsock_nonblock(server->mctx, fd);
        watch(server, MTCP_EPOLL_CTL_ADD, fd, MTCP_EPOLLIN);
    }
}

static int open_listener(struct server *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1;

    server->set = mtcp_epoll_create(server->mctx, EVENTS);
    server->listener = mtcp_socket(server->mctx, AF_INET, SOCK_STREAM, 0);
    if (server->set < 0 || server->listener < 0)
        return -1;
    /* Each context has its own listener on the port; another process may not listen there. */
    mtcp_setsockopt(server->mctx, server->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (mtcp_setsock_nonblock(server->mctx, server->listener) < 0
        || mtcp_bind(server->mctx, server->listener, (struct sockaddr *)&address,
                     sizeof address) < 0
        || mtcp_listen(server->mctx, server->listener, 4096) < 0)
        return -1;
    watch(server, MTCP_EPOLL_CTL_ADD, server->listener, MTCP_EPOLLIN);
    return 0;
}

static void *serve(void *argument)
{
    struct server *server = argument;
    static _Thread_local struct mtcp_epoll_event events[EVENTS];

    mtcp_core_affinitize(server->core);
    server->mctx = mtcp_create_context(server->core);
    if (server->mctx == NULL || open_listener(server) < 0) {
        perror("mtcp_web_server");
        server->failed = 1;
        stopping = 1;
        return NULL;
    }
    printf("core %d serves\n", server->core);
    fflush(stdout);
    while (!stopping) {
        int count = mtcp_epoll_wait(server->mctx, server->set, events, EVENTS, -1);

        if (count < 0 && errno != EINTR) {
            perror("mtcp_epoll_wait");
            server->failed = 1;
            break;
        }
        for (int index = 0; index < count; index++) {
            int fd = events[index].data.sockid;

            if (fd == server->listener)
                accept_all(server);
            else if (events[index].events & (MTCP_EPOLLERR | MTCP_EPOLLHUP))
                drop(server, fd);
            else if (server->connections[fd]->answering)
                go_on(server, fd, server->connections[fd]);
            else
                on_readable(server, fd);
        }
    }
    mtcp_destroy_context(server->mctx);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct server servers[CORES_MAX];
    struct mtcp_conf conf;
    int failed = 0;

    if (argc != 4) {
        fprintf(stderr, "usage: %s CONFIG DIRECTORY PORT\n", argv[0]);
        return 2;
    }
    port = atoi(argv[3]);
    if (load_files(argv[2]) < 0) {
        perror(argv[2]);
        return 1;
    }
    if (mtcp_init(argv[1]) < 0)
        return 1;
    mtcp_register_signal(SIGINT, on_signal);
    mtcp_getconf(&conf);
    if (conf.num_cores > CORES_MAX)
        conf.num_cores = CORES_MAX;
    for (int core = 0; core < conf.num_cores; core++) {
        struct server *server = &servers[core];

        server->core = core;
        server->connections_max = conf.max_concurrency + 1024;
        server->connections = calloc((size_t)server->connections_max, sizeof(void *));
        if (server->connections == NULL
            || pthread_create(&server->thread, NULL, serve, server) != 0)
            return 1;
    }
    for (int core = 0; core < conf.num_cores; core++) {
        pthread_join(servers[core].thread, NULL);
        failed |= servers[core].failed;
    }
    mtcp_destroy();
    return failed;
}
