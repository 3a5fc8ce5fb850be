// SPDX-License-Identifier: MIT
// Lab 10: Asynchronous until when?
//
// A launch returns before its kernel has run: it waits in a queue. No queue is endless. Here
// a long kernel keeps the GPU busy while the CPU launches on, until one launch does not
// return. Predict before you run: after how many? How long does that launch take? And with
// two streams, filled in turn: as many in all, or as many in each?
//
//     nvcc -O2 -arch=native labs/10_launchQueue.cu -o launchQueue && ./launchQueue
//     make grade LAB=10
//
// Worksheet: worksheets/10_launchQueue.md
#include "../common/lab.h"

enum {
    ROUNDS = 5,
    CALLS_MAX = 1 << 16,      // give up: no queue seen so far is a tenth as long
    LONGEST_US = 400 * 1000,  // and no gate lasts longer: some systems reset a busy GPU
    AFTER = 16,               // launches watched after the one that was held up
    DOUBLINGS = 16,
};
static const int near_end[] = {-8, -4, -2, -1, 0, 1, 2, 3, 4, 8, AFTER};  // 0: the one held up
enum { LATE = sizeof near_end / sizeof near_end[0] };

__global__ void NullKernel(void) {}

// The gate: whatever is launched behind it in its stream has to wait.
__global__ void WaitKernel(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}

static double call_us[CALLS_MAX + AFTER];  // of the last fill, in the order of the calls

// Microseconds until a launch of NullKernel into the stream returns. It does not wait for the
// kernel, unless the launch itself does.
static double launch_us(cudaStream_t stream) {
    double us = NAN;
    (void)stream;
    // TODO(1): read now_us(), launch NullKernel once in the stream, check it, and store the
    // time that passed. No synchronize: the wait is watched from outside. (4 lines)
    // Your lines here.
    return us;
}

// Launches into the streams in turn, until `ends_us` on the host's clock is near, when the
// gates open. Returns how many launches returned at once before the first that was held up,
// -1 if none was, -2 while this is not written.
static int launch_until_held(cudaStream_t *streams, int count, double ends_us) {
    int launches = -2;
    (void)streams, (void)count, (void)ends_us;
    // TODO(2): set launches to -1. For i from 0, below CALLS_MAX: let left be the time from
    // now until ends_us, and stop if it is under 1 ms. Call launch_us for stream i % count and
    // keep the time in call_us[i]; if it is over half of left, set launches to i and stop.
    // (9 lines)
    // Your lines here.
    return launches;
}

// Shuts a gate of gate_us in each stream and fills them. Returns as launch_until_held does.
static int fill(cudaStream_t *streams, int count, double gate_us, long long gate_cycles) {
    for (int s = 0; s < count; s++)
        WaitKernel<<<1, 1, 0, streams[s]>>>(gate_cycles);
    CUDA_CHECK_LAUNCH();
    int launches = launch_until_held(streams, count, now_us() + gate_us);
    for (int i = 1; i <= AFTER && launches >= 0; i++)
        call_us[launches + i] = launch_us(streams[0]);
    CUDA_CHECK(cudaDeviceSynchronize());
    return launches;
}

int main(void) {
    static struct samples depth, depth_two, before, blocked, early[DOUBLINGS], late[LATE];
    cudaStream_t streams[2];
    double gate_us = 20e3;
    int launches, last = -2;

    lab_begin("10", "launchQueue");
    for (int s = 0; s < 2; s++) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        WaitKernel<<<1, 1, 0, streams[s]>>>(0);
        NullKernel<<<1, 1, 0, streams[s]>>>();  // warm up
        CUDA_CHECK_LAUNCH();
    }
    CUDA_CHECK(cudaDeviceSynchronize());

    // Where launches are dear, the gate opens before two queues can be full: make it longer.
    long long gate_cycles = cycles_for_us(gate_us);
    while ((launches = fill(streams, 2, gate_us, gate_cycles)) == -1 &&
           2 * gate_us <= LONGEST_US) {
        gate_us *= 2.0;
        gate_cycles *= 2;
    }
    for (int round = 0; round < ROUNDS; round++) {
        launches = fill(streams, 2, gate_us, gate_cycles);
        samples_add(&depth_two, launches >= 0 ? launches : NAN);
        last = fill(streams, 1, gate_us, gate_cycles);
        samples_add(&depth, last >= 0 ? last : NAN);
        samples_add(&blocked, last >= 0 ? call_us[last] : NAN);
        for (int i = 0; i < 100; i++)
            samples_add(&before, last >= 100 ? call_us[i] : NAN);
        for (int k = 0; k < DOUBLINGS && 1 << k < last - 8; k++)
            samples_add(&early[k], call_us[(1 << k) - 1]);
        for (int i = 0; i < LATE && last > 8; i++)
            samples_add(&late[i], call_us[last + near_end[i]]);
    }

    if (last == -1)
        printf("no launch was held up for as long as a gate of %.0f us lasted\n", gate_us);
    print_measured("queue_depth", "count", &depth);
    print_measured("queue_depth_two", "count", &depth_two);
    print_measured("enqueue_before", "us", &before);
    print_measured("enqueue_blocked", "us", &blocked);
    print_measured_once("gate", "us", gate_us);  // as long as it was made, at the peak clock
    // Launch number n, counted from 1: at first every doubling, then round the one held up.
    for (int k = 0; k < DOUBLINGS && early[k].count > 0 && 1 << k < last - 8; k++)
        print_measured_at("enqueue", "n", 1 << k, "us", &early[k]);
    for (int i = 0; i < LATE && late[i].count > 0 && last > 8; i++)
        print_measured_at("enqueue", "n", last + 1 + near_end[i], "us", &late[i]);
    if (last <= 8)
        print_measured_once("enqueue", "us", NAN);
    lab_end("10", "launchQueue");
    return 0;
}
