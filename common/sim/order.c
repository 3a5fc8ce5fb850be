// SPDX-License-Identifier: MIT
// Reports of unordered access: two ops of different streams on the same bytes, one of them
// writing, and nothing that makes one come before the other. What comes before what is kept
// in vector clocks, which streams pass on through events, the host's synchronizing and the
// default stream's rules. It does not matter for a report whether this run went wrong.
//
// The bytes of a copy are known, and those of a kernel have been watched.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { LOGS_MAX = 512, PAIRS_MAX = 256 };

struct access_log {
    const char *begin, *end;
    bool writes;
    int stream, number;
    uint64_t seq, serial;
    const char *name;
    struct site site;
};

static void reserve(struct order *order, int count) {
    if (order->count >= count)
        return;
    order->seen = realloc(order->seen, (size_t)count * sizeof *order->seen);
    memset(order->seen + order->count, 0, (size_t)(count - order->count) * sizeof *order->seen);
    order->count = count;
}

void order_join(struct order *into, const struct order *from) {
    reserve(into, from->count);
    for (int i = 0; i < from->count; i++)
        if (into->seen[i] < from->seen[i])
            into->seen[i] = from->seen[i];
}

void order_copy(struct order *to, const struct order *from) {
    to->seen = realloc(to->seen, (size_t)(from->count + 1) * sizeof *to->seen);
    to->count = from->count;
    if (from->count > 0)
        memcpy(to->seen, from->seen, (size_t)from->count * sizeof *to->seen);
}

// Called as an op enters its stream's queue.
void order_submit(struct op *op) {
    struct CUstream_st *stream = op->stream;
    struct device *device = stream->device;
    order_join(&stream->order, &sim.host);
    if (stream == device->legacy) {
        for (int i = 0; i < sim.streams; i++)
            if (sim.stream[i]->device == device && sim.stream[i]->blocking)
                order_join(&stream->order, &sim.stream[i]->order);
    } else if (stream->blocking)
        order_join(&stream->order, &device->legacy->order);
    reserve(&stream->order, stream->index + 1);
    stream->order.seen[stream->index] = op->seq;
    op->serial = ++sim.serial;
    if (op->kind == OP_COPY || op->kind == OP_MEMSET || op->kind == OP_GRAPH ||
        (op->kind == OP_KERNEL && op->launch->touches))
        order_copy(&op->order, &stream->order);
}

// ---- Lines that say `unordered on purpose`
static struct {
    const char *file;
    const int *lines;
} purposes[64];
static int purpose_count;

void sim_unordered_on_purpose(const char *file, const int *lines) {
    if (purpose_count < 64) {
        purposes[purpose_count].file = file;
        purposes[purpose_count++].lines = lines;
    }
}

static bool on_purpose(const struct site *site) {
    for (int i = 0; i < purpose_count; i++)
        if (site->file != NULL && strcmp(purposes[i].file, site->file) == 0)
            for (const int *line = purposes[i].lines; *line != 0; line++)
                if (*line == site->line)
                    return true;
    return false;
}

static void report(const struct access_log *first, const struct access_log *second,
                   const struct allocation *a) {
    static struct site pairs[PAIRS_MAX][2];
    static int pair_count;
    char one[24], other[24];
    for (int i = 0; i < pair_count; i++)
        if (pairs[i][0].line == first->site.line && pairs[i][1].line == second->site.line &&
            pairs[i][0].file == first->site.file && pairs[i][1].file == second->site.file)
            return;
    if (on_purpose(&first->site) || on_purpose(&second->site) || pair_count == PAIRS_MAX)
        return;
    pairs[pair_count][0] = first->site;
    pairs[pair_count++][1] = second->site;
    snprintf(one, sizeof one, first->number ? "stream %d" : "the default stream",
             first->number);
    snprintf(other, sizeof other, second->number ? "stream %d" : "the default stream",
             second->number);
    fprintf(stderr,
            "sim: unordered access: %s (%s, %s:%d) %s what %s (%s, %s:%d) %s (%zu bytes at "
            "%s); "
            "missing edge: record an event after line %d in %s and make %s wait for it before "
            "line %d\n",
            second->name, other, second->site.file, second->site.line,
            second->writes ? "writes" : "reads", first->name, one, first->site.file,
            first->site.line, first->writes ? "writes" : "reads", a->bytes,
            a->name[0] ? a->name : "an allocation", first->site.line, one, other,
            second->site.line);
}

// Notes that an op touches [pointer, pointer + bytes) and compares it with earlier notes.
void order_access(struct op *op, const void *pointer, size_t bytes, bool writes) {
    struct allocation *a = allocation_at(pointer);
    const char *name = op->name;
    struct site site = op->site;
    if (a == NULL)
        return;
    if (op->stream == NULL)
        op = graph_parent(op);  // a graph's nodes count as one op: they order themselves
    struct access_log now = {.begin = pointer,
                             .end = (const char *)pointer + bytes,
                             .writes = writes,
                             .stream = op->stream->index,
                             .number = op->stream->number,
                             .seq = op->seq,
                             .serial = op->serial,
                             .name = name,
                             .site = site};
    struct access_log *same = NULL;
    for (int i = 0; i < a->logs; i++) {
        struct access_log *log = &a->log[i];
        if (log->stream == now.stream) {
            if (log->begin == now.begin && log->end == now.end && log->writes == writes)
                same = log;
            continue;
        }
        bool overlap = log->begin < now.end && now.begin < log->end;
        bool before = log->stream < op->order.count && log->seq <= op->order.seen[log->stream];
        if (overlap && !before && (log->writes || writes)) {
            bool first = log->serial < now.serial;
            report(first ? log : &now, first ? &now : log, a);
        }
    }
    if (same == NULL) {
        if (a->logs == LOGS_MAX)  // forget the oldest: a report may be missed, never made up
            memmove(a->log, a->log + 1, (size_t)--a->logs * sizeof *a->log);
        a->log = grow(a->log, a->logs, sizeof *a->log);
        same = &a->log[a->logs++];
    }
    *same = now;
}
