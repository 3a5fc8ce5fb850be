// SPDX-License-Identifier: MIT
// libc's clocks and sleeps, on virtual time, so that a program's own timing code reads it.
// Work on the CPU takes no virtual time at all; calls do, and sim_host_work.
#define _GNU_SOURCE
#include "sim.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

// Where the clocks stand when the program starts, in seconds; fixed, so that each run
// prints the same. The second is 1 January 2026.
static const int64_t monotonic_base = 1000, realtime_base = 1767225600;

// Whoever waits when main is over, as a leak checker does, waits for real.
static bool over;
__attribute__((destructor)) static void stop(void) { over = true; }

static void pass(double wall_us, double cpu_us) {
    if (sim.in_host_function) {  // on a thread of the runtime's own
        sim.host_function_us += wall_us;
        return;
    }
    trace_close();
    sim.now += wall_us;
    sim.cpu += cpu_us;
    gpu_advance(sim.now);
}

static void set(struct timespec *t, double us, int64_t base) {
    int64_t ns = (int64_t)(us * 1e3 + 0.5);
    t->tv_sec = (time_t)(base + ns / 1000000000);
    t->tv_nsec = (long)(ns % 1000000000);
}

int clock_gettime(clockid_t id, struct timespec *t) {
    if (id == CLOCK_PROCESS_CPUTIME_ID || id == CLOCK_THREAD_CPUTIME_ID) {
        pass(param.cpu_clock_read_us, param.cpu_clock_read_us);
        set(t, sim.cpu, 0);
    } else {
        pass(param.clock_read_us, param.clock_read_us);
        bool real = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI;
        double us = sim.in_host_function ? sim.gpu + sim.host_function_us : sim.now;
        set(t, us, real ? realtime_base : monotonic_base);
    }
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t != NULL)
        *t = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *t, int base) {
    clock_gettime(CLOCK_REALTIME, t);
    return base;
}

// Inside a kernel this is the device's clock, as nvcc would have it.
__attribute__((noinline)) clock_t clock(void) {
    if (sim.in_kernel)
        return (clock_t)kernel_clock(__builtin_return_address(0));
    pass(param.cpu_clock_read_us, param.cpu_clock_read_us);
    return (clock_t)(sim.cpu * (CLOCKS_PER_SEC / 1e6));
}

int getrusage(__rusage_who_t who, struct rusage *usage) {
    (void)who;
    pass(param.cpu_clock_read_us, param.cpu_clock_read_us);
    *usage = (struct rusage){0};
    usage->ru_utime.tv_sec = (time_t)(sim.cpu / 1e6);
    usage->ru_utime.tv_usec = (long)(int64_t)sim.cpu % 1000000;
    return 0;
}

static int sleep_us(double us) {
    pass(us + param.sleep_extra_us, param.yield_us);
    if (!sim.in_host_function)
        host_waited(us);
    return 0;
}

int nanosleep(const struct timespec *wish, struct timespec *left) {
    (void)left;
    return sleep_us(1e6 * (double)wish->tv_sec + 1e-3 * (double)wish->tv_nsec);
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *wish,
                    struct timespec *left) {
    (void)left;
    double us = 1e6 * (double)wish->tv_sec + 1e-3 * (double)wish->tv_nsec;
    if (flags & TIMER_ABSTIME)
        us -= sim.now + 1e6 * (double)(id == CLOCK_REALTIME ? realtime_base : monotonic_base);
    return us > 0.0 ? sleep_us(us) : 0;
}

int usleep(useconds_t us) { return sleep_us(us); }

unsigned sleep(unsigned seconds) { return (unsigned)sleep_us(1e6 * seconds); }

int sched_yield(void) {
    if (over)
        return (int)syscall(SYS_sched_yield);
    pass(param.yield_us, param.yield_us);
    return 0;
}

void sim_host_work(double ns) { pass(ns / 1e3, ns / 1e3); }
