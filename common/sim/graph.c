// SPDX-License-Identifier: MIT
// Stream capture and graphs. While a stream is captured its ops become nodes instead of
// running; each depends on its stream's tips: the nodes that the stream's last op, and the
// events that it waited for, stand for.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

struct CUgraphNode_st {
    struct op *op;  // what each run starts a copy of
    int *from, from_count;
};

struct CUgraph_st {
    struct CUgraphNode_st **node;
    int nodes, edges, users;  // users: itself until destroyed, executables, runs
};

struct CUgraphExec_st {
    struct CUgraph_st *graph;
    struct CUgraphExec_st *next;
    struct CUstream_st *stream;  // where it was launched last, as that stream's op number `seq`
    uint64_t seq;
    struct order order;
};

// Those that the program has not destroyed: what it leaves at its end is no leak of ours.
static struct CUgraphExec_st *execs;

struct capture {
    struct CUgraph_st *graph;
    struct CUstream_st *origin;
    bool invalid, ended, relaxed;
    struct capture *next;
};

struct graph_run {
    struct CUgraph_st *graph;
    struct op *parent;
    int left;
    struct {
        int waiting_for;
        struct op *op;  // while it runs
    } node[];
};

static struct capture *captures;  // events may point to them for ever

static void graph_release(struct CUgraph_st *graph) {
    if (--graph->users > 0)
        return;
    for (int i = 0; i < graph->nodes; i++) {
        op_free(graph->node[i]->op);
        free(graph->node[i]->from);
        free(graph->node[i]);
    }
    free(graph->node);
    free(graph);
}

bool capturing(const struct CUstream_st *stream) { return stream->capture != NULL; }

bool capture_ended(const struct CUevent_st *event) {
    return event->capture != NULL && event->capture->ended;
}

bool any_capture(enum capture_kind kind) {
    for (int i = 0; i < sim.streams; i++) {
        const struct capture *c = sim.stream[i]->capture;
        if (c != NULL && (kind == ANY || (kind == STRICT && !c->relaxed) ||
                          (kind == BLOCKING && sim.stream[i]->blocking)))
            return true;
    }
    return false;
}

// A call that may not be made during a capture ends it: the stream's, or any, if NULL.
cudaError_t capture_forbids(struct CUstream_st *stream) {
    for (struct capture *c = captures; c != NULL; c = c->next)
        if (stream == NULL || stream->capture == NULL || stream->capture == c)
            c->invalid = true;
    return fail(cudaErrorStreamCaptureUnsupported);
}

static void set_tips(int **tips, int *count, const int *from, int from_count) {
    *tips = realloc(*tips, (size_t)(from_count + 1) * sizeof **tips);
    if (from_count > 0)
        memcpy(*tips, from, (size_t)from_count * sizeof **tips);
    *count = from_count;
}

cudaError_t capture_add(struct CUstream_st *stream, struct op *op) {
    struct CUgraph_st *graph = stream->capture->graph;
    if (stream->capture->invalid) {
        op_free(op);
        return fail(cudaErrorStreamCaptureInvalidated);
    }
    struct CUgraphNode_st *node = calloc(1, sizeof *node);
    node->op = op;
    op->device = stream->device;
    set_tips(&node->from, &node->from_count, stream->tips, stream->tip_count);
    graph->edges += node->from_count;
    graph->node = realloc(graph->node, (size_t)(graph->nodes + 1) * sizeof *graph->node);
    graph->node[graph->nodes] = node;
    set_tips(&stream->tips, &stream->tip_count, &graph->nodes, 1);
    graph->nodes++;
    return cudaSuccess;
}

void capture_record(struct CUstream_st *stream, struct CUevent_st *event) {
    event->capture = stream->capture;
    event->recorded = false;
    set_tips(&event->tips, &event->tip_count, stream->tips, stream->tip_count);
}

