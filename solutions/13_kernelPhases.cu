// SPDX-License-Identifier: MIT
// Lab 13: Inside one kernel, events cannot see.
//
// A kernel works in two phases of 200 and 600 us. Events stand between kernels, never inside
// one. So either the kernel reads its SM's cycle counter, or it is split in two, with an event
// between. Predict before you run: how many cycles will the counter show for each phase? What
// does the splitting cost? And if all SMs read their counters at the same moment, how far
// apart are the readings?
//
//     nvcc -O2 -arch=native labs/13_kernelPhases.cu -o kernelPhases && ./kernelPhases
//     make grade LAB=13
//
// Worksheet: worksheets/13_kernelPhases.md
#include "../common/lab.h"

enum {
    PHASE1_US = 200,  // at the peak clock; long beside what an event costs
    PHASE2_US = 600,
    ROUNDS = 15,
    BLOCKS_MAX = 2048,    // two an SM, for the comparison of the SMs' counters
    MOMENT_NS = 1000000,  // time for all those blocks to begin
};

// Stands for the work of one phase.
__device__ void work(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}

// Both phases in one kernel. Stores in phase[0] and phase[1] the cycles that each took.
__global__ void WholeKernel(long long cycles1, long long cycles2, long long *phase) {
    (void)cycles1, (void)cycles2, (void)phase;
    // TODO(1): work(cycles1), then work(cycles2); read clock64() before, between and after them,
    // and store the two differences. (7 lines)
    // BEGIN SOLUTION
    long long start = clock64();
    work(cycles1);
    long long middle = clock64();
    work(cycles2);
    long long stop = clock64();
    phase[0] = middle - start;
    phase[1] = stop - middle;
    // END SOLUTION
}

__global__ void PhaseKernel(long long cycles) { work(cycles); }

static long long cycles1, cycles2;

// Microseconds of each phase, if each is a kernel of its own.
static void split_us(cudaEvent_t before, cudaEvent_t between, cudaEvent_t after, double us[2]) {
    bool written = false;
    float ms[2];
    (void)before, (void)between, (void)after;
    // TODO(2): launch PhaseKernel with cycles1 and again with cycles2, on one block of one
    // thread, and record the three events where their names say. Set written. (6 lines)
    // BEGIN SOLUTION
    CUDA_CHECK(cudaEventRecord(before));
    PhaseKernel<<<1, 1>>>(cycles1);
    CUDA_CHECK(cudaEventRecord(between));
    PhaseKernel<<<1, 1>>>(cycles2);
    CUDA_CHECK(cudaEventRecord(after));
    written = true;
    // END SOLUTION
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaDeviceSynchronize());
    us[0] = us[1] = NAN;
    if (written) {
        CUDA_CHECK(cudaEventElapsedTime(&ms[0], before, between));
        CUDA_CHECK(cudaEventElapsedTime(&ms[1], between, after));
        us[0] = 1e3 * (double)ms[0], us[1] = 1e3 * (double)ms[1];
    }
}

// The whole GPU's timer, in ns. It is one for all SMs, but coarse: it steps by 32 ns on some
// GPUs and by 1,000 on others.
__device__ unsigned long long gpu_ns(void) {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__global__ void ChooseMoment(unsigned long long *moment) { *moment = gpu_ns() + MOMENT_NS; }

struct reading {
    long long clock;
    unsigned sm;
    bool late;
};

// Every block waits for the same moment and reads its SM's cycle counter.
__global__ void ReadClocks(const unsigned long long *moment, struct reading *reading) {
    struct reading mine;
    unsigned long long until = *moment;
    mine.late = gpu_ns() >= until;
    while (gpu_ns() < until)
        ;
    mine.clock = clock64();
    asm volatile("mov.u32 %0, %%smid;" : "=r"(mine.sm));
    reading[blockIdx.x] = mine;
}

// The largest difference between any two blocks' readings, and between two of the same SM:
// the latter is how well the blocks meet the moment. False if a block came too late for it.
static bool clock_skew(unsigned long long *d_moment, struct reading *d_reading, int blocks,
                       double *any, double *same_sm) {
    static struct reading r[BLOCKS_MAX];
    ChooseMoment<<<1, 1>>>(d_moment);
    ReadClocks<<<blocks, 1>>>(d_moment, d_reading);
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaMemcpy(r, d_reading, blocks * sizeof r[0], cudaMemcpyDeviceToHost));
    *any = *same_sm = 0.0;
    for (int i = 0; i < blocks; i++) {
        for (int k = 0; k < i; k++) {
            double apart = fabs((double)(r[i].clock - r[k].clock));
            *any = fmax(*any, apart);
            if (r[i].sm == r[k].sm)
                *same_sm = fmax(*same_sm, apart);
        }
        if (r[i].late)
            return false;
    }
    return true;
}

