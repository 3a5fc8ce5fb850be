// SPDX-License-Identifier: MIT
// Lab 01: What does a launch cost the CPU, and what does synchronizing each one add?
//
// A launch is asynchronous: the CPU hands the kernel to the driver and goes on. So a kernel
// that does nothing shows what the handing over costs. Predict before you run: how many
// microseconds is one launch? How many, if the CPU waits for each kernel to end? And the
// very first launch of the program?
//
//     nvcc -O2 -arch=native labs/01_nullKernelAsync.cu -o nullKernelAsync && ./nullKernelAsync
//     make grade LAB=01
//
// Worksheet: worksheets/01_nullKernelAsync.md
#include "../common/lab.h"

enum {
    BATCHES = 1000,  // spread over about three seconds: the host drifts more slowly than that
    LAUNCHES = 300,  // a batch; well below the thousand or so that one stream's queue holds
    SYNCED = 30,     // launches of a synchronizing batch, which cost more each
};

__global__ void NullKernel(void) {}

// Microseconds that the very first launch of NullKernel takes, until it has run.
static double first_launch_us(void) {
    double us = NAN;
    // TODO(1): warm up. Read now_us(), launch NullKernel once on one block of one thread and
    // check it, synchronize with the device, and store the time that passed in us. (4 lines)
    // Your lines here.
    return us;
}

// Microseconds a launch, if the CPU does not wait between launches.
static double launch_async_us(void) {
    double us = NAN;
    // TODO(2): between two readings of now_us(), launch NullKernel LAUNCHES times in a loop
    // and synchronize once, after the loop and before the second reading: a launch that is
    // still in the queue has not been paid for. Store the time of one launch. (7 lines)
    // Your lines here.
    return us;
}

// Microseconds a launch, if the CPU waits for each kernel before it launches the next.
static double launch_sync_us(void) {
    double us = NAN;
    // TODO(3): the same with SYNCED launches, and the synchronize inside the loop. (7 lines)
    // Your lines here.
    return us;
}

// Microseconds that a synchronize takes now: next to none where no launch is left to wait for.
static double left_running_us(void) {
    double start = now_us();
    CUDA_CHECK(cudaDeviceSynchronize());
    return now_us() - start;
}

int main(void) {
    static struct samples async, left_running, sync, host_step, in_steps;

    lab_begin("01", "nullKernelAsync");
    print_measured_once("first_launch", "us", first_launch_us());
    CUDA_CHECK(cudaDeviceSynchronize());

    // The two loops take turns, so that a slow second of the host falls on both; and before
    // each turn a fixed piece of host work is timed, which shows how slow the host is.
    for (int batch = 0; batch < BATCHES; batch++) {
        double step = host_step_ns();
        double us = launch_async_us();
        samples_add(&async, us);
        samples_add(&left_running, left_running_us());
        samples_add(&sync, launch_sync_us());
        samples_add(&host_step, step);
        samples_add(&in_steps, 1e3 * us / step);
    }

    print_measured("launch_async", "us", &async);
    print_measured("launch_sync", "us", &sync);
    print_derived("sync_over_async", "x", samples_median(&sync) / samples_median(&async));
    print_measured("left_running", "us", &left_running);
    print_measured_once("launches", "count", (double)BATCHES * LAUNCHES);
    print_measured("host_step", "ns", &host_step);
    print_measured("launch_in_steps", "x", &in_steps);
    lab_end("01", "nullKernelAsync");
    return 0;
}
