// SPDX-License-Identifier: MIT
// Host clocks, in microseconds, and a yardstick for the host itself.
#ifndef LAB_CLOCK_H
#define LAB_CLOCK_H

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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

// Nanoseconds that one fixed step of host work takes now: a load that misses the core's own
// caches, then 40 multiply-adds, each needing the result before it. About 0.7 : 0.3 on a
// server, which is also about how a launch's cost divides between waiting for memory and
// computing. On a busy host this reading and a launch's cost rise and fall together by tens
// of per cent, over seconds: read it between batches and their ratio hardly moves. (Ten-run
// spreads of both are in worksheets/01_nullKernelAsync.md.) One reading costs about 1.5 ms.
static inline double host_step_ns(void) {
    enum { STEPS = 8000, RING = 1 << 22 };  // 16 MiB: larger than any core's own cache
#ifdef LAB_SIMULATED
    return sim_host_step(STEPS);
#else
    static uint32_t *ring = NULL;
    static uint32_t place = 0;
    static volatile uint64_t zero = 0;  // the compiler cannot know, so the chain stays
    if (ring == NULL) {
        ring = (uint32_t *)malloc(RING * sizeof *ring);
        if (ring == NULL) {
            fprintf(stderr, "out of host memory: the host yardstick needs 16 MiB\n");
            exit(1);
        }
        // A linear congruential generator of full period: one cycle through all elements.
        for (uint32_t i = 0; i < RING; i++)
            ring[i] = (uint32_t)((1664525u * i + 1013904223u) % RING);
    }
    uint64_t mask = zero;
    double start = now_us();
    for (int i = 0; i < STEPS; i++) {
        place = ring[place];
        uint64_t x = place;
        for (int k = 0; k < 40; k++)
            x = x * 6364136223846793005u + 1442695040888963407u;
        place = (uint32_t)(place + (x & mask));
    }
    return 1e3 * (now_us() - start) / STEPS;
#endif
}

#endif
