// SPDX-License-Identifier: MIT
// How a trace is written: by the simulated device (trace.c) and, on hardware, by the library
// of grading/trace/. grading/tracing.py reads it. One record a line, tabs between the fields,
// times in microseconds; CALL numbers the calls, and an op carries that of the call it is from:
//
//     labtrace 1 BACKEND
//     T GROUP NAME COUNT NS              totals of the whole program, renewed in place
//     B VISIT REGION TIME                the lab's region of that name begins ...
//     E VISIT TIME                       ... and ends
//     C VISIT CALL NAME START END RESULT STREAM EVENT RECORD FROM FLAGS
//     A VISIT CALL KIND NAME DEVICE START END BYTES
//     D REGION COUNT                     lines of it that were left out: see below
//     Z LOST                             the program came to its end; records lost on the way
//
// Streams and events are numbered in the order of their creation; stream 0 is the default
// stream, and - stands for none. RECORD numbers the records of events: of a wait, the one that
// it waits for, which was made in stream FROM; 0: none yet. FLAGS: b the event's waiter sleeps, d it has no
// time, c inside a capture, - none of these; xN merges N calls, questions that were asked in a
// row.
//
// Calls and ops are written down inside regions only, of each region RECORDS in at most VISITS
// visits; the rest is counted. The file is mapped: whatever the program dies of, what was
// written is there.
#ifndef TRACE_LOG_H
#define TRACE_LOG_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    LOG_BYTES = 16 << 20,  // of a file at most
    LOG_LINE = 256,        // of a line at most
    LOG_TOTALS = 96,       // names that are counted
    LOG_TOTAL = 112,       // bytes of the line of one
    LOG_REGIONS = 32,
    LOG_VISITS = 32,
    LOG_RECORDS = 4000,
};

struct log_call {
    uint64_t call;
    const char *name;
    double start, end;
    int result;
    long stream, event;  // < 0: none
    uint64_t record;
    long from;
    bool sleeps, no_timing, captured;
};

struct log_op {
    uint64_t call;
    const char *kind, *name;  // kind: kernel copy_in copy_out copy memset host
    int device;
    double start, end;
    uint64_t bytes;
};

static struct {
    char *map;  // NULL: no trace is wanted
    int file, pid;
    size_t used;
    atomic_flag busy;
    struct {
        char group[8], name[48];
        uint64_t count, ns;
        char *line;
    } total[LOG_TOTALS];
    int totals;
    struct {
        char name[40];
        int visits, records;
    } region[LOG_REGIONS];
    int regions;
    struct {
        uint64_t first, last;
        int region;
    } visit[LOG_REGIONS * LOG_VISITS];
    int visits, open;       // open: the visit that goes on, or -1
    struct log_call asked;  // a question like the last one, asked again: written when it ends
    uint64_t times;
    uint64_t lost;
} trace_log = {.open = -1, .busy = ATOMIC_FLAG_INIT};

// A library's own thread writes as well as the program's.
static inline void log_lock(void) {
    while (atomic_flag_test_and_set_explicit(&trace_log.busy, memory_order_acquire))
        ;
}

static inline void log_unlock(void) {
    atomic_flag_clear_explicit(&trace_log.busy, memory_order_release);
}

