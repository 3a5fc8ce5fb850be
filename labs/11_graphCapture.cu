// SPDX-License-Identifier: MIT
// Lab 11: Record and wait, captured: the same edges as a graph.
//
// Kernel a, then b and c side by side, then d: a diamond, drawn with two streams and two
// events. While a stream is captured, nothing runs; records and waits become edges, and the
// whole can be launched again and again with one call. Predict before you run: how many nodes
// and edges does the graph have? How long does the diamond take as stream calls, and how long
// as a graph? How often must it be replayed until building it has paid?
//
//     nvcc -O2 -arch=native labs/11_graphCapture.cu -o graphCapture && ./graphCapture
//     make grade LAB=11
//
// Worksheet: worksheets/11_graphCapture.md
#include "../common/lab.h"

enum {
    REPLAYS = 100,  // a batch: 300 kernels of the diamond in s, which its queue holds; 10,000 of
                    // the longest chain, ten times as many, but the GPU is done with them sooner
    ROUNDS = 11,    // batches; each round visits everything
};
static const int lengths[] = {1, 10, 100};  // nodes of a chain
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

__global__ void NullKernel(void) {}

// One node of the diamond. d comes to the right sum only if it runs after b and c.
__global__ void AddKernel(int *to, const int *x, const int *y) { *to = *x + *y + 1; }

static cudaStream_t s, t;
static cudaEvent_t fork_event, join_event;
static int *d_value;  // one that stays 0; those of a, b, c, d

// What comes next in `to` shall wait for what is in `from` by now. Returns whether written.
static bool edge(cudaEvent_t event, cudaStream_t from, cudaStream_t to) {
    bool written = false;
    (void)event, (void)from, (void)to;
    // TODO(1): record the event in `from`, and make `to` wait for it. Set written. (3 lines)
    // Your lines here.
    return written;
}

// The two pieces of work; each returns whether its edges are written. Called while s is
// captured, they make nodes; called otherwise, they run.
static bool diamond(int unused) {
    int *zero = d_value, *a = zero + 1, *b = zero + 2, *c = zero + 3, *d = zero + 4;
    (void)unused;                           // so that it can stand where chain does
    AddKernel<<<1, 1, 0, s>>>(a, a, zero);  // counts the replays
    bool forked = edge(fork_event, s, t);
    AddKernel<<<1, 1, 0, s>>>(b, a, zero);
    AddKernel<<<1, 1, 0, t>>>(c, a, zero);
    bool joined = edge(join_event, t, s);
    AddKernel<<<1, 1, 0, s>>>(d, b, c);
    CUDA_CHECK_LAUNCH();
    return forked && joined;
}

static bool chain(int nodes) {
    for (int i = 0; i < nodes; i++)
        NullKernel<<<1, 1, 0, s>>>();
    CUDA_CHECK_LAUNCH();
    return true;
}

// What work(n) submits, as a graph; NULL until it is written.
static cudaGraph_t capture(bool (*work)(int), int n) {
    cudaGraph_t graph = NULL;
    bool written = false;
    (void)work, (void)n;
    // TODO(2): begin to capture s, in mode cudaStreamCaptureModeThreadLocal; call work(n) and
    // store in written what it answers; end the capture of s, into graph. (3 lines)
    // Your lines here.
    return written ? graph : NULL;
}

// An executable graph, which remembers all that a launch needs, and what it cost to make.
static cudaGraphExec_t instantiate(cudaGraph_t graph, struct samples *us) {
    cudaGraphExec_t exec = NULL;
    double start = now_us();
    if (graph != NULL)
        CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    samples_add(us, exec != NULL ? now_us() - start : NAN);
    if (exec != NULL) {  // the first launch also carries it to the GPU: not in the timed loops
        CUDA_CHECK(cudaGraphLaunch(exec, s));
        CUDA_CHECK(cudaDeviceSynchronize());
    }
    return exec;
}

