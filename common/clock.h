// SPDX-License-Identifier: MIT
// Host clocks, in microseconds, and a way to move from core to core.
#pragma once

#include <sched.h>
#include <time.h>

static inline double clock_us(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

// Time since some fixed moment. Never set back, unlike CLOCK_REALTIME.
static inline double now_us(void) { return clock_us(CLOCK_MONOTONIC); }

// Processor time that this thread has used: it stands still while the thread sleeps.
static inline double thread_cpu_us(void) { return clock_us(CLOCK_THREAD_CPUTIME_ID); }

// Moves this thread to the n-th of the cores that it may use, counted round and round. Does
// nothing where the system does not let it.
static inline void move_to_core(int n) {
    static cpu_set_t allowed;
    static int count = 0;
    cpu_set_t one;
    if (count == 0 && sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        count = CPU_COUNT(&allowed);
    for (int core = 0, left = count ? n % count : 0; core < (count ? CPU_SETSIZE : 0); core++)
        if (CPU_ISSET(core, &allowed) && left-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            sched_setaffinity(0, sizeof one, &one);
        }
}
