// SPDX-License-Identifier: MIT
// The discrete-event model: when each op starts and ends. The devices are worked out up to
// the host's time whenever the host looks, event by event in the order of time, so an op is
// only ever affected by what was submitted before it started.
#include "sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A part of a running op that ends at one moment: the blocks of a kernel that were placed
// together, or the whole of anything else.
struct slot {
    struct op *op;
    double end;
    unsigned blocks;
    unsigned char on_sm[SMS_MAX];
};

static struct slot **running;
static int running_count;
static struct op **floating;
static int floating_count;

struct op *op_new(enum op_kind kind, const char *name) {
    struct op *op = calloc(1, sizeof *op);
    op->kind = kind;
    op->name = name;
    op->site = sim.site;
    op->ready = -1.0;
    op->tried = sim.freed - 1;
    op->engine = ENGINE_NONE;
    op->device = current_device();
    op->call = trace_this_call();
    return op;
}

void op_free(struct op *op) {
    if (op->kind == OP_GRAPH && op->run != NULL)
        graph_run_free(op->run);
    free(op->launch);
    pages_free(op->pages);
    touched_release(op->touched);
    free(op->staged);
    free(op->order.seen);
    free(op);
}

static struct slot *slot_start(struct op *op, double end) {
    struct slot *slot = calloc(1, sizeof *slot);
    slot->op = op;
    slot->end = end;
    running = grow(running, running_count, sizeof *running);
    running[running_count++] = slot;
    return slot;
}

double clock_ghz(const struct device *device, double at) {
    return (at < device->warm_since ? param.cold_clock_mhz : param.clock_mhz) / 1e3;
}

// Work that has been left alone too long finds the clock low, and for a while.
static void device_wakes(struct device *device, double now) {
    if (now > device->busy_until + param.cold_after_us)
        device->warm_since = now + param.clock_ramp_us;
}

// Gives all the work of a device that shares a bandwidth its speed from now on.
static void share_bandwidth(struct device *device, double now) {
    double demand = 0.0;
    for (int i = 0; i < running_count; i++) {
        struct op *op = running[i]->op;
        if (op->device != device || op->speed == 0.0)
            continue;
        op->left -= (now - op->since) * op->speed;
        op->since = now;
        demand += op->demand;
    }
    bool both = device->engine[ENGINE_H2D] != NULL && device->engine[ENGINE_D2H] != NULL;
    for (int i = 0; i < running_count; i++) {
        struct op *op = running[i]->op;
        if (op->device != device || op->speed == 0.0)
            continue;
        op->speed = 1.0;
        if (op->kind == OP_COPY && op->engine != ENGINE_NONE && both)
            op->speed = param.both_directions;
        if (op->demand > 0.0)
            op->speed = op->demand / fmax(1.0, demand);
        running[i]->end = now + (op->left > 0.0 ? op->left : 0.0) / op->speed;
    }
}

static void start_shared(struct op *op, double now, double full_speed_us, double demand) {
    op->left = full_speed_us;
    op->speed = 1.0;
    op->since = now;
    op->demand = demand;
    slot_start(op, INFINITY);
    share_bandwidth(op->device, now);
}

// Places as many of a kernel's blocks as there is room for, one an SM in turn.
static struct slot *place_blocks(struct op *op) {
    struct device *device = op->device;
    struct slot *slot = op->slot;  // a kernel timed by its bytes has one, which grows
    int without_room = 0, sms = (int)param.sms;
    bool placed = false;
    while (op->blocks_to_place > 0 && without_room < sms) {
        int i = device->next_sm;
        struct sm *sm = &device->sm[i];
        device->next_sm = i + 1 < sms ? i + 1 : 0;
        if (sm->blocks < op->each.blocks || sm->threads < op->each.threads ||
            sm->shared < op->each.shared) {
            without_room++;
            continue;
        }
        without_room = 0;
        if (slot == NULL)
            slot = slot_start(op, INFINITY);
        sm->blocks -= op->each.blocks;
        sm->threads -= op->each.threads;
        sm->shared -= op->each.shared;
        slot->on_sm[i]++;
        slot->blocks++;
        op->blocks_to_place--;
        placed = true;
    }
    return placed ? slot : NULL;
}

