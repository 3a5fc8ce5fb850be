// SPDX-License-Identifier: MIT
// What does CUDA_CHECK_LAUNCH add to a launch? Batches with it and without take turns, each
// pair gives one ratio, and the median of the ratios is the answer. make bench
#include "../common/lab.h"

enum { BATCHES = 1000, LAUNCHES = 500 };

__global__ void NullKernel(void) {}

static double batch_us(bool checked) {
    double start = now_us();
    if (checked)
        for (int i = 0; i < LAUNCHES; i++) {
            NullKernel<<<1, 1>>>();
            CUDA_CHECK_LAUNCH();
        }
    else
        for (int i = 0; i < LAUNCHES; i++)
            NullKernel<<<1, 1>>>();
    CUDA_CHECK(cudaDeviceSynchronize());
    return (now_us() - start) / LAUNCHES;
}

int main(void) {
    static struct samples plain, checked, ratio;
    lab_begin("00", "checkCost");
    for (int i = 0; i < 10; i++)
        batch_us(true);
    for (int i = 0; i < BATCHES; i++) {
        bool first = i % 2 == 0;  // either goes first in half of the pairs
        double a = batch_us(first), b = batch_us(!first);
        samples_add(&checked, first ? a : b);
        samples_add(&plain, first ? b : a);
        samples_add(&ratio, first ? a / b : b / a);
    }
    print_measured("launch", "us", &plain);
    print_measured("launch_checked", "us", &checked);
    print_measured("checked_over_plain", "x", &ratio);
    lab_end("00", "checkCost");
    return 0;
}