int main(void) {
    static struct samples phase1, phase2, whole, split1, split2, skew, same;
    cudaEvent_t before, between, after;
    long long phase[2], *d_phase;
    unsigned long long *d_moment;
    struct reading *d_reading;

    lab_begin("13", "kernelPhases");
    struct event_timer timer = event_timer_create();
    cycles1 = cycles_for_us(PHASE1_US), cycles2 = cycles_for_us(PHASE2_US);
    int sms = device_attribute(cudaDevAttrMultiProcessorCount);
    int blocks = 2 * sms < BLOCKS_MAX ? 2 * sms : BLOCKS_MAX;
    CUDA_CHECK(cudaEventCreate(&before));
    CUDA_CHECK(cudaEventCreate(&between));
    CUDA_CHECK(cudaEventCreate(&after));
    CUDA_CHECK(cudaMalloc(&d_phase, sizeof phase));
    CUDA_CHECK(cudaMalloc(&d_moment, sizeof *d_moment));
    CUDA_CHECK(cudaMalloc(&d_reading, BLOCKS_MAX * sizeof *d_reading));

    for (int round = -1; round < ROUNDS; round++) {  // round -1 warms up
        double split[2], any, same_sm;
        CUDA_CHECK(cudaMemset(d_phase, 0, sizeof phase));
        event_timer_start(&timer, 0);
        WholeKernel<<<1, 1>>>(cycles1, cycles2, d_phase);
        CUDA_CHECK_LAUNCH();
        event_timer_stop(&timer, 0);
        double whole_us = event_timer_us(&timer);
        CUDA_CHECK(cudaMemcpy(phase, d_phase, sizeof phase, cudaMemcpyDeviceToHost));
        region_begin("split");
        split_us(before, between, after, split);
        region_end();
        bool met = clock_skew(d_moment, d_reading, blocks, &any, &same_sm);
        if (round < 0)
            continue;
        bool written = phase[0] != 0 && phase[1] != 0;
        samples_add(&phase1, written ? (double)phase[0] : NAN);
        samples_add(&phase2, written ? (double)phase[1] : NAN);
        samples_add(&whole, written ? whole_us : NAN);
        samples_add(&split1, split[0]);
        samples_add(&split2, split[1]);
        if (met) {
            samples_add(&skew, any);
            samples_add(&same, same_sm);
        }
    }

    double whole_us = samples_median(&whole);
    print_measured("phase1_cycles", "cycles", &phase1);
    print_measured("phase2_cycles", "cycles", &phase2);
    print_measured("whole", "us", &whole);
    print_derived("sm_clock", "MHz",
                  (samples_median(&phase1) + samples_median(&phase2)) / whole_us);
    print_measured("split1", "us", &split1);
    print_measured("split2", "us", &split2);
    print_derived("split_overhead", "us",
                  samples_median(&split1) + samples_median(&split2) - whole_us);
    print_measured("clock_skew", "cycles", &skew);
    print_measured("same_sm_skew", "cycles", &same);
    lab_end("13", "kernelPhases");
    return 0;
}
