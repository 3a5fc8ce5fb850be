// SPDX-License-Identifier: MIT
// A producer and a consumer in two streams, ordered in the way that argv[1] names or in
// none: prints how many elements the consumer found stale.
#include "check.h"

enum { N = 1 << 14 };
__global__ void Producer(int *data, int value, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
    for (int i = threadIdx.x; i < N; i += blockDim.x)
        data[i] = value;
}
__global__ void Consumer(int *copy, const int *data) {
    for (int i = threadIdx.x; i < N; i += blockDim.x)
        copy[i] = data[i];
}
__global__ void MayStore(int *sink, bool store) {
    if (store)
        *sink = 1;
}
__global__ void Add(int *to, const int *x, const int *y) {
    *to = *x + *y;
}
static void callback(void *) {}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    static int h[N];
    int *d_data, *d_copy, *d_sink, stale = 0;
    cudaStream_t a, b, c;
    cudaEvent_t event, other;
    bool blocking = strcmp(how, "legacy") == 0;
    unsigned flags = blocking ? cudaStreamDefault : cudaStreamNonBlocking;
    CHECK(cudaMalloc(&d_data, sizeof h));
    CHECK(cudaMalloc((void **)&d_copy, sizeof h));
    CHECK(cudaMalloc(&d_sink, sizeof *d_sink));
    CHECK(cudaStreamCreateWithFlags(&a, flags));
    CHECK(cudaStreamCreateWithFlags(&b, flags));
    CHECK(cudaStreamCreateWithFlags(&c, flags));
    CHECK(cudaEventCreate(&event));
    CHECK(cudaEventCreate(&other));
    Producer<<<1, 256, 0, a>>>(d_data, 0, 1);  // loads the code, too
    CHECK(cudaStreamSynchronize(a));
    Consumer<<<1, 256, 0, b>>>(d_copy, d_data);
    MayStore<<<1, 1, 0, c>>>(d_sink, false);
    CHECK(cudaDeviceSynchronize());

    for (int round = 1; round <= 2; round++) {
        if (strcmp(how, "late") == 0)  // the one that writes is the one that does not wait
            Consumer<<<1, 256, 0, b>>>(d_copy, d_data);
        Producer<<<1, 256, 0, a>>>(d_data, round, cycles(1000));
        if (strcmp(how, "event") == 0 || strcmp(how, "late") == 0) {
            CHECK(cudaEventRecord(event, a));
            CHECK(cudaStreamWaitEvent(b, event));
        } else if (strcmp(how, "chain") == 0) {  // through a third stream
            CHECK(cudaEventRecord(event, a));
            CHECK(cudaStreamWaitEvent(c, event));
            CHECK(cudaLaunchHostFunc(c, callback, NULL));
            CHECK(cudaEventRecord(other, c));
            CHECK(cudaStreamWaitEvent(b, other));
        } else if (strcmp(how, "early") == 0) {  // waits for what is not yet recorded
            if (round == 1) {
                CHECK(cudaStreamWaitEvent(b, event));
                CHECK(cudaEventRecord(event, a));
            }
        } else if (strcmp(how, "query") == 0) {
            CHECK(cudaEventRecord(event, a));
            while (cudaEventQuery(event) == cudaErrorNotReady)
                ;
        } else if (strcmp(how, "stream") == 0)
            CHECK(cudaStreamSynchronize(a));
        else if (strcmp(how, "device") == 0)
            CHECK(cudaDeviceSynchronize());
        else if (blocking)
            MayStore<<<1, 1>>>(d_sink, false);
        if (strcmp(how, "purpose") == 0) {
            // Too early, to see what happens: unordered on purpose.
            Consumer<<<1, 256, 0, b>>>(d_copy, d_data);
        } else if (strcmp(how, "copy") == 0)
            CHECK(cudaMemcpyAsync(d_copy, d_data, sizeof h, cudaMemcpyDeviceToDevice, b));
        else
            Consumer<<<1, 256, 0, b>>>(d_copy, d_data);
        // A pointer that is passed but never written through is no conflict.
        MayStore<<<1, 1, 0, a>>>(d_sink, strcmp(how, "store") == 0);
        MayStore<<<1, 1, 0, b>>>(d_sink, strcmp(how, "store") == 0);
        // Neighbouring elements, and one between those that are read.
        Add<<<1, 1, 0, a>>>(d_sink + 2, d_sink + 1, d_sink + 8);
        Add<<<1, 1, 0, b>>>(d_sink + 3, d_sink + 1, d_sink + 8);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(h, d_copy, sizeof h, cudaMemcpyDeviceToHost));
        for (int i = 0; i < N; i++)
            stale += h[i] != round;
    }
    printf("stale %d of %d\n", stale, 2 * N);
    return 0;
}
