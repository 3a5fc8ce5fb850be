// SPDX-License-Identifier: MIT
// Lab 03: Four clocks round one kernel. Which one is the kernel?
//
// The kernel waits for 500 us on the GPU's own clock, so the right answer is known. Predict
// before you run: what does the host's clock read without a synchronize, what with one, what
// does a pair of events read, and what do events read for nothing at all?
//
//     nvcc -O2 -arch=native labs/03_eventTiming.cu -o eventTiming && ./eventTiming
//     make grade LAB=03
//
// Worksheet: worksheets/03_eventTiming.md
#include "../common/lab.h"

enum {
    KERNEL_US = 500,  // long beside a launch, short enough to repeat
    ROUNDS = 9,       // readings of each figure
    ITERATIONS = 20,  // kernels between one pair of events
    NULL_LAUNCHES = 1000,
};

__global__ void NullKernel(void) {}

// Waits for `cycles` cycles of its SM's clock.
__global__ void WaitKernel(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}

static long long cycles;  // KERNEL_US of this GPU's clock

static void launch_wait(void) {
    WaitKernel<<<1, 1>>>(cycles);
    CUDA_CHECK_LAUNCH();
}

// Two readings of the host's clock round one launch.
static void host_clock_us(double *enqueue, double *sync) {
    *enqueue = *sync = NAN;
    // TODO(1): read now_us(), call launch_wait(), and store the time passed in *enqueue. Then
    // synchronize with the device and store the time passed since the start in *sync. (5 lines)
    // Your lines here.
}

// Microseconds a kernel by events, ITERATIONS kernels back to back.
static double event_batch_us(struct event_timer *timer) {
    double us = NAN;
    (void)timer;
    // TODO(2): start the timer on stream 0, launch ITERATIONS times, stop the timer, and store
    // event_timer_us(timer) for one kernel. What do the three functions of the timer call?
    // Read common/event_timer.h. (5 lines)
    // Your lines here.
    return us;
}

// The same, but the host waits for each kernel before it launches the next.
static double event_each_sync_us(struct event_timer *timer) {
    double us = NAN;
    (void)timer;
    // TODO(3): as TODO(2), with a cudaDeviceSynchronize after each launch. (7 lines)
    // Your lines here.
    return us;
}

// What a pair of events reads with `launches` NULL kernels between: in all, not for each.
static double event_null_us(struct event_timer *timer, int launches) {
    event_timer_start(timer, 0);
    for (int i = 0; i < launches; i++) {
        NullKernel<<<1, 1>>>();
        CUDA_CHECK_LAUNCH();
    }
    event_timer_stop(timer, 0);
    return event_timer_us(timer);
}

int main(void) {
    static struct samples enqueue, sync, batch, each, empty, one, many;

    lab_begin("03", "eventTiming");
    struct event_timer timer = event_timer_create();
    cycles = cycles_for_us(KERNEL_US);

    // The first launch ever: the kernel's code is still to be loaded, between the two events.
    event_timer_start(&timer, 0);
    launch_wait();
    event_timer_stop(&timer, 0);
    double first = event_timer_us(&timer);
    event_null_us(&timer, 1);  // warms NullKernel up

    for (int i = 0; i < ROUNDS; i++) {
        double enqueue_us, sync_us;
        region_begin("host_clock");
        host_clock_us(&enqueue_us, &sync_us);
        region_begin("event_batch");
        double batch_us = event_batch_us(&timer);
        region_begin("event_each_sync");
        double each_us = event_each_sync_us(&timer);
        region_end();
        samples_add(&enqueue, enqueue_us);
        samples_add(&sync, sync_us);
        samples_add(&batch, batch_us);
        samples_add(&each, each_us);
        samples_add(&empty, event_null_us(&timer, 0));
        samples_add(&one, event_null_us(&timer, 1));
        samples_add(&many, event_null_us(&timer, NULL_LAUNCHES) / NULL_LAUNCHES);
    }

    print_measured("wall_enqueue", "us", &enqueue);
    print_measured("wall_sync", "us", &sync);
    print_measured("event_batch", "us", &batch);
    print_measured_once("event_first", "us", first);
    print_measured("event_each_sync", "us", &each);
    print_measured("event_empty", "us", &empty);
    print_measured("event_null", "us", &one);
    print_measured("event_null_batch", "us", &many);
    print_derived("sm_clock", "MHz", (double)cycles / samples_median(&batch));
    lab_end("03", "eventTiming");
    return 0;
}