// Microseconds a replay, by stream calls.
static double streams_us(bool (*work)(int), int n) {
    bool written = true;
    double start = now_us();
    for (int i = 0; i < REPLAYS; i++)
        written = work(n) && written;
    CUDA_CHECK(cudaDeviceSynchronize());
    return written ? (now_us() - start) / REPLAYS : NAN;
}

// Microseconds a replay, as a graph.
static double graph_us(cudaGraphExec_t exec) {
    double us = NAN;
    if (exec == NULL)
        return us;
    // TODO(3): between two readings of now_us(), launch exec in s REPLAYS times with
    // cudaGraphLaunch, and wait for the device. Store the time of one replay. (5 lines)
    // Your lines here.
    return us;
}

static double edges_of(cudaGraph_t graph) {
    size_t edges = 0;
#if CUDART_VERSION >= 13000
    CUDA_CHECK(cudaGraphGetEdges(graph, NULL, NULL, NULL, &edges));
#else
    CUDA_CHECK(cudaGraphGetEdges(graph, NULL, NULL, &edges));
#endif
    return (double)edges;
}

int main(void) {
    static struct samples by_streams, by_graph, made, chain_streams[LENGTHS],
        chain_graph[LENGTHS], unused;
    int value[5];
    size_t nodes = 0;
    bool ordered = true;

    lab_begin("11", "graphCapture");
    CUDA_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&join_event, cudaEventDisableTiming));
    CUDA_CHECK(cudaMalloc(&d_value, 5 * sizeof *d_value));
    CUDA_CHECK(cudaMemset(d_value, 0, 5 * sizeof *d_value));
    CUDA_CHECK(cudaDeviceSynchronize());
    streams_us(diamond, 0);  // warm up: code is best loaded before a capture begins
    streams_us(chain, 1);
    cudaGraph_t drawn = capture(diamond, 0), chains[LENGTHS];
    for (int k = 0; k < LENGTHS; k++)
        chains[k] = capture(chain, lengths[k]);
    cudaGraphExec_t exec = instantiate(drawn, &unused);
    if (exec != NULL)
        CUDA_CHECK(cudaGraphExecDestroy(exec));

    for (int round = 0; round < ROUNDS; round++) {
        exec = instantiate(drawn, &made);
        region_begin("diamond_streams");
        samples_add(&by_streams, streams_us(diamond, 0));
        region_begin("diamond_graph");
        samples_add(&by_graph, graph_us(exec));
        region_end();
        CUDA_CHECK(cudaMemcpy(value, d_value, sizeof value, cudaMemcpyDeviceToHost));
        ordered = ordered && value[4] == 2 * value[1] + 3;
        if (exec != NULL)
            CUDA_CHECK(cudaGraphExecDestroy(exec));
        for (int k = 0; k < LENGTHS; k++) {
            exec = instantiate(chains[k], &unused);
            samples_add(&chain_streams[k], streams_us(chain, lengths[k]) / lengths[k]);
            samples_add(&chain_graph[k], graph_us(exec) / lengths[k]);
            if (exec != NULL)
                CUDA_CHECK(cudaGraphExecDestroy(exec));
        }
    }

    if (drawn != NULL)
        CUDA_CHECK(cudaGraphGetNodes(drawn, NULL, &nodes));
    print_measured_once("diamond_nodes", "count", drawn != NULL ? (double)nodes : NAN);
    print_measured_once("diamond_edges", "count", drawn != NULL ? edges_of(drawn) : NAN);
    print_observed("diamond_ordered", drawn == NULL ? NULL : ordered ? "yes" : "no");
    print_measured("diamond_streams", "us", &by_streams);
    print_measured("diamond_graph", "us", &by_graph);
    print_measured("instantiate", "us", &made);
    print_derived("breakeven_replays", "count",
                  samples_median(&made) /
                      (samples_median(&by_streams) - samples_median(&by_graph)));
    for (int k = 0; k < LENGTHS; k++) {
        print_measured_at("chain_streams", "n", lengths[k], "us", &chain_streams[k]);
        print_measured_at("chain_node", "n", lengths[k], "us", &chain_graph[k]);
    }
    lab_end("11", "graphCapture");
    return 0;
}
