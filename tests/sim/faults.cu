// SPDX-License-Identifier: MIT
// Bad pointers, one way an argv[1]. The host must live to print what the runtime says.
#include "check.h"

__global__ void Store(int *p, int i) {
    p[i] = 1;
}
__global__ void Recurse(int *p, int depth) {
    volatile char frame[4096];
    frame[depth % 4096] = 1;
    *p += frame[0];
    void (*volatile again)(int *, int) = Recurse;
    again(p, depth + 1);
    *p += frame[1];  // so that it is no tail call
}

int main(int, char **argv) {
    int *d, *freed, h[64] = {0};
    cudaStream_t a, b;
    CHECK(cudaMalloc(&d, sizeof h));
    CHECK(cudaMalloc(&freed, sizeof h));
    CHECK(cudaStreamCreate(&a));
    CHECK(cudaStreamCreate(&b));
    Store<<<1, 1>>>(d, 0);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFree(freed));
    Store<<<1, 1, 0, a>>>(d, 1);  // different elements: not in each other's way
    Store<<<1, 1, 0, b>>>(d, 2);
    CHECK(cudaDeviceSynchronize());
    if (strcmp(argv[1], "null") == 0)
        Store<<<1, 1>>>(NULL, 0);
    else if (strcmp(argv[1], "over") == 0)
        Store<<<1, 1>>>(d, 64);
    else if (strcmp(argv[1], "far") == 0)
        Store<<<1, 1>>>(d, 1 << 28);
    else if (strcmp(argv[1], "freed") == 0)
        Store<<<1, 1>>>(freed, 0);
    else if (strcmp(argv[1], "host") == 0)
        Store<<<1, 1>>>(h, 0);
    else if (strcmp(argv[1], "deep") == 0)
        Recurse<<<1, 1>>>(d, 0);
    else if (strcmp(argv[1], "dereference") == 0)
        d[0]++;
    else if (strcmp(argv[1], "last") == 0)
        Store<<<1, 1>>>(d, 63);
    Store<<<1, 1, 0, a>>>(d, 1);  // work in other streams, dropped with the context
    Store<<<1, 1, 0, b>>>(d, 2);
    printf("launch %s\n", cudaGetErrorName(cudaGetLastError()));
    printf("synchronize %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    printf("after %s\n", cudaGetErrorName(cudaMemset(d, 0, 4)));
    return 0;
}
