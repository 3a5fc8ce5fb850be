// SPDX-License-Identifier: MIT
// Lab 02: How long must a kernel run before its launch is worth it?
//
// While the CPU hands over the next launch, the GPU can run the last one, so short kernels
// hide behind their launches. The CUDA Handbook calls a kernel worth its launch when the two
// together take twice as long as launching a kernel that does nothing. Predict before you
// run: at how many clock cycles is that here? And up to how many cycles is the kernel free?
//
//     nvcc -O2 -arch=native labs/02_breakevenKernelAsync.cu -o breakeven && ./breakeven
//     make grade LAB=02
//
// Worksheet: worksheets/02_breakevenKernelAsync.md
#include "../common/lab.h"

enum {
    LAUNCHES = 300,       // a batch
    ROUNDS = 11,          // batches a point; each round visits every point, so that a slow
                          // moment of the host bends one round and not one point
    POINTS = 24,          // of the sweep
    CYCLES_MAX = 500000,  // give up: no launch costs an eighth of a millisecond
};

__device__ unsigned device_time;

// Waits for `cycles` cycles of its SM's clock. Nobody ever passes true, but the compiler
// cannot know that: were nothing written, it might drop the loop as useless.
__global__ void WaitKernel(int cycles, bool write) {
    // TODO(1): read clock() into start, then read it into stop until stop - start has reached
    // `cycles`. Then, if `write` is set, thread 0 of block 0 stores stop - start in
    // device_time. Unsigned, since the counter wraps round. (6 lines)
    // Your lines here.
}

// Microseconds a launch of WaitKernel, launched back to back.
static double launch_wait_us(int cycles) {
    double us = NAN;
    (void)cycles;
    // TODO(2): as in lab 01, TODO(2): LAUNCHES launches of WaitKernel(cycles, false), and one
    // synchronize before the clock is read again. (7 lines)
    // Your lines here.
    return us;
}

// The number of cycles at which the curve through (cycles[i], us[i]) first rises to `level`.
static double crossing(const int *cycles, const double *us, int count, double level) {
    double at = NAN;
    (void)cycles, (void)us, (void)count, (void)level;
    // TODO(3): find the first i >= 1 with us[i] >= level, and put `at` on the straight line
    // between point i - 1 and point i where it meets the level. (4 lines)
    // Your lines here.
    return at;
}

// The least-squares line us = intercept + slope * cycles through the points at or above
// `from` microseconds, where the kernel no longer hides. Returns the slope.
static double tail_line(const int *cycles, const double *us, int count, double from,
                        double *intercept) {
    double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
    for (int i = 0; i < count; i++)
        if (us[i] >= from) {
            n += 1, sx += cycles[i], sy += us[i];
            sxx += (double)cycles[i] * cycles[i], sxy += cycles[i] * us[i];
        }
    double slope = (n * sxy - sx * sy) / (n * sxx - sx * sx);
    *intercept = (sy - slope * sx) / n;
    return slope;
}

// The cheaper of two batches: an interrupt can only make one dearer.
static double quick_launch_wait_us(int cycles) {
    double first = launch_wait_us(cycles), second = launch_wait_us(cycles);
    return first < second ? first : second;
}

int main(void) {
    static struct samples null_launch, wait[POINTS];
    int cycles[POINTS], top = 500;

    lab_begin("02", "breakevenKernelAsync");
    for (int i = 0; i < 20; i++)  // warm up
        launch_wait_us(0);

    // Find where to look: double the kernel until its launch costs twice a NULL launch. No
    // fixed end would do; that is near 2,600 cycles on one GPU and 17,000 on another.
    double begun = now_us(), null_us = quick_launch_wait_us(0);
    while (top < CYCLES_MAX && quick_launch_wait_us(top) < 2.0 * null_us)
        top *= 2;
    for (int i = 0; i < POINTS; i++)  // and on for half as far again, to see the slope
        cycles[i] = (int)(1.5 * top / POINTS * (i + 1));

    for (int round = 0; round < ROUNDS; round++) {
        samples_add(&null_launch, launch_wait_us(0));
        for (int i = 0; i < POINTS; i++)
            samples_add(&wait[i], launch_wait_us(cycles[i]));
    }
    double seconds = (now_us() - begun) / 1e6;

    double medians[POINTS], intercept, level = 2.0 * samples_median(&null_launch);
    print_measured("launch_null", "us", &null_launch);
    for (int i = 0; i < POINTS; i++) {
        medians[i] = samples_median(&wait[i]);
        print_measured_at("launch_wait", "cycles", cycles[i], "us", &wait[i]);
    }
    double slope = tail_line(cycles, medians, POINTS, 0.75 * level, &intercept);
    print_derived("breakeven_cycles", "cycles", crossing(cycles, medians, POINTS, level));
    print_derived("hidden_cycles", "cycles", (level / 2.0 - intercept) / slope);
    print_derived("tail_ns_per_cycle", "ns", 1e3 * slope);
    print_measured_once("sweep_time", "s", seconds);
    lab_end("02", "breakevenKernelAsync");
    return 0;
}
