// SPDX-License-Identifier: MIT
// A stopwatch whose two presses are carried out by the GPU, in the order of one stream.
//
//     event_timer_start(&timer, stream);
//     Kernel<<<grid, block, 0, stream>>>();
//     event_timer_stop(&timer, stream);
//     double us = event_timer_us(&timer);  // waits for the second press: not for a hot loop
#pragma once

#include "cuda_check.h"

struct event_timer {
    cudaEvent_t start, stop;
};

static inline struct event_timer event_timer_create(void) {
    struct event_timer timer;
    CUDA_CHECK(cudaEventCreate(&timer.start));
    CUDA_CHECK(cudaEventCreate(&timer.stop));
    return timer;
}

static inline void event_timer_start(struct event_timer *timer, cudaStream_t stream) {
    CUDA_CHECK(cudaEventRecord(timer->start, stream));
}

static inline void event_timer_stop(struct event_timer *timer, cudaStream_t stream) {
    CUDA_CHECK(cudaEventRecord(timer->stop, stream));
}

// Microseconds between the presses; the runtime counts in milliseconds. Its resolution is
// documented as half a microsecond or so; an H200 counts in steps of 32 ns.
static inline double event_timer_us(struct event_timer *timer) {
    float ms = 0.0f;
    CUDA_CHECK(cudaEventSynchronize(timer->stop));
    CUDA_CHECK(cudaEventElapsedTime(&ms, timer->start, timer->stop));
    return 1e3 * (double)ms;
}