cudaError_t capture_wait(struct CUstream_st *stream, struct CUevent_st *event) {
    if (event->capture == NULL || event->capture->ended) {
        if (!capturing(stream))
            return fail(cudaErrorCapturedEvent);
        if (event->capture == NULL && !event->recorded)
            return cudaSuccess;
        stream->capture->invalid = true;
        return fail(cudaErrorStreamCaptureIsolation);
    }
    if (stream == stream->device->legacy) {
        event->capture->invalid = true;
        return fail(cudaErrorStreamCaptureImplicit);
    }
    if (!capturing(stream)) {
        stream->capture = event->capture;
        stream->tip_count = 0;
    } else if (stream->capture != event->capture) {
        stream->capture->invalid = event->capture->invalid = true;
        return fail(cudaErrorStreamCaptureMerge);
    }
    for (int i = 0; i < event->tip_count; i++) {
        bool known = false;
        for (int k = 0; k < stream->tip_count; k++)
            known |= stream->tips[k] == event->tips[i];
        if (known)
            continue;
        stream->tips = realloc(stream->tips, (size_t)(stream->tip_count + 2) * sizeof(int));
        stream->tips[stream->tip_count++] = event->tips[i];
    }
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
    ENTER(param.capture_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    if (mode > cudaStreamCaptureModeRelaxed)
        return fail(cudaErrorInvalidValue);
    if (stream == stream->device->legacy)
        return fail(cudaErrorStreamCaptureUnsupported);
    if (capturing(stream))
        return fail(cudaErrorIllegalState);
    struct capture *c = calloc(1, sizeof *c);
    c->graph = calloc(1, sizeof *c->graph);
    c->graph->users = 1;
    c->origin = stream;
    c->relaxed = mode == cudaStreamCaptureModeRelaxed;
    c->next = captures;
    captures = c;
    stream->capture = c;
    stream->tip_count = 0;
    return cudaSuccess;
}

// Whether `node` comes before, or is, one of `tips`.
static bool reaches(const struct CUgraph_st *graph, int node, const int *tips, int count) {
    bool found = false;
    for (int i = 0; i < count && !found; i++)
        found = tips[i] == node ||
                (tips[i] > node && reaches(graph, node, graph->node[tips[i]]->from,
                                           graph->node[tips[i]]->from_count));
    return found;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    ENTER(param.capture_us, NEEDS_CONTEXT);
    FIND(handle, origin);
    if (graph == NULL)
        return fail(cudaErrorInvalidValue);
    *graph = NULL;
    struct capture *c = origin->capture;
    if (c == NULL)
        return fail(cudaErrorIllegalState);
    if (c->origin != origin)
        return fail(cudaErrorStreamCaptureUnmatched);
    bool joined = true;
    for (int i = 0; i < sim.streams; i++) {
        struct CUstream_st *stream = sim.stream[i];
        if (stream->capture != c)
            continue;
        for (int k = 0; k < stream->tip_count; k++)
            joined &= reaches(c->graph, stream->tips[k], origin->tips, origin->tip_count);
        stream->capture = NULL;
    }
    c->ended = true;
    if (c->invalid || !joined) {
        graph_release(c->graph);
        return fail(c->invalid ? cudaErrorStreamCaptureInvalidated
                               : cudaErrorStreamCaptureUnjoined);
    }
    *graph = c->graph;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
    ENTER(param.query_device_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    *status = !capturing(stream)         ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    ENTER(param.query_us, 0);
    if (graph == NULL || count == NULL)
        return fail(cudaErrorInvalidValue);
    for (size_t i = 0; nodes != NULL && i < *count; i++)
        nodes[i] = i < (size_t)graph->nodes ? graph->node[i] : NULL;
    if (nodes == NULL || *count > (size_t)graph->nodes)
        *count = (size_t)graph->nodes;
    return cudaSuccess;
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to,
                              cudaGraphEdgeData *data, size_t *count) {
    ENTER(param.query_us, 0);
    if (graph == NULL || count == NULL || (from == NULL) != (to == NULL))
        return fail(cudaErrorInvalidValue);
    size_t edges = 0;
    for (int i = 0; i < graph->nodes; i++)
        for (int k = 0; k < graph->node[i]->from_count; k++, edges++)
            if (from != NULL && edges < *count) {
                from[edges] = graph->node[graph->node[i]->from[k]];
                to[edges] = graph->node[i];
                if (data != NULL)
                    memset(&data[edges], 0, sizeof data[edges]);
            }
    *count = from != NULL && *count < edges ? *count : edges;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags) {
    ENTER(param.graph_instantiate_us, NEEDS_CONTEXT);
    if (exec == NULL || graph == NULL || flags != 0)
        return fail(cudaErrorInvalidValue);
    host_busy(param.graph_instantiate_node_us * graph->nodes);
    *exec = calloc(1, sizeof **exec);
    (*exec)->graph = graph;
    (*exec)->next = execs;
    execs = *exec;
    graph->users++;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    (void)stream;
    ENTER(param.launch_us, NEEDS_CONTEXT);
    return exec == NULL ? fail(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    ENTER(param.sync_us, 0);
    if (exec == NULL)
        return fail(cudaErrorInvalidValue);
    graph_release(exec->graph);
    struct CUgraphExec_st **link = &execs;
    while (*link != NULL && *link != exec)
        link = &(*link)->next;
    if (*link != NULL)
        *link = exec->next;
    free(exec->order.seen);
    free(exec);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    ENTER(param.sync_us, 0);
    if (graph == NULL)
        return fail(cudaErrorInvalidValue);
    graph_release(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
    ENTER(param.graph_launch_us, NEEDS_CONTEXT | SUBMITS);
    FIND(handle, stream);
    if (exec == NULL)
        return fail(cudaErrorInvalidValue);
    if (capturing(stream))
        return fail(cudaErrorNotSupported);  // child graphs are not modelled
    struct CUgraph_st *graph = exec->graph;
    struct op *op = op_new(OP_GRAPH, "graph");
    op->run = calloc(1, sizeof *op->run + (size_t)graph->nodes * sizeof op->run->node[0]);
    op->run->graph = graph;
    op->run->parent = op;
    op->run->left = graph->nodes;
    graph->users++;
    if (exec->stream != NULL)  // it runs once at a time
        append_wait(stream, exec->stream, exec->seq);
    order_join(&stream->order, &exec->order);
    RETURN_ERROR(enqueue(stream, op));
    exec->stream = stream;
    exec->seq = stream->last_seq;
    order_copy(&exec->order, &stream->order);
    return cudaSuccess;
}

void graph_run_free(struct graph_run *run) {
    for (int i = 0; i < run->graph->nodes; i++)
        if (run->node[i].op != NULL)
            op_free(run->node[i].op);
    graph_release(run->graph);
    free(run);
}

struct op *graph_parent(const struct op *node) {
    return node->run->parent;
}

static void start_node(struct graph_run *run, int index, double ready) {
    const struct op *model = run->graph->node[index]->op;
    struct op *op = op_new(model->kind, model->name);
    *op = *model;
    op->call = run->parent->call;
    if (model->launch != NULL)
        op->launch = launch_copy(model->launch);
    if (model->staged != NULL)
        op->from = op->staged = memcpy(malloc(model->bytes), model->staged, model->bytes);
    op->run = run;
    op->node = index;
    op->ready = ready;
    op->tried = sim.freed - 1;
    run->node[index].op = op;
    engine_float(op);
}

void graph_start(struct op *op, double now) {
    struct graph_run *run = op->run;
    for (int i = 0; i < run->graph->nodes; i++)
        run->node[i].waiting_for = run->graph->node[i]->from_count;
    for (int i = 0; i < run->graph->nodes; i++)
        if (run->node[i].waiting_for == 0)
            start_node(run, i, now + param.graph_us);
    if (run->left == 0)
        engine_done(op, now);
}

void graph_node_done(struct op *op, double now) {
    struct graph_run *run = op->run;
    int done = op->node;
    run->node[done].op = NULL;
    op->run = NULL;
    op_free(op);
    for (int i = done + 1; i < run->graph->nodes; i++) {
        bool joins = run->graph->node[i]->from_count > 1;
        for (int k = 0; k < run->graph->node[i]->from_count; k++)
            if (run->graph->node[i]->from[k] == done && --run->node[i].waiting_for == 0)
                start_node(run, i, now + (joins ? param.graph_join_us : 0.0));
    }
    if (--run->left == 0)
        engine_done(run->parent, now);
}
