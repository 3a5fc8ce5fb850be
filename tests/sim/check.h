// SPDX-License-Identifier: MIT
// What the simulated device's test programs share.
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define CHECK(call)                                                                        \
    do {                                                                                   \
        cudaError_t checked = (call);                                                      \
        if (checked != cudaSuccess) {                                                      \
            printf("line %d: %s: %s\n", __LINE__, #call, cudaGetErrorName(checked));       \
            exit(3);                                                                       \
        }                                                                                  \
    } while (0)

static inline double clock_us(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}
static inline double now_us(void) {
    return clock_us(CLOCK_MONOTONIC);
}
static inline double cpu_us(void) {
    return clock_us(CLOCK_THREAD_CPUTIME_ID);
}
static inline long long cycles(double us) {
    return (long long)(us * 1980.0);
}
__global__ void Wait(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}
