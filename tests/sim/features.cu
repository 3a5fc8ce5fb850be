// SPDX-License-Identifier: MIT
// One small use of each remaining part of the runtime, with the value that must come out.
#include "check.h"

enum { N = 1000 };
__constant__ float scale[2] = {1.0f, 2.0f};
__device__ int counter;
__device__ int table[4];

__global__ void Reverse(int *data) {  // needs its barrier
    __shared__ int tile[256];
    tile[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
__global__ void Sum(const int *data, int n, int *total) {
    extern __shared__ int partial[];
    partial[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        partial[threadIdx.x] += data[i];
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < (unsigned)half)
            partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *total = partial[0];
}
template <typename T, int K> __global__ void Scale(T *x, int n) {
    int i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = x[i] * (T)K * scale[1];
}
__global__ void Roomy(long long cycles) {  // 40 KiB a block: five fit on an SM of 228
    __shared__ char room[40 << 10];
    long long start = clock64();
    room[threadIdx.x] = 1;
    while (clock64() - start < cycles)
        ;
}
__global__ void Count(void) { atomicAdd(&counter, 1); }
__global__ void Twice(int *out, const int *in) { out[threadIdx.x] = 2 * in[threadIdx.x]; }
struct pair {
    char a;
    double b;
};
__global__ void Struct(double *out, struct pair p, bool twice) {
    *out = p.b * (twice ? 2 : 1) + p.a;
}
static void add(void *user) {
    float ms;
    *(int *)user += cudaEventElapsedTime(&ms, NULL, NULL) == cudaErrorNotPermitted ? 1 : 1000;
}
static void say(const char *what, double value) { printf("%s %g\n", what, value); }

static int *d;  // of 256
static cudaStream_t a, high;

static void shared_memory(void) {
    int h[256], *d_total, value = 0;
    CHECK(cudaMalloc(&d_total, sizeof *d_total));
    for (int i = 0; i < 256; i++)
        h[i] = i;
    CHECK(cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice));
    Reverse<<<1, 256>>>(d);
    CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    say("reverse", h[0] == 255 && h[255] == 0 && h[10] == 245);
    Sum<<<1, 64, 64 * sizeof(int)>>>(d, 256, d_total);
    CHECK(cudaMemcpy(&value, d_total, sizeof value, cudaMemcpyDefault));
    say("sum", value);
}

static void symbols_and_templates(void) {
    int h[256], value = 0;
    float *d_x, x[N];
    CHECK(cudaMalloc(&d_x, sizeof x));
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    CHECK(cudaMemcpy(d_x, x, sizeof x, cudaMemcpyHostToDevice));
    Scale<float, 3><<<dim3(2, 2), dim3(N / 4 + 1)>>>(d_x, N);
    CHECK(cudaMemcpy(x, d_x, sizeof x, cudaMemcpyDeviceToHost));
    say("template", x[7]);
    const float three[2] = {1.0f, 3.0f};
    CHECK(cudaMemcpyToSymbol(scale, three, sizeof three));
    Scale<float, 1><<<4, 256>>>(d_x, N);
    CHECK(cudaMemcpy(x, d_x, sizeof x, cudaMemcpyDeviceToHost));
    say("constant", x[7]);
    Count<<<10, 32>>>();
    CHECK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
    say("atomic", value);
    int *address, four = 4;
    CHECK(cudaGetSymbolAddress((void **)&address, table));
    CHECK(cudaMemcpy(address + 2, &four, sizeof four, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpyFromSymbol(h, table, sizeof table));
    say("symbol", h[2]);
}

static void arguments(void) {
    double *d_out, out;
    CHECK(cudaMalloc(&d_out, sizeof out));
    struct pair p = {1, 2.5};
    Struct<<<1, 1>>>(d_out, p, true);
    CHECK(cudaMemcpy(&out, d_out, sizeof out, cudaMemcpyDeviceToHost));
    say("struct", out);
    bool twice = false;
    void *args[] = {&d_out, &p, &twice};
    CHECK(cudaLaunchKernel(Struct, dim3(1), dim3(1), args, 0, 0));
    CHECK(cudaMemcpy(&out, d_out, sizeof out, cudaMemcpyDeviceToHost));
    say("launch_kernel", out);
}

// The same launch again and again must see what changed in between, on either side.
static void again(void) {
    int h[256], value = 0;
    for (int i = 0; i < 256; i++)
        h[i] = 0;
    int *d_twice, sum = 0;
    CHECK(cudaMalloc(&d_twice, sizeof h));
    for (int round = 0; round < 4; round++) {
        h[0] = round < 3 ? round + 1 : 3;
        if (round < 3)
            CHECK(cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice));
        else
            CHECK(cudaMemset(d_twice, 0, sizeof h));
        Twice<<<1, 256>>>(d_twice, d);
        Twice<<<1, 256>>>(d_twice, d);
        CHECK(cudaMemcpy(&value, d_twice, sizeof value, cudaMemcpyDeviceToHost));
        sum = 10 * sum + value;
    }
    say("again", sum);
}

static void host_function(void) {
    int called = 0;
    Wait<<<1, 1, 0, a>>>(cycles(500));
    CHECK(cudaLaunchHostFunc(a, add, &called));
    say("host_function_early", called);
    CHECK(cudaStreamSynchronize(a));
    say("host_function", called);
}

static void occupancy(void) {
    int blocks;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, Count, 1024, 0));
    say("occupancy_threads", blocks);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, Count, 32, 0));
    say("occupancy_blocks", blocks);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, Count, 32, 47 << 10));
    say("occupancy_shared", blocks);
}

