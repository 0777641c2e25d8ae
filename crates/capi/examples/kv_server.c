/*
 * A key-value server: `set KEY VALUE`, `get KEY` and `del KEY`, each on a line.
 *
 *     cc kv_server.c -o kv_server $(pkg-config --cflags --libs megapipe)
 *     ./kv_server 7000
 *     printf 'set a 1\nget a\n' | nc -q 1 127.0.0.1 7000
 *
 * Answers are lines too: `stored`, `value VALUE`, `deleted`, `not found`, `error REASON`. A client
 * may send several requests before it reads: their answers leave in one write, and the next read
 * starts when that write has completed. The memory of a client is thus bounded.
 *
 * Port 0 lets the kernel choose; the port is printed. SIGINT and SIGTERM end the server.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _POSIX_C_SOURCE 200809L

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <megapipe.h>

enum {
    BUCKETS = 4096,
    LINE_MAX_BYTES = 1024,
    ENTRIES_MAX = 100000,
    /* Answers of one write; requests that would not fit are executed after it. */
    ANSWERS_BYTES = 32 * LINE_MAX_BYTES,
};

struct entry {
    struct entry *next;
    char *key;
    char *value;
};

/* A client, with the requests that have arrived and the answers that leave. */
struct client {
    mp_handle_t handle;
    size_t used;
    size_t answered;
    char requests[LINE_MAX_BYTES];
    char answers[ANSWERS_BYTES];
};

static struct entry *buckets[BUCKETS];
static size_t entry_count;
static mp_channel_t *channel;
static volatile sig_atomic_t stopping;

static void fail(void)
{
    fprintf(stderr, "kv_server: %s\n", mp_last_error());
    exit(EXIT_FAILURE);
}

static void on_signal(int signal)
{
    int saved = errno;

    (void)signal;
    stopping = 1;
    mp_wake(channel);
    errno = saved;
}

/* The place that points to the entry of a key, or to the end of its list. */
static struct entry **find(const char *key)
{
    unsigned hash = 2166136261u;
    struct entry **place;

    for (const char *byte = key; *byte != '\0'; byte++)
        hash = (hash ^ (unsigned char)*byte) * 16777619u;
    for (place = &buckets[hash % BUCKETS]; *place != NULL; place = &(*place)->next)
        if (strcmp((*place)->key, key) == 0)
            break;
    return place;
}

static const char *set(const char *key, const char *value)
{
    struct entry **place = find(key), *entry = *place;
    char *copy = strdup(value);

    if (copy == NULL)
        return "error no memory";
    if (entry != NULL) {
        free(entry->value);
        entry->value = copy;
        return "stored";
    }
    entry = entry_count < ENTRIES_MAX ? calloc(1, sizeof(*entry)) : NULL;
    if (entry == NULL || (entry->key = strdup(key)) == NULL) {
        free(entry);
        free(copy);
        return "error no memory";
    }
    entry->value = copy;
    *place = entry;
    entry_count++;
    return "stored";
}

static const char *del(const char *key)
{
    struct entry **place = find(key), *entry = *place;

    if (entry == NULL)
        return "not found";
    *place = entry->next;
    free(entry->key);
    free(entry->value);
    free(entry);
    entry_count--;
    return "deleted";
}

static void answer(struct client *client, const char *text, const char *value)
{
    size_t room = sizeof(client->answers) - client->answered;

    client->answered += (size_t)snprintf(client->answers + client->answered, room, "%s%s%s\n", text,
                                         value == NULL ? "" : " ", value == NULL ? "" : value);
}

/* Executes one request, a line without its end. */
static void execute(struct client *client, char *line)
{
    char *rest = NULL;
    const char *command = strtok_r(line, " \r", &rest);
    const char *key = strtok_r(NULL, " \r", &rest);
    const char *value = strtok_r(NULL, "\r", &rest);
    const struct entry *entry;

    if (command == NULL || key == NULL) {
        answer(client, "error a command and a key are missing", NULL);
    } else if (strcmp(command, "set") == 0 && value != NULL) {
        answer(client, set(key, value), NULL);
    } else if (strcmp(command, "get") == 0 && value == NULL) {
        entry = *find(key);
        answer(client, entry == NULL ? "not found" : "value", entry == NULL ? NULL : entry->value);
    } else if (strcmp(command, "del") == 0 && value == NULL) {
        answer(client, del(key), NULL);
    } else {
        answer(client, "error the commands are set KEY VALUE, get KEY, del KEY", NULL);
    }
}

/* Executes complete lines while there is room for the longest answer; false: a line is too long. */
static bool execute_lines(struct client *client)
{
    char *line = client->requests, *end = client->requests + client->used, *newline;

    while (client->answered + LINE_MAX_BYTES < sizeof(client->answers) &&
           (newline = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        *newline = '\0';
        execute(client, line);
        line = newline + 1;
    }
    client->used = (size_t)(end - line);
    memmove(client->requests, line, client->used);
    return client->used < sizeof(client->requests);
}

static void read_more(struct client *client)
{
    size_t room = sizeof(client->requests) - client->used;

    if (mp_read(client->handle, client->requests + client->used, room) < 0)
        fail();
}

static void remove_client(struct client *client)
{
    mp_unregister(client->handle, NULL);
    free(client);
}

/* Sends the answers, or reads on where there are none. */
static void proceed(struct client *client)
{
    if (!execute_lines(client))
        remove_client(client);
    else if (client->answered == 0)
        read_more(client);
    else if (mp_write(client->handle, client->answers, client->answered) < 0)
        fail();
}

static void on_accept(const struct mp_event *event)
{
    struct client *client;

    if (event->error != 0)
        return; /* out of descriptors, for example: the other clients are served on */
    client = malloc(sizeof(*client));
    if (client == NULL) {
        mp_unregister(event->connection, NULL);
        return;
    }
    client->handle = event->connection;
    client->used = client->answered = 0;
    if (mp_set_cookie(client->handle, client) < 0)
        fail();
    read_more(client);
}

static void on_event(const struct mp_event *event)
{
    struct client *client = event->cookie;

    if (event->cmd == MP_ACCEPT) {
        on_accept(event);
    } else if (event->cmd == MP_READ || event->cmd == MP_WRITE) {
        if (event->error != 0 || event->size == 0) {
            remove_client(client);
            return;
        }
        if (event->cmd == MP_READ)
            client->used += event->size;
        else
            client->answered = 0;
        proceed(client);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);
    struct sigaction action = {.sa_handler = on_signal};
    struct mp_event event;
    mp_handle_t listener;

    if (argc != 2) {
        fprintf(stderr, "usage: kv_server PORT\n");
        return EXIT_FAILURE;
    }
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((in_port_t)atoi(argv[1]));
    channel = mp_create(NULL);
    if (channel == NULL)
        fail();
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    listener = mp_listen(channel, (struct sockaddr *)&address, size, NULL, NULL);
    if (listener == MP_NO_HANDLE || mp_accept(listener, MP_ALWAYS, MP_AS_LWSOCKET) < 0 ||
        mp_local_address(listener, (struct sockaddr *)&address, &size) < 0)
        fail();
    printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    while (!stopping) {
        if (mp_dispatch(channel, &event, MP_FOREVER) < 0)
            fail();
        on_event(&event);
    }
    mp_destroy(channel);
    return EXIT_SUCCESS;
}
