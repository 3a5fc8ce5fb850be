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
    ROUNDS = 150,    // readings, spread over some two seconds
    VISITS = 16,     // batches a reading, each on the next core; the cheapest counts
    LAUNCHES = 100,  // a batch; far fewer than the thousand or so that a stream's queue holds
    SYNCED = 20,     // launches of a synchronizing batch
};

__global__ void NullKernel(void) {}

// Microseconds that the very first launch of NullKernel takes, until it has run.
static double first_launch_us(void) {
    double us = NAN;
    // TODO(1): warm up. Read now_us(), launch NullKernel once on one block of one thread and
    // check it, synchronize with the device, and store the time that passed in us. (5 lines)
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

// Microseconds from when launch_async_us stopped its clock until the GPU is done, if it began
// at `start` and took async_us a launch: next to none where no launch was left to wait for.
static double left_running_us(double start, double async_us) {
    CUDA_CHECK(cudaDeviceSynchronize());
    return now_us() - start - LAUNCHES * async_us;
}

static void keep_least(double *least, double us) {
    if (!(us >= *least))  // a NAN passes too: it is a TODO not done
        *least = us;
}

int main(void) {
    static struct samples async, sync, left_running;

    lab_begin("01", "nullKernelAsync");
    print_measured_once("first_launch", "us", first_launch_us());
    CUDA_CHECK(cudaDeviceSynchronize());

    // Whoever shares a core with us, another program or another virtual machine, can only slow
    // us down, by a quarter and for seconds. So a reading visits one core after the other and
    // keeps the least. Both loops are timed in turn, so that what disturbs hits both.
    for (int round = 0; round < ROUNDS; round++) {
        double least_async = INFINITY, least_sync = INFINITY, least_left = INFINITY;
        for (int visit = 0; visit < VISITS; visit++) {
            move_to_core(round * VISITS + visit);
            for (int i = 0; i < 10; i++)  // warms up the new core's caches
                NullKernel<<<1, 1>>>();
            CUDA_CHECK_LAUNCH();
            CUDA_CHECK(cudaDeviceSynchronize());
            double start = now_us(), async_us = launch_async_us();
            keep_least(&least_left, left_running_us(start, async_us));
            keep_least(&least_async, async_us);
            keep_least(&least_sync, launch_sync_us());
        }
        samples_add(&async, least_async);
        samples_add(&left_running, least_left);
        samples_add(&sync, least_sync);
    }

    print_measured("launch_async", "us", &async);
    print_measured("launch_sync", "us", &sync);
    print_derived("sync_over_async", "x", samples_median(&sync) / samples_median(&async));
    print_measured("left_running", "us", &left_running);
    print_measured_once("launches", "count", (double)ROUNDS * VISITS * LAUNCHES);
    lab_end("01", "nullKernelAsync");
    return 0;
}