// Starts what finds room of a kernel's blocks.
static void start_blocks(struct op *op, double now) {
    if (op->start < 0.0) {
        dim3 block = op->launch->block;
        op->each = (struct sm){in_whole_warps((uint64_t)block.x * block.y * block.z), 1,
                               (int)kernel_shared(op->kernel, op->launch->shared)};
    }
    struct slot *slot = place_blocks(op);
    if (slot == NULL)
        return;
    double overhead = 0.0;
    if (op->start < 0.0) {
        overhead = op->stream == NULL ? param.graph_node_us : param.kernel_us;
        op->start = now + overhead;
        kernel_begin(op);
        if (op->demand > 0.0) {
            op->slot = slot;
            op->speed = 1.0;
            op->since = now;
            op->left = op->block_us;
        }
    }
    if (op->demand > 0.0) {
        // Few SMs cannot use all of the bandwidth.
        int used = 0;
        for (int i = 0; i < (int)param.sms; i++)
            used += slot->on_sm[i] > 0;
        op->demand = fmin(1.0, used * param.sm_gbps / param.memory_gbps);
        op->left += overhead * op->demand;  // which is no slower for that
        share_bandwidth(op->device, now);
    } else
        slot->end = now + overhead + op->block_us;
}

static void undispatch(struct device *device, int i) {
    device->dispatch_count--;
    memmove(device->dispatch + i, device->dispatch + i + 1,
            (size_t)(device->dispatch_count - i) * sizeof device->dispatch[0]);
}

// Kernels' blocks go to the SMs in the order in which the kernels became ready, those of a
// stream of higher priority first; a later kernel gets what an earlier one leaves.
static void dispatch(struct device *device, double now) {
    while (device->dispatch_count > 0) {
        struct op *op = device->dispatch[0];
        start_blocks(op, now);
        if (op->blocks_to_place > 0)
            return;
        undispatch(device, 0);
    }
}

static int priority_of(const struct op *op) { return op->stream ? op->stream->priority : 0; }

// Starts an op that is ready. False if it must wait until something else ends.
static bool op_start(struct op *op, double now) {
    struct device *device = op->device;
    if (op->kind == OP_KERNEL) {
        if (device->dispatch_count == DISPATCH_MAX)
            return false;
        device_wakes(device, now);
        int i = device->dispatch_count++;
        for (; i > 0 && priority_of(device->dispatch[i - 1]) > priority_of(op); i--)
            device->dispatch[i] = device->dispatch[i - 1];
        device->dispatch[i] = op;
        op->start = -1.0;
        dispatch(device, now);
        return true;
    }
    op->start = now;
    switch (op->kind) {
    case OP_COPY:
        if (op->engine != ENGINE_NONE) {
            if (device->engine[op->engine] != NULL)
                return false;
            device->engine[op->engine] = op;
        }
        start_shared(op, now, param.copy_setup_us + (double)op->bytes / (1e3 * op->gbps), 0.0);
        break;
    case OP_MEMSET:
        device_wakes(device, now);
        start_shared(op, now, param.kernel_us + (double)op->bytes / (1e3 * param.memory_gbps),
                     1.0);
        break;
    case OP_GRAPH:
        graph_start(op, now);
        break;
    case OP_RECORD:
        slot_start(op,
                   now + (op->event->flags & cudaEventDisableTiming ? param.event_us
                                                                    : param.event_timing_us));
        break;
    case OP_HOST:
        slot_start(op, now + param.host_func_us);
        break;
    default:
        slot_start(op, now);
    }
    return true;
}

// What an op has done shows in memory, to events and to the host.
static void take_effect(struct op *op, double now) {
    switch (op->kind) {
    case OP_KERNEL:
        kernel_effects(op);
        break;
    case OP_COPY:
        if (op->engine != ENGINE_NONE)
            op->device->engine[op->engine] = NULL;
        copy_effects(op);
        break;
    case OP_MEMSET:
        copy_effects(op);
        break;
    case OP_FREE:
        allocation_release(op->to);
        break;
    case OP_RECORD:
        event_recorded(op->event, op, now);
        break;
    default:
        break;
    }
}

void engine_done(struct op *op, double now) {
    struct CUstream_st *stream = op->stream;
    op->end = now;
    sim.freed++;
    take_effect(op, now);
    if (sim.sticky != cudaSuccess)
        return;  // the context is gone, and every op with it
    if (op->speed != 0.0)
        share_bandwidth(op->device, now);
    bool work = op->kind != OP_RECORD && op->kind != OP_WAIT && op->kind != OP_HOST;
    if (work)
        op->device->busy_until = now;
    trace_op(op);
    if (stream == NULL) {
        graph_node_done(op, now);
        return;
    }
    if (work) {
        stream->last_engine = op->engine;
        stream->last_end = now;
    }
    if (op->kind != OP_WAIT)
        stream->drained = !work;
    stream->done_seq = op->seq;
    stream->ring[op->seq % RING] = stream->done_at = now;
    stream->head = op->next;
    if (stream->head == NULL)
        stream->tail = NULL;
    stream->busy = false;
    stream_drained(stream);
    op_free(op);
}

// Of a destroyed stream it is enough to know when it had done everything.
void stream_drained(struct CUstream_st *stream) {
    if (stream->alive || stream->head != NULL)
        return;
    free(stream->ring);
    stream->ring = NULL;
}

