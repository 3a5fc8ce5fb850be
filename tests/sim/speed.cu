// SPDX-License-Identifier: MIT
// The simulation's own speed, by the real clock that test_sim.py reads: argv[1] picks a
// load.
#include "check.h"

__global__ void Null(void) {}
__global__ void WaitAll(long long cycles, long long *out) {
    long long start = clock64(), stop;
    do
        stop = clock64();
    while (stop - start < cycles);
    if (threadIdx.x == 0)
        out[blockIdx.x] = stop - start;
}
__global__ void Uneven(long long *out) {  // each block waits for another time
    long long start = clock64(), stop;
    do
        stop = clock64();
    while (stop - start < 1000 * (blockIdx.x % 7 + 1));
    out[blockIdx.x] = stop - start;
}

int main(int, char **argv) {
    if (strcmp(argv[1], "launches") == 0) {
        for (int i = 0; i < 100000; i++)
            Null<<<1, 1>>>();
        CHECK(cudaDeviceSynchronize());
    } else {
        enum { BLOCKS = 132 * 2 };
        long long *d, h[BLOCKS], least = 1LL << 60, most = 0;
        CHECK(cudaMalloc(&d, sizeof h));
        WaitAll<<<BLOCKS, 1024>>>(100000000, d);
        CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
        for (int i = 0; i < BLOCKS; i++) {
            least = h[i] < least ? h[i] : least;
            most = h[i] > most ? h[i] : most;
        }
        printf("waited %lld to %lld\n", least, most);
        int wrong = 0;
        Uneven<<<BLOCKS, 32>>>(d);
        Uneven<<<BLOCKS, 32>>>(d);
        CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
        for (int i = 0; i < BLOCKS; i++) {
            long long wish = 1000 * (i % 7 + 1);
            wrong += h[i] < wish || h[i] > wish + wish / 100 + 30;
        }
        printf("uneven wrong %d\n", wrong);
    }
    return 0;
}
