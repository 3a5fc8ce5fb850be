// SPDX-License-Identifier: MIT
// The calls on streams and events.
#include "sim.h"

#include <math.h>
#include <stdlib.h>

void sim_use_per_thread_stream(void) { sim.per_thread_default = true; }

// The stream that a handle stands for, if it is one of ours: no stray pointer is ever followed.
struct CUstream_st *known_stream(cudaStream_t handle) {
    if (handle == NULL)
        handle = sim.per_thread_default ? cudaStreamPerThread : cudaStreamLegacy;
    if (handle == cudaStreamLegacy)
        return current_device()->legacy;
    if (handle == cudaStreamPerThread)
        return current_device()->per_thread;
    for (int i = sim.streams - 1; i >= 0; i--)
        if (sim.stream[i] == handle && handle->alive)
            return handle;
    return NULL;
}

cudaError_t find_stream(cudaStream_t handle, struct CUstream_st **stream) {
    *stream = known_stream(handle);
    if (*stream == NULL)
        return fail(cudaErrorInvalidResourceHandle);
    trace_stream(*stream);
    return cudaSuccess;
}

static cudaError_t stream_create(cudaStream_t *handle, unsigned flags, int priority) {
    static int created;
    if (handle == NULL || flags > 1)
        return fail(cudaErrorInvalidValue);
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *handle = stream_new(current_device(), flags == cudaStreamDefault, priority);
    (*handle)->number = ++created;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    ENTER(param.stream_create_us, NEEDS_CONTEXT);
    return stream_create(stream, 0, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    ENTER(param.stream_create_us, NEEDS_CONTEXT);
    return stream_create(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    ENTER(param.stream_create_us, NEEDS_CONTEXT);
    return stream_create(stream, flags, priority);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(param.query_device_us, NEEDS_CONTEXT);
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    ENTER(param.stream_create_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    if (stream->number == 0)
        return fail(cudaErrorInvalidResourceHandle);
    stream->alive = false;  // what is queued in it still runs
    stream_drained(stream);
    return cudaSuccess;
}

cudaError_t stream_wait(struct CUstream_st *stream, enum wait_how how) {
    host_wait(stream, stream->last_seq, how);
    order_join(&sim.host, &stream->order);
    return outcome();
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    ENTER(param.sync_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    if (capturing(stream) || (stream == stream->device->legacy && any_capture(BLOCKING)))
        return capture_forbids(stream);
    return stream_wait(stream, device_wait_how(stream->device));
}

// An answer, not kept as the last error.
static cudaError_t not_ready(void) {
    trace_answer(cudaErrorNotReady);
    return cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    ENTER(param.query_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    if (capturing(stream))
        return capture_forbids(stream);
    if (!stream_done(stream, stream->last_seq))
        return not_ready();
    order_join(&sim.host, &stream->order);
    return cudaSuccess;
}

// ---- Queueing
cudaError_t enqueue(struct CUstream_st *stream, struct op *op) {
    if (capturing(stream))
        return capture_add(stream, op);
    if (stream == stream->device->legacy && any_capture(BLOCKING)) {
        op_free(op);
        capture_forbids(NULL);
        return fail(cudaErrorStreamCaptureImplicit);
    }
    return submit(stream, op);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *user) {
    ENTER(param.launch_us, NEEDS_CONTEXT | SUBMITS);
    FIND(handle, stream);
    if (function == NULL)
        return fail(cudaErrorInvalidValue);
    struct op *op = op_new(OP_HOST, "host function");
    op->host_function = function;
    op->user = user;
    return enqueue(stream, op);
}

// ---- Events
static struct CUevent_st *events;  // those that the program has not destroyed

// As known_stream.
static bool is_event(const struct CUevent_st *event) {
    for (const struct CUevent_st *e = events; e != NULL; e = e->next)
        if (e == event)
            return true;
    return false;
}

static void event_release(struct CUevent_st *event) {
    if (event->alive || event->pending > 0)
        return;
    free(event->order.seen);
    free(event->tips);
    free(event);
}

static cudaError_t event_create(cudaEvent_t *handle, unsigned flags) {
    static int created;
    if (handle == NULL || flags > 7 || (flags & 6) == 4)
        return fail(cudaErrorInvalidValue);
    struct CUevent_st *event = *handle = calloc(1, sizeof *event);
    event->number = ++created;
    event->alive = true;
    event->flags = flags;
    event->device = current_device();
    event->next = events;
    events = event;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    ENTER(param.event_create_us, NEEDS_CONTEXT);
    return event_create(event, 0);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    ENTER(param.event_create_us, NEEDS_CONTEXT);
    return event_create(event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ENTER(param.event_create_us, NEEDS_CONTEXT);
    if (!is_event(event))
        return fail(cudaErrorInvalidResourceHandle);
    struct CUevent_st **link = &events;
    while (*link != event)
        link = &(*link)->next;
    *link = event->next;
    event->alive = false;
    event_release(event);
    return cudaSuccess;
}

void event_recorded(struct CUevent_st *event, const struct op *op, double now) {
    event->pending--;
    // Only the latest record counts. %globaltimer, from which stamps are taken, steps by 32 ns.
    if (event->stream == op->stream && event->seq == op->seq)
        event->stamp = floor(now * 1e3 / 32.0) * 32.0 / 1e3;
    event_release(event);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    bool timing = is_event(event) && !(event->flags & cudaEventDisableTiming);
    ENTER(timing ? param.record_timing_us : param.record_us, NEEDS_CONTEXT | SUBMITS);
    FIND(handle, stream);
    if (!is_event(event) || event->device != stream->device)
        return fail(cudaErrorInvalidResourceHandle);
    if (capturing(stream)) {
        capture_record(stream, event);
        trace_event(event, true);
        return cudaSuccess;
    }
    struct op *op = op_new(OP_RECORD, "event record");
    op->event = event;
    event->pending++;
    cudaError_t error = enqueue(stream, op);
    if (error != cudaSuccess) {
        event->pending--;
        return error;
    }
    event->capture = NULL;
    event->recorded = true;
    event->stream = stream;
    event->seq = stream->last_seq;
    order_copy(&event->order, &stream->order);
    trace_event(event, true);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    ENTER(param.wait_event_us, NEEDS_CONTEXT | SUBMITS);
    FIND(handle, stream);
    if (!is_event(event))
        return fail(cudaErrorInvalidResourceHandle);
    if (flags != cudaEventWaitDefault)
        return fail(cudaErrorInvalidValue);
    trace_event(event, false);
    if (event->capture != NULL || capturing(stream))
        return capture_wait(stream, event);
    if (!event->recorded)
        return cudaSuccess;  // nothing to wait for: orders nothing
    if (event->device != stream->device)
        host_busy(param.wait_other_device_us);
    if (event->stream != stream && !stream_done(event->stream, event->seq)) {
        struct op *op = op_new(OP_WAIT, "wait");
        op->wait_stream = event->stream;
        op->wait_seq = event->seq;
        RETURN_ERROR(submit(stream, op));
    }
    order_join(&stream->order, &event->order);
    return cudaSuccess;
}

static bool event_done(const struct CUevent_st *event) {
    return !event->recorded || stream_done(event->stream, event->seq);
}

// Why the host may not ask about an event, or wait for it; cudaSuccess if it may.
static cudaError_t refuse_event(cudaEvent_t event) {
    if (!is_event(event))
        return fail(cudaErrorInvalidResourceHandle);
    trace_event(event, false);
    if (event->capture != NULL) {
        capture_forbids(NULL);
        return fail(cudaErrorCapturedEvent);
    }
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER(param.query_us, NEEDS_CONTEXT);
    cudaError_t refused = refuse_event(event);
    if (refused != cudaSuccess)
        return refused;
    if (!event_done(event))
        return not_ready();
    order_join(&sim.host, &event->order);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER(param.sync_us, NEEDS_CONTEXT);
    cudaError_t refused = refuse_event(event);
    if (refused != cudaSuccess)
        return refused;
    // The event's own flag decides; the device's does not, as recorded.
    if (event->recorded)
        host_wait(event->stream, event->seq,
                  event->flags & cudaEventBlockingSync ? WAIT_BLOCK : WAIT_SPIN);
    order_join(&sim.host, &event->order);
    return outcome();
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t stop) {
    ENTER(param.query_us, NEEDS_CONTEXT);
    if (ms == NULL)
        return fail(cudaErrorInvalidValue);
    // As recorded: lab 04 for events of a capture that is over, a probe for the rest.
    if (is_event(start) && is_event(stop) && capture_ended(start) && capture_ended(stop))
        return fail(cudaErrorInvalidValue);
    if (!is_event(start) || !is_event(stop) || start->capture != NULL ||
        stop->capture != NULL || !start->recorded || !stop->recorded ||
        start->device != stop->device || (start->flags | stop->flags) & cudaEventDisableTiming)
        return fail(cudaErrorInvalidResourceHandle);
    if (!event_done(start) || !event_done(stop))
        return not_ready();
    *ms = (float)((stop->stamp - start->stamp) / 1e3);
    return cudaSuccess;
}
