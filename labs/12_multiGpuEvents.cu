// SPDX-License-Identifier: MIT
// Lab 12: What of an event crosses to another device?
//
// An event belongs to the device that was current when it was created. Device 0 runs a kernel
// of 10 ms and records an event behind it; device 1 has a kernel of 5 ms to run. Predict
// before you run: which of wait, record, query, synchronize and elapsed time take an event of
// the other device, and which refuse? If device 1 waits, when is its kernel done?
//
//     nvcc -O2 -arch=native labs/12_multiGpuEvents.cu -o multiGpuEvents && ./multiGpuEvents
//     make grade LAB=12
//
// Needs two devices, and says so and ends where there are fewer.
// Worksheet: worksheets/12_multiGpuEvents.md
#include "../common/lab.h"

enum {
    FIRST_US = 10000,  // device 0's kernel
    SECOND_US = 5000,  // device 1's: half as long, so that it ends first unless it waits
    ROUNDS = 9,
};

__global__ void WaitKernel(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}

static cudaStream_t stream[2];          // stream[d] belongs to device d
static cudaEvent_t begun[2], ended[2];  // so do the events
static long long cycles[2];             // of each device's own clock

static const char *wait_answer;  // the word for what the last wait_for_first was told

// The word for what a call returned. An error that was asked for is not left behind.
static const char *word(cudaError_t answer) {
    cudaGetLastError();
    return cudaGetErrorName(answer);
}

// Enqueues device 0's kernel between its two events.
static void enqueue_first(void) {
    CUDA_CHECK(cudaSetDevice(0));
    CUDA_CHECK(cudaEventRecord(begun[0], stream[0]));
    WaitKernel<<<1, 1, 0, stream[0]>>>(cycles[0]);
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaEventRecord(ended[0], stream[0]));
}

// Makes device 1's stream wait for device 0's kernel. Returns the word for what the call
// answered; NULL until it is written.
static const char *wait_for_first(void) {
    const char *answer = NULL;
    // TODO(1): make stream[1] wait for the event ended[0], as if both belonged to one device.
    // Do not check the call: store the word() for what it returns. (1 line)
    // Your lines here.
    return wait_answer = answer;
}

// Enqueues device 1's kernel between its two events. Returns whether it is written.
static bool enqueue_second(bool wait) {
    bool written = false;
    (void)wait;
    // TODO(2): the experiment that shows whether the wait orders anything. Make device 1 the
    // current one. In stream[1]: record begun[1]; if `wait` is set, call wait_for_first();
    // launch WaitKernel for cycles[1]; record ended[1]. Set written. (8 lines)
    // Your lines here.
    return written;
}

// One round. Adds, in us: when device 1's kernel had ended, counted from begun[1]; how long
// the host was busy enqueuing; how long device 0's kernel took.
static void play(bool wait, struct samples *second, struct samples *host,
                 struct samples *first) {
    float first_ms, second_ms = NAN;
    region_begin(wait ? "wait_across" : "no_wait");
    double start = now_us();
    enqueue_first();
    bool written = enqueue_second(wait) && (!wait || wait_answer != NULL);
    double host_us = now_us() - start;
    for (int d = 0; d < 2; d++)
        CUDA_CHECK(cudaStreamSynchronize(stream[d]));
    region_end();
    CUDA_CHECK(cudaEventElapsedTime(&first_ms, begun[0], ended[0]));
    if (written)
        CUDA_CHECK(cudaEventElapsedTime(&second_ms, begun[1], ended[1]));
    samples_add(first, 1e3 * first_ms);
    samples_add(second, 1e3 * second_ms);
    samples_add(host, written ? host_us : NAN);
}

int main(void) {
    static struct samples across, alone, host_across, host_alone, first, warm_up[3];
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices == 1) {
        printf("skipped 12 multiGpuEvents: needs two devices, this machine has 1\n");
        return EXIT_SKIPPED;
    }
    lab_begin("12", "multiGpuEvents");
    for (int d = 0; d < 2; d++) {
        CUDA_CHECK(cudaSetDevice(d));
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream[d], cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreate(&begun[d]));
        CUDA_CHECK(cudaEventCreate(&ended[d]));
        cycles[d] = cycles_for_us(d == 0 ? FIRST_US : SECOND_US);
        WaitKernel<<<1, 1, 0, stream[d]>>>(0);  // each device loads the code for itself
        CUDA_CHECK_LAUNCH();
        CUDA_CHECK(cudaEventRecord(begun[d], stream[d]));
        CUDA_CHECK(cudaEventRecord(ended[d], stream[d]));
        CUDA_CHECK(cudaDeviceSynchronize());
    }

    play(true, &warm_up[0], &warm_up[1], &warm_up[2]);
    for (int i = 0; i < ROUNDS; i++) {
        play(true, &across, &host_across, &first);
        play(false, &alone, &host_alone, &first);
    }
    print_measured("wait_across", "us", &across);
    print_measured("no_wait", "us", &alone);
    print_measured("first_kernel", "us", &first);
    print_measured("host_busy_across", "us", &host_across);

    // Device 1 is current, all events are recorded and done: what may be asked of device 0's?
    float ms;
    CUDA_CHECK(cudaSetDevice(1));
    print_observed("wait_other_device", wait_for_first());
    print_observed("record_other_device", word(cudaEventRecord(ended[0], stream[1])));
    print_observed("query_other_device", word(cudaEventQuery(ended[0])));
    print_observed("synchronize_other_device", word(cudaEventSynchronize(ended[0])));
    print_observed("elapsed_two_devices", word(cudaEventElapsedTime(&ms, begun[0], ended[1])));
    lab_end("12", "multiGpuEvents");
    return 0;
}
