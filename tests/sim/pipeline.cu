// SPDX-License-Identifier: MIT
// A correctly ordered pipeline over the chunks of one allocation, three streams: the
// checksum must be right and the device must not complain. Then the same as a graph.
#include "check.h"
#include <initializer_list>

enum { CHUNKS = 10, N = 1 << 16 };
__global__ void AddOne(float *out, const float *in, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = in[i] + 1.0f;
}

static float *h_in, *h_out, *d_in, *d_out;
static cudaStream_t in, work, out;
static cudaEvent_t loaded, done, fetched;

static void pipeline(void) {
    for (int i = 0; i < CHUNKS; i++) {
        size_t at = (size_t)i * N, bytes = N * sizeof(float);
        CHECK(cudaMemcpyAsync(d_in + at, h_in + at, bytes, cudaMemcpyHostToDevice, in));
        CHECK(cudaEventRecord(loaded, in));
        CHECK(cudaStreamWaitEvent(work, loaded));
        AddOne<<<132, 256, 0, work>>>(d_out + at, d_in + at, N);
        CHECK(cudaEventRecord(done, work));
        CHECK(cudaStreamWaitEvent(out, done));
        CHECK(cudaMemcpyAsync(h_out + at, d_out + at, bytes, cudaMemcpyDeviceToHost, out));
    }
    CHECK(cudaEventRecord(fetched, out));
    CHECK(cudaStreamWaitEvent(in, fetched));
}

static void check(const char *what) {
    int wrong = 0;
    for (int i = 0; i < CHUNKS * N; i++) {
        wrong += h_out[i] != (float)i + 1.0f;
        h_out[i] = 0.0f;
    }
    printf("%s wrong %d\n", what, wrong);
}

int main(void) {
    size_t bytes = CHUNKS * N * sizeof(float);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t nodes = 0, edges = 0;
    CHECK(cudaMallocHost(&h_in, bytes));
    CHECK(cudaHostAlloc(&h_out, bytes, cudaHostAllocDefault));
    CHECK(cudaMalloc(&d_in, bytes));
    CHECK(cudaMalloc(&d_out, bytes));
    for (cudaStream_t *s : {&in, &work, &out})
        CHECK(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking));
    for (cudaEvent_t *e : {&loaded, &done, &fetched})
        CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
    for (int i = 0; i < CHUNKS * N; i++)
        h_in[i] = (float)i;
    for (int round = 0; round < 3; round++)
        pipeline();
    CHECK(cudaDeviceSynchronize());
    check("streams");
    CHECK(cudaStreamBeginCapture(in, cudaStreamCaptureModeGlobal));
    pipeline();
    CHECK(cudaStreamEndCapture(in, &graph));
    CHECK(cudaGraphGetNodes(graph, NULL, &nodes));
    CHECK(cudaGraphGetEdges(graph, NULL, NULL, &edges));
    CHECK(cudaGraphInstantiate(&exec, graph, NULL, NULL, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphUpload(exec, in));
    CHECK(cudaGraphLaunch(exec, in));
    CHECK(cudaGraphLaunch(exec, in));
    CHECK(cudaStreamSynchronize(in));
    check("graph");
    CHECK(cudaGraphExecDestroy(exec));
    printf("nodes %zu edges %zu\n", nodes, edges);
    return 0;
}
