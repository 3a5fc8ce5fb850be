// SPDX-License-Identifier: MIT
// Lab 06: Who burns the CPU while the GPU works?
//
// Waiting for an event can spin, sleep, or ask again and again; the wall clock hardly tells
// them apart, the thread's own CPU clock does. Predict before you run, for a kernel of 10 ms:
// how much CPU time does each way use? And how much later does a sleeper notice the end?
//
//     nvcc -O2 -arch=native labs/06_blockingSyncVsSpin.cu -o blockingSync && ./blockingSync
//     make grade LAB=06
//
// Worksheet: worksheets/06_blockingSyncVsSpin.md
#include "../common/lab.h"

#include <sched.h>

enum { ROUNDS = 9 };
static const double kernel_ms[] = {0.1, 1.0, 10.0};
enum { LENGTHS = sizeof kernel_ms / sizeof kernel_ms[0] };

// Waits for `cycles` cycles of its SM's clock.
__global__ void WaitKernel(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}

// An event whose waiter sleeps; NULL until it is written.
static cudaEvent_t sleeping_event(void) {
    cudaEvent_t event = NULL;
    // TODO(1): create the event with the flag that makes cudaEventSynchronize sleep. (1 line)
    // Your lines here.
    return event;
}

// Ways to wait for an event. Each returns whether it is written.
static bool synchronize(cudaEvent_t event) {
    CUDA_CHECK(cudaEventSynchronize(event));
    return true;
}

static bool poll(cudaEvent_t event) {
    bool written = false;
    (void)event;
    // TODO(2): ask cudaEventQuery until it no longer answers cudaErrorNotReady, and call
    // sched_yield() between two questions. Check the last answer; set written. (5 lines)
    // Your lines here.
    return written;
}

static bool device_synchronize(cudaEvent_t event) {
    (void)event;  // the whole device includes it
    CUDA_CHECK(cudaDeviceSynchronize());
    return true;
}

static void enqueue(long long cycles, cudaEvent_t start, cudaEvent_t stop) {
    CUDA_CHECK(cudaEventRecord(start));
    WaitKernel<<<1, 1>>>(cycles);
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaEventRecord(stop));
}

struct cost {
    struct samples wall, cpu, wake;
};

// Launches a kernel of `cycles` cycles, waits for its end in the given way, and adds to
// `cost`, in us: wall time, this thread's CPU time, and how much longer the wall time is than
// that between the events: the way of `start` to the GPU, and the waiter's noticing the end.
static void time_wait(long long cycles, cudaEvent_t start, cudaEvent_t stop,
                      bool (*wait)(cudaEvent_t), struct cost *cost) {
    double wall = NAN, cpu = NAN;
    float kernel = NAN;
    (void)cycles, (void)start, (void)wait;
    if (stop != NULL) {
        // TODO(3): read now_us() and thread_cpu_us(), call enqueue, and call wait(stop). If it
        // answers true, store in wall and cpu what passed of each clock. (6 lines)
        // Your lines here.
    }
    if (!isnan(wall)) {
        CUDA_CHECK(cudaEventSynchronize(stop));
        CUDA_CHECK(cudaEventElapsedTime(&kernel, start, stop));
    }
    samples_add(&cost->wall, wall);
    samples_add(&cost->cpu, cpu);
    samples_add(&cost->wake, wall - 1e3 * kernel);
}

int main(void) {
    static struct cost spin[LENGTHS], block[LENGTHS], polled[LENGTHS], flag, flag_device;
    cudaEvent_t start, plain, sleeping;
    long long cycles[LENGTHS];

    lab_begin("06", "blockingSyncVsSpin");
    CUDA_CHECK(cudaEventCreate(&start));
    CUDA_CHECK(cudaEventCreate(&plain));
    sleeping = sleeping_event();
    for (int k = 0; k < LENGTHS; k++)
        cycles[k] = cycles_for_us(1e3 * kernel_ms[k]);
    enqueue(0, start, plain);  // warm up
    CUDA_CHECK(cudaDeviceSynchronize());

    for (int i = 0; i < ROUNDS; i++)
        for (int k = 0; k < LENGTHS; k++) {
            region_begin("spin");
            time_wait(cycles[k], start, plain, synchronize, &spin[k]);
            region_begin("block");
            time_wait(cycles[k], start, sleeping, synchronize, &block[k]);
            region_begin("poll");
            time_wait(cycles[k], start, plain, poll, &polled[k]);
            region_end();
        }
    // The device has a flag of that name too. Does it make a plain event's waiter sleep?
    CUDA_CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    for (int i = 0; i < ROUNDS; i++) {
        time_wait(cycles[2], start, plain, synchronize, &flag);
        time_wait(cycles[2], start, plain, device_synchronize, &flag_device);
    }

    for (int k = 0; k < LENGTHS; k++) {
        print_measured_at("wall_spin", "ms", kernel_ms[k], "us", &spin[k].wall);
        print_measured_at("cpu_spin", "ms", kernel_ms[k], "us", &spin[k].cpu);
        print_measured_at("wake_spin", "ms", kernel_ms[k], "us", &spin[k].wake);
        print_measured_at("wall_block", "ms", kernel_ms[k], "us", &block[k].wall);
        print_measured_at("cpu_block", "ms", kernel_ms[k], "us", &block[k].cpu);
        print_measured_at("wake_block", "ms", kernel_ms[k], "us", &block[k].wake);
        print_measured_at("wall_poll", "ms", kernel_ms[k], "us", &polled[k].wall);
        print_measured_at("cpu_poll", "ms", kernel_ms[k], "us", &polled[k].cpu);
    }
    print_measured("cpu_device_flag", "us", &flag.cpu);
    print_measured("cpu_device_flag_sync", "us", &flag_device.cpu);
    lab_end("06", "blockingSyncVsSpin");
    return 0;
}