static void room_on_the_sms(void) {
    // 132 SMs with two blocks of 1,024 threads each: 265 take two turns, 264 one.
    CHECK(cudaDeviceSynchronize());
    for (int n = 264; n <= 265; n++) {
        double t = now_us();
        Wait<<<n, 1024>>>(cycles(1000));
        CHECK(cudaDeviceSynchronize());
        say(n == 264 ? "turns_264" : "turns_265", (int)((now_us() - t) / 1000));
    }
    // Both kernels' blocks need more than half of an SM's shared memory.
    CHECK(cudaFuncSetAttribute(Wait, cudaFuncAttributeMaxDynamicSharedMemorySize, 120 << 10));
    double t = now_us();
    Wait<<<132, 32, 120 << 10, a>>>(cycles(1000));
    Wait<<<132, 32, 120 << 10, high>>>(cycles(1000));
    CHECK(cudaDeviceSynchronize());
    say("shared_turns", (int)((now_us() - t) / 1000));
    Roomy<<<1, 1>>>(1);
    CHECK(cudaDeviceSynchronize());
    for (int n = 5 * 132; n <= 5 * 132 + 1; n++) {
        t = now_us();
        Roomy<<<n, 32>>>(cycles(1000));
        CHECK(cudaDeviceSynchronize());
        say(n == 660 ? "roomy_660" : "roomy_661", (int)((now_us() - t) / 1000));
    }
}

// A stream of higher priority goes before those that wait.
static void priorities(void) {
    cudaEvent_t ends[2];
    float ms;
    CHECK(cudaEventCreate(&ends[0]));
    CHECK(cudaEventCreate(&ends[1]));
    Wait<<<264, 1024, 0>>>(cycles(1000));
    Wait<<<264, 1024, 0, a>>>(cycles(1000));
    CHECK(cudaEventRecord(ends[0], a));
    Wait<<<264, 1024, 0, high>>>(cycles(1000));
    CHECK(cudaEventRecord(ends[1], high));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaEventElapsedTime(&ms, ends[1], ends[0]));
    say("priority_first", ms > 0.5f);
}

static void memory(void) {
    size_t before, now, total;
    CHECK(cudaMemGetInfo(&before, &total));
    char *big;
    CHECK(cudaMalloc(&big, 1 << 20));
    CHECK(cudaMemGetInfo(&now, &total));
    say("memory_taken", (double)(before - now));
    CHECK(cudaMemset(big, 7, 1 << 20));
    char *fetched = (char *)malloc(1 << 20);
    CHECK(cudaMemcpy(fetched, big, 1 << 20, cudaMemcpyDeviceToHost));
    say("memset", fetched[12345]);
    free(fetched);
    CHECK(cudaFreeAsync(big, a));
    CHECK(cudaFree(d));
    CHECK(cudaMemGetInfo(&now, &total));
    say("memory_back", now > before);
}

static void device(void) {
    int attribute;
    cudaDeviceProp properties;
    CHECK(cudaDeviceGetAttribute(&attribute, cudaDevAttrClockRate, 0));
    say("clock_khz", attribute);
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("name %s\n", properties.name);
    CHECK(cudaDeviceReset());
    double t = now_us();
    CHECK(cudaFree(0));
    say("context_again", now_us() - t > 300000);
}

int main(void) {
    int least, greatest;
    CHECK(cudaMalloc(&d, 256 * sizeof *d));
    CHECK(cudaStreamCreate(&a));
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, greatest));
    shared_memory();
    symbols_and_templates();
    arguments();
    again();
    host_function();
    occupancy();
    room_on_the_sms();
    priorities();
    memory();
    device();
    return 0;
}