// Runs a host function; how long it took: what it slept, or claimed with sim_host_work.
static double run_host_function(struct op *op) {
    sim.in_host_function = true;
    sim.host_function_us = 0.0;
    op->host_function(op->user);
    op->host_function = NULL;
    sim.in_host_function = false;
    return sim.host_function_us;
}

static void slot_end(int index, double now) {
    struct slot *slot = running[index];
    struct op *op = slot->op;
    struct device *device = op->device;
    running[index] = running[--running_count];
    if (op->kind == OP_KERNEL) {
        for (int i = 0; i < (int)param.sms; i++) {
            device->sm[i].blocks += op->each.blocks * slot->on_sm[i];
            device->sm[i].threads += op->each.threads * slot->on_sm[i];
            device->sm[i].shared += op->each.shared * slot->on_sm[i];
        }
        op->blocks_left -= slot->blocks;
        if (op->slot != NULL) {  // timed by its bytes: the resident blocks did it all
            int i = 0;
            while (op->blocks_to_place > 0 && device->dispatch[i] != op)
                i++;
            if (op->blocks_to_place > 0)
                undispatch(device, i);
            op->blocks_left = 0;
        }
    }
    free(slot);
    if (op->host_function != NULL) {
        slot_start(op, now + run_host_function(op));
        return;
    }
    if (op->kind != OP_KERNEL || op->blocks_left == 0)
        engine_done(op, now);
    if (sim.sticky == cudaSuccess)
        dispatch(device, now);
}

bool stream_done(const struct CUstream_st *stream, uint64_t seq) {
    return stream->done_seq >= seq;
}

static double ended_at(const struct CUstream_st *stream, uint64_t seq) {
    if (stream->ring == NULL)
        return stream->done_at;
    return seq == 0 || seq + RING <= stream->done_seq ? 0.0 : stream->ring[seq % RING];
}

// When the op at the head of a stream may start; INFINITY while that is not known.
static double head_ready(struct CUstream_st *stream, struct op *op) {
    if (op->ready >= 0.0)
        return op->ready;
    double ready = fmax(op->arrive, stream->done_at);
    if (op->kind == OP_WAIT) {
        if (!stream_done(op->wait_stream, op->wait_seq))
            return INFINITY;
        ready = fmax(ready, ended_at(op->wait_stream, op->wait_seq) + param.hop_us);
    } else if (op->kind == OP_RECORD) {
        if (!stream->drained && !(op->event->flags & cudaEventDisableTiming))
            ready = fmax(ready, stream->last_end + param.event_drain_us);
    } else if (stream->last_engine != ENGINE_UNUSED && stream->last_engine != op->engine)
        ready = fmax(ready, stream->last_end + param.engine_switch_us);
    return op->ready = ready;
}

// Works out the next thing that happens on any device, if it happens by `until`. What ends
// makes room before what starts at the same moment looks for it.
static bool gpu_step(double until) {
    double first = INFINITY, first_ready = INFINITY;
    int end = -1, node = -1;
    struct CUstream_st *start = NULL;
    for (int i = 0; i < running_count; i++)
        if (running[i]->end < first) {
            first = running[i]->end;
            end = i;
        }
    for (int i = 0; i < sim.streams; i++) {
        struct CUstream_st *stream = sim.stream[i];
        struct op *op = stream->head;
        if (op == NULL || stream->busy || op->tried == sim.freed)
            continue;
        double ready = head_ready(stream, op), at = fmax(ready, sim.gpu);
        if (at < first || (at == first && end < 0 && ready < first_ready)) {
            first = at, first_ready = ready;
            start = stream;
            end = -1;
        }
    }
    for (int i = 0; i < floating_count; i++) {
        double at = fmax(floating[i]->ready, sim.gpu);
        if (floating[i]->tried != sim.freed && at < first) {
            first = at;
            node = i, start = NULL, end = -1;
        }
    }
    if (first > until || first == INFINITY)
        return false;
    sim.gpu = fmax(sim.gpu, first);
    if (end >= 0)
        slot_end(end, sim.gpu);
    else if (start != NULL) {
        struct op *op = start->head;
        start->busy = true;  // before it starts: a kernel may end the whole context
        if (!op_start(op, sim.gpu)) {
            start->busy = false;
            op->tried = sim.freed;
        }
    } else {
        struct op *op = floating[node];
        if (op_start(op, sim.gpu))
            for (floating_count--; node < floating_count; node++)
                floating[node] = floating[node + 1];
        else
            op->tried = sim.freed;
    }
    return true;
}

void engine_float(struct op *op) {
    floating = grow(floating, floating_count, sizeof *floating);
    floating[floating_count++] = op;
}

void gpu_advance(double until) {
    if (sim.in_host_function || sim.in_kernel)
        return;
    while (gpu_step(until))
        ;
    sim.gpu = fmax(sim.gpu, until);
}

