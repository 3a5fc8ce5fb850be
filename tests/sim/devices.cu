// SPDX-License-Identifier: MIT
// What of an event crosses to another device (SIM_DEVICES=2).
#include "check.h"

__global__ void Write(int *word, int value) { *word = value; }
static void say(const char *what, cudaError_t error) {
    printf("%s %s\n", what, cudaGetErrorName(error));
}

int main(void) {
    int count;
    cudaError_t error = cudaGetDeviceCount(&count);
    printf("count %d %s\n", count, cudaGetErrorName(error));
    if (count < 2)
        return 77;
    cudaStream_t s[2];
    cudaEvent_t start[2], stop[2];
    for (int i = 0; i < 2; i++) {
        CHECK(cudaSetDevice(i));
        CHECK(cudaStreamCreate(&s[i]));
        CHECK(cudaEventCreate(&start[i]));
        CHECK(cudaEventCreate(&stop[i]));
        Wait<<<1, 1, 0, s[i]>>>(1);
        CHECK(cudaDeviceSynchronize());
    }
    for (int wait = 0; wait < 2; wait++) {
        double t = now_us();
        CHECK(cudaSetDevice(0));
        CHECK(cudaEventRecord(start[0], s[0]));
        Wait<<<1, 1, 0, s[0]>>>(cycles(10000));
        CHECK(cudaEventRecord(stop[0], s[0]));
        CHECK(cudaSetDevice(1));
        if (wait)
            CHECK(cudaStreamWaitEvent(s[1], stop[0], 0));
        Wait<<<1, 1, 0, s[1]>>>(cycles(5000));
        CHECK(cudaEventRecord(stop[1], s[1]));
        CHECK(cudaEventSynchronize(stop[1]));
        printf("%s %.0f ms\n", wait ? "wait_across" : "no_wait", (now_us() - t) / 1e3);
        CHECK(cudaEventSynchronize(stop[0]));
    }
    float ms;
    say("record_across", cudaEventRecord(start[0], s[1]));
    say("elapsed_across", cudaEventElapsedTime(&ms, stop[0], stop[1]));
    say("query_across", cudaEventQuery(stop[0]));
    say("synchronize_across", cudaEventSynchronize(stop[0]));
    cudaGetLastError();
    int can, *d0, *d1, h = 5, back = 0;
    CHECK(cudaSetDevice(0));
    CHECK(cudaMalloc(&d0, sizeof h));
    CHECK(cudaSetDevice(1));
    Write<<<1, 1, 0, s[0]>>>(d0, 7);  // no other device may write there
    say("launch_across", cudaGetLastError());
    say("where_the_stream_is", cudaStreamSynchronize(s[0]));
    CHECK(cudaMemcpy(&back, d0, sizeof h, cudaMemcpyDeviceToHost));
    printf("written %d\n", back);
    CHECK(cudaDeviceCanAccessPeer(&can, 0, 1));
    CHECK(cudaDeviceEnablePeerAccess(0, 0));
    say("enable_twice", cudaDeviceEnablePeerAccess(0, 0));
    CHECK(cudaMalloc(&d1, sizeof h));
    CHECK(cudaSetDevice(0));
    CHECK(cudaMemcpy(d0, &h, sizeof h, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpyPeerAsync(d1, 1, d0, 0, sizeof h, s[0]));
    CHECK(cudaStreamSynchronize(s[0]));
    CHECK(cudaMemcpy(&back, d1, sizeof h, cudaMemcpyDeviceToHost));
    printf("peer %d %d\n", can, back);
    return 0;
}