__attribute__((format(printf, 2, 3))) static inline void log_line(int region,
                                                                  const char *format, ...) {
    char line[LOG_LINE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (region >= 0 && trace_log.region[region].records++ >= 2 * LOG_RECORDS)
        return;  // log_close says so
    if (trace_log.used + LOG_LINE > LOG_BYTES || length >= LOG_LINE) {
        trace_log.lost++;
        return;
    }
    memcpy(trace_log.map + trace_log.used, line, (size_t)length);
    trace_log.used += (size_t)length;
}

// Whether the log is meant for this program, and not for the one that started it, as lab 04
// starts two before it uses the GPU: LAB_TRACE_PARENT is the process whose children are traced.
static inline bool log_is_ours(void) {
    const char *parent = getenv("LAB_TRACE_PARENT");
    return parent == NULL || atoi(parent) == (int)getppid();
}

// False if the file exists already, or cannot be written: then nothing else does anything.
static inline bool log_open(const char *path, const char *backend) {
    trace_log.file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (trace_log.file < 0 || ftruncate(trace_log.file, LOG_BYTES) != 0)
        return false;
    char *map = mmap(NULL, LOG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, trace_log.file, 0);
    if (map == MAP_FAILED)
        return false;
    trace_log.map = map;
    trace_log.pid = (int)getpid();
    log_line(-1, "labtrace 1 %s\n", backend);
    memset(map + trace_log.used, '\n', LOG_TOTALS * LOG_TOTAL);  // room for the totals
    trace_log.used += LOG_TOTALS * LOG_TOTAL;
    return true;
}

static inline void log_digits(char *to, int width, uint64_t value) {
    while (width-- > 0) {
        to[width] = (char)('0' + value % 10);
        value /= 10;
    }
}

static inline void log_count(const char *group, const char *name, double us) {
    int i = trace_log.totals - 1;
    while (i >= 0 && (strncmp(trace_log.total[i].name, name, 47) != 0 ||
                      strcmp(trace_log.total[i].group, group) != 0))
        i--;
    if (i < 0) {
        if (trace_log.totals == LOG_TOTALS)
            return;
        i = trace_log.totals;
        snprintf(trace_log.total[i].group, sizeof trace_log.total[i].group, "%s", group);
        snprintf(trace_log.total[i].name, sizeof trace_log.total[i].name, "%s", name);
        char text[LOG_TOTAL];
        int length = snprintf(text, sizeof text, "T\t%s\t%s\t", trace_log.total[i].group,
                              trace_log.total[i].name);
        char *place = strchr(trace_log.map, '\n') + 1 + (size_t)i * LOG_TOTAL;
        memcpy(place, text, (size_t)length);
        trace_log.total[i].line = place + length;
        trace_log.total[i].line[10] = '\t';
        trace_log.totals++;
    }
    trace_log.total[i].ns += (uint64_t)(us * 1e3 + 0.5);
    log_digits(trace_log.total[i].line, 10, ++trace_log.total[i].count);
    log_digits(trace_log.total[i].line + 11, 18, trace_log.total[i].ns);
}

// The visit that a call is in, or -1.
static inline int log_visit_of(uint64_t call) {
    int low = 0, high = trace_log.visits;  // the last visit that began by then is below high
    while (low < high) {
        int middle = (low + high) / 2;
        if (trace_log.visit[middle].first <= call)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && call <= trace_log.visit[low - 1].last ? low - 1 : -1;
}

static inline void log_asked(void) {
    const struct log_call *c = &trace_log.asked;
    if (trace_log.times == 0)
        return;
    int visit = log_visit_of(c->call);
    if (visit >= 0)
        log_line(trace_log.visit[visit].region,
                 "C\t%d\t%llu\t%s\t%.3f\t%.3f\t%d\t%ld\t%ld\t%llu\t%ld\tx%llu\n", visit,
                 (unsigned long long)c->call, c->name, c->start, c->end, c->result, c->stream,
                 c->event, (unsigned long long)c->record, c->from,
                 (unsigned long long)trace_log.times);
    trace_log.times = 0;
}

// The region begins, or, without a name, ends. `next` is the number of the next call.
static inline void log_region(const char *name, uint64_t next, double now) {
    log_lock();
    log_asked();
    if (trace_log.open >= 0) {
        trace_log.visit[trace_log.open].last = next - 1;
        log_line(-1, "E\t%d\t%.3f\n", trace_log.open, now);
        trace_log.open = -1;
    }
    int i = 0;
    while (name != NULL && i < trace_log.regions && strcmp(trace_log.region[i].name, name) != 0)
        i++;
    if (name != NULL && i == trace_log.regions && i < LOG_REGIONS &&
        strlen(name) < sizeof trace_log.region[i].name && strpbrk(name, "\t\n") == NULL)
        strcpy(trace_log.region[trace_log.regions++].name, name);
    if (name != NULL && i < trace_log.regions && trace_log.region[i].visits < LOG_VISITS &&
        trace_log.region[i].records < LOG_RECORDS) {
        trace_log.open = trace_log.visits++;
        trace_log.region[i].visits++;
        trace_log.visit[trace_log.open].region = i;
        trace_log.visit[trace_log.open].first = next;
        trace_log.visit[trace_log.open].last = UINT64_MAX;
        log_line(-1, "B\t%d\t%s\t%.3f\n", trace_log.open, name, now);
    }
    log_unlock();
}

// A call that succeeded, or a question (cudaEventQuery ...) whatever the answer.
static inline void log_write_call(const struct log_call *c) {
    log_lock();
    log_count("call", c->name, 0.0);
    if (c->sleeps && strcmp(c->name, "cudaEventSynchronize") == 0)
        log_count("fact", "sleeping_waits", 0.0);
    if (strcmp(c->name, "cudaStreamWaitEvent") == 0 && c->record > 0 && c->from != c->stream)
        log_count("fact", "waits", 0.0);
    bool question = strstr(c->name, "Query") != NULL;
    int visit = trace_log.open;
    if (visit >= 0 && trace_log.times > 0 &&
        (!question || c->event != trace_log.asked.event || c->stream != trace_log.asked.stream))
        log_asked();
    if (visit >= 0 && question) {
        if (trace_log.times++ == 0)
            trace_log.asked = *c;
        trace_log.asked.end = c->end;
        trace_log.asked.result = c->result;
    } else if (visit >= 0)
        log_line(trace_log.visit[visit].region,
                 "C\t%d\t%llu\t%s\t%.3f\t%.3f\t%d\t%ld\t%ld\t%llu\t%ld\t%s%s%s%s\n", visit,
                 (unsigned long long)c->call, c->name, c->start, c->end, c->result, c->stream,
                 c->event, (unsigned long long)c->record, c->from, c->sleeps ? "b" : "",
                 c->no_timing ? "d" : "", c->captured ? "c" : "",
                 c->sleeps || c->no_timing || c->captured ? "" : "-");
    log_unlock();
}

// An op that has ended.
static inline void log_write_op(const struct log_op *op) {
    log_lock();
    log_count("ran", strcmp(op->kind, "kernel") == 0 ? op->name : op->kind,
              op->end - op->start);
    int visit = log_visit_of(op->call);
    if (visit >= 0)
        log_line(trace_log.visit[visit].region, "A\t%d\t%llu\t%s\t%s\t%d\t%.3f\t%.3f\t%llu\n",
                 visit, (unsigned long long)op->call, op->kind, op->name, op->device, op->start,
                 op->end, (unsigned long long)op->bytes);
    log_unlock();
}

// At the program's own end. A child that it forked has nothing to say here.
static inline void log_close(void) {
    if (trace_log.map == NULL || trace_log.pid != (int)getpid())
        return;
    log_lock();
    log_asked();
    for (int i = 0; i < trace_log.regions; i++)
        if (trace_log.region[i].records > 2 * LOG_RECORDS)
            log_line(-1, "D\t%s\t%d\n", trace_log.region[i].name,
                     trace_log.region[i].records - 2 * LOG_RECORDS);
    log_line(-1, "Z\t%llu\n", (unsigned long long)trace_log.lost);
    log_unlock();
    if (ftruncate(trace_log.file, (off_t)trace_log.used) != 0)
        return;  // the reader stops where nothing was written
}

#endif
