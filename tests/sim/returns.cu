// SPDX-License-Identifier: MIT
// What calls return: one `what result` line for each case of the recorded table.
#include "check.h"

__global__ void Null(void) {}
__global__ void Store(int *p) { *p = 1; }

static void say(const char *what, cudaError_t error) {
    printf("%s %s\n", what, cudaGetErrorName(error));
}

static cudaEvent_t e0, e1, never, quiet, caught0, caught1;
static cudaStream_t a, b;
static float ms = 7.0f;

static void events(void) {
    CHECK(cudaEventRecord(e0, a));
    say("elapsed_never_recorded", cudaEventElapsedTime(&ms, e0, never));
    CHECK(cudaEventRecord(quiet, a));
    CHECK(cudaDeviceSynchronize());
    say("elapsed_disable_timing", cudaEventElapsedTime(&ms, e0, quiet));
    printf("elapsed_output_untouched %g\n", ms);
    cudaGetLastError();
    Wait<<<1, 1, 0, a>>>(cycles(1000));
    CHECK(cudaEventRecord(e1, a));
    say("elapsed_not_ready", cudaEventElapsedTime(&ms, e0, e1));
    say("query_not_ready", cudaEventQuery(e1));
    say("stream_query_not_ready", cudaStreamQuery(a));
    say("not_ready_is_no_last_error", cudaGetLastError());
    CHECK(cudaEventSynchronize(e1));
    CHECK(cudaEventRecord(e0, a));
    Wait<<<1, 1, 0, a>>>(cycles(1000));
    CHECK(cudaEventRecord(e1, a));
    CHECK(cudaDeviceSynchronize());
    say("elapsed_swapped", cudaEventElapsedTime(&ms, e1, e0));
    printf("elapsed_swapped_ms %.2f\n", ms);
    CHECK(cudaEventRecord(e1, b));
    Wait<<<1, 1, 0, a>>>(cycles(2000));
    CHECK(cudaEventRecord(e0, a));
    CHECK(cudaDeviceSynchronize());
    say("elapsed_cross_stream", cudaEventElapsedTime(&ms, e0, e1));
    printf("elapsed_cross_stream_ms %.2f\n", ms);
    say("query_never_recorded", cudaEventQuery(never));
    say("wait_never_recorded", cudaStreamWaitEvent(b, never, 0));
}

static void captures(void) {
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(caught0, a));
    Null<<<1, 1, 0, a>>>();
    CHECK(cudaEventRecord(caught1, a));
    say("elapsed_capturing", cudaEventElapsedTime(&ms, caught0, caught1));
    CHECK(cudaStreamEndCapture(a, &graph));
    say("elapsed_captured", cudaEventElapsedTime(&ms, caught0, caught1));
    say("query_captured", cudaEventQuery(caught1));
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    Null<<<1, 1, 0, a>>>();
    say("synchronize_capturing", cudaStreamSynchronize(a));
    say("end_capture_invalidated", cudaStreamEndCapture(a, &graph));
    cudaGetLastError();
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(caught0, a));
    CHECK(cudaStreamWaitEvent(b, caught0, 0));
    Null<<<1, 1, 0, b>>>();
    say("end_capture_elsewhere", cudaStreamEndCapture(b, &graph));
    say("end_capture_unjoined", cudaStreamEndCapture(a, &graph));
    say("end_capture_without", cudaStreamEndCapture(a, &graph));
    CHECK(cudaDeviceSynchronize());
    cudaGetLastError();
}

static void launches(void) {
    Null<<<1, 2048>>>();
    say("launch_2048", cudaGetLastError());
    say("launch_2048_again", cudaGetLastError());
    say("launch_2048_synchronize", cudaDeviceSynchronize());
    Null<<<0, 1>>>();
    say("launch_empty_grid", cudaPeekAtLastError());
    say("peek_keeps", cudaGetLastError());
    Null<<<1, 1, 60 << 10>>>();
    say("launch_too_much_shared", cudaGetLastError());
    CHECK(cudaFuncSetAttribute(Null, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    Null<<<1, 1, 60 << 10>>>();
    say("launch_shared_opted_in", cudaGetLastError());
}

static void bad_arguments(void) {
    void *huge;
    say("huge_malloc", cudaMalloc(&huge, (size_t)1 << 50));
    say("stray_stream", cudaStreamSynchronize((cudaStream_t)0x1234560));
    say("stray_event", cudaEventQuery((cudaEvent_t)0x1234560));
    say("bad_device", cudaSetDevice(1));
    say("free_host_pointer", cudaFree(&ms));
    int *d, h[64];
    CHECK(cudaMalloc(&d, sizeof h));
    say("copy_out_of_bounds", cudaMemcpy(d + 1, h, sizeof h, cudaMemcpyHostToDevice));
    say("copy_wrong_kind", cudaMemcpy(d, h, sizeof h, cudaMemcpyDeviceToHost));
    cudaGetLastError();
}

static void sticky_error(void) {
    int *d;
    Store<<<1, 1>>>(NULL);
    say("null_store_launch", cudaGetLastError());
    say("null_store_synchronize", cudaDeviceSynchronize());
    say("sticky_malloc", cudaMalloc(&d, 4));
    say("sticky_last_error", cudaGetLastError());
    say("sticky_last_error_again", cudaGetLastError());
}

int main(void) {
    CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&e0));
    CHECK(cudaEventCreate(&e1));
    CHECK(cudaEventCreate(&never));
    CHECK(cudaEventCreate(&caught0));
    CHECK(cudaEventCreate(&caught1));
    CHECK(cudaEventCreateWithFlags(&quiet, cudaEventDisableTiming));
    Wait<<<1, 1, 0, a>>>(1);
    CHECK(cudaDeviceSynchronize());
    events();
    captures();
    launches();
    bad_arguments();
    sticky_error();
    return 0;
}