void sticky_error(cudaError_t error) {
    sim.sticky = error;
    for (int i = 0; i < sim.streams; i++) {
        struct CUstream_st *stream = sim.stream[i];
        if (stream->head == NULL)
            continue;
        for (struct op *op = stream->head, *next; op != NULL; op = next) {
            next = op->next;
            op_free(op);
        }
        stream->head = stream->tail = NULL;
        stream->busy = false;
        stream->done_seq = stream->last_seq;
        stream->ring[stream->done_seq % RING] = stream->done_at = sim.gpu;
    }
    for (int i = 0; i < sim.devices; i++)
        sim.device[i].dispatch_count = 0;
    while (running_count > 0)
        free(running[--running_count]);
    floating_count = 0;
}

void host_busy(double us) {
    sim.now += us;
    sim.cpu += us;
}

// Works the devices out until the stream has done its op number `seq`; when that ended.
static double run_until(struct CUstream_st *stream, uint64_t seq) {
    while (!stream_done(stream, seq))
        if (!gpu_step(INFINITY))
            die("the host waits for stream %d, and nothing is left that could end",
                stream->number);
    return ended_at(stream, seq);
}

// The host learns that what it waited for ended at `end`.
static void host_wakes(double end, enum wait_how how) {
    double start = sim.now, slept = fmax(0.0, end + param.notify_us - start);
    host_waited(slept);
    if (how == WAIT_SPIN) {
        slept += slept >= param.cold_wait_us ? param.cold_return_us : 0.0;
        sim.cpu += fmax(0.0, slept - param.spin_unbilled_us);
    } else {
        sim.cpu += table_at(&param.block_wait_us, &param.block_cpu_us, slept);
        slept += table_at(&param.block_wait_us, &param.block_wake_us, slept);
    }
    sim.now = start + slept;
    gpu_advance(sim.now);
}

// Holds the host until the stream has done its op number `seq`.
void host_wait(struct CUstream_st *stream, uint64_t seq, enum wait_how how) {
    if (!stream_done(stream, seq))
        host_wakes(run_until(stream, seq), how);
    allocations_close();
}

// One wait, however many streams: until the stream that ends last.
void device_wait_idle(struct device *device, enum wait_how how) {
    double begin = sim.gpu, last = begin;
    for (int i = 0; i < sim.streams; i++) {
        struct CUstream_st *stream = sim.stream[i];
        if (stream->device != device)
            continue;
        last = fmax(last, run_until(stream, stream->last_seq));
        order_join(&sim.host, &stream->order);
    }
    if (last > begin)
        host_wakes(last, how);
    allocations_close();
}

static bool append(struct CUstream_st *stream, struct op *op) {
    // A full queue holds the host up until there is room.
    if (stream->last_seq - stream->done_seq >= (uint64_t)param.queue_depth)
        host_wait(stream, stream->last_seq + 1 - (uint64_t)param.queue_depth, WAIT_SPIN);
    if (sim.sticky != cudaSuccess) {  // what it waited for has broken the context
        op_free(op);
        return false;
    }
    op->stream = stream;
    op->device = stream->device;
    op->seq = ++stream->last_seq;
    op->arrive = sim.now + param.submit_us;
    if (stream->tail != NULL)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    return true;
}

// What `stream` is given from now on waits for op number `seq` of `on`; order.c is not told.
void append_wait(struct CUstream_st *stream, struct CUstream_st *on, uint64_t seq) {
    if (on == stream || stream_done(on, seq))
        return;
    struct op *wait = op_new(OP_WAIT, "wait");
    wait->wait_stream = on;
    wait->wait_seq = seq;
    append(stream, wait);
}

// Queues an op. The legacy default stream waits for all blocking streams of its device and
// they for it.
cudaError_t submit(struct CUstream_st *stream, struct op *op) {
    struct device *device = stream->device;
    if (stream == device->legacy) {
        for (int i = 0; i < sim.streams; i++)
            if (sim.stream[i]->device == device && sim.stream[i]->blocking)
                append_wait(stream, sim.stream[i], sim.stream[i]->last_seq);
    } else if (stream->blocking)
        append_wait(stream, device->legacy, device->legacy->last_seq);
    if (!append(stream, op))
        return outcome();
    order_submit(op);
    gpu_advance(sim.now);
    return cudaSuccess;
}

struct CUstream_st *stream_new(struct device *device, bool blocking, int priority) {
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    stream->device = device;
    stream->ring = calloc(RING, sizeof *stream->ring);
    stream->blocking = blocking;
    stream->priority = priority;
    stream->alive = true;
    stream->last_engine = ENGINE_UNUSED;
    stream->drained = true;
    stream->index = sim.streams;
    sim.stream = grow(sim.stream, sim.streams, sizeof *sim.stream);
    sim.stream[sim.streams++] = stream;
    return stream;
}
