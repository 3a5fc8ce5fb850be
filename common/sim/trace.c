// SPDX-License-Identifier: MIT
// SIM_TRACE=file: what the host called and what the devices ran, as the tracer of real GPUs
// writes it (trace_log.h). The program's own work takes no virtual time, so a call ends where
// the clock stands when the host does the next thing. Tracing takes none either.
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#include "trace_log.h"

static const char *const traced[] = {
    "cudaLaunchKernel",      "cudaMemcpy",
    "cudaMemcpyAsync",       "cudaMemset",
    "cudaMemsetAsync",       "cudaGraphLaunch",
    "cudaEventRecord",       "cudaStreamWaitEvent",
    "cudaEventSynchronize",  "cudaStreamSynchronize",
    "cudaEventQuery",        "cudaStreamQuery",
    "cudaDeviceSynchronize",
};
static struct log_call call = {.stream = -1, .event = -1, .from = -1};
static uint64_t calls, records;
static bool pending;  // the call is still to be written

static bool tracing(void) { return trace_log.map != NULL && trace_log.pid == (int)getpid(); }

static void end(void) {
    trace_close();
    gpu_advance(sim.now);
    log_close();
}

void trace_open(const char *path) {
    if (!log_is_ours() || !log_open(path, "simulated"))
        return;  // another process of this program has it, or it cannot be written
    atexit(end);
}

void trace_close(void) {
    if (!pending || !tracing())
        return;
    pending = false;
    call.end = sim.now;
    log_write_call(&call);
}

// A call begins.
void trace_call(const char *name) {
    if (!tracing())
        return;
    trace_close();
    call = (struct log_call){
        .call = ++calls, .name = NULL, .start = sim.now, .stream = -1, .event = -1, .from = -1};
    for (size_t i = 0; i < sizeof traced / sizeof traced[0]; i++)
        if (strcmp(name, traced[i]) == 0)
            call.name = traced[i];
    pending = call.name != NULL;
}

uint64_t trace_this_call(void) { return calls; }

// What the call is about.
void trace_stream(const struct CUstream_st *stream) {
    if (call.stream < 0)
        call.stream = stream->number;
    call.captured |= capturing(stream);
}

void trace_event(struct CUevent_st *event, bool records_it) {
    call.event = event->number;
    call.sleeps = event->flags & cudaEventBlockingSync;
    call.no_timing = event->flags & cudaEventDisableTiming;
    call.captured |= event->capture != NULL;
    if (records_it && !call.captured) {
        event->record = ++records;
        event->recorded_in = (int)call.stream;
    }
    call.record = event->record;
    call.from = event->record > 0 ? event->recorded_in : -1;
    if (call.captured)
        call.record = 0, call.from = -1;
}

void trace_failed(void) { pending = false; }

void trace_answer(cudaError_t answer) { call.result = (int)answer; }

void trace_op(const struct op *op) {
    if (!tracing() || op->kind >= OP_GRAPH)
        return;
    struct log_op one = {.call = op->call,
                         .device = op->device->id,
                         .start = op->start,
                         .end = op->end,
                         .bytes = op->bytes};
    one.kind = op->kind == OP_KERNEL                     ? "kernel"
               : op->kind == OP_MEMSET                   ? "memset"
               : op->kind == OP_HOST                     ? "host"
               : strcmp(op->name, "copy to device") == 0 ? "copy_in"
               : strcmp(op->name, "copy to host") == 0   ? "copy_out"
                                                         : "copy";
    one.name = op->kind == OP_KERNEL ? op->name : one.kind;
    if (op->kind == OP_KERNEL)  // with what an empty one takes, as a GPU reports it
        one.start -= op->stream == NULL ? param.graph_node_us : param.kernel_us;
    log_write_op(&one);
}

void sim_region(const char *name) {
    if (!tracing())
        return;
    trace_close();
    log_region(name, calls + 1, sim.now);
}
