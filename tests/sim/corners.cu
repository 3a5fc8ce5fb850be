// SPDX-License-Identifier: MIT
// Corners of the runtime's behaviour, one an argv[1]: `what result` lines.
#include "check.h"
#include <unistd.h>

__device__ int counter;
__global__ void Store(int *p, int value) { *p = value; }
__global__ void WaitStore(int *p, int value, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
    *p = value;
}
__global__ void WaitFill(int *data, int value, long long cycles) {  // each thread in step
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
    data[threadIdx.x] = value;
    __syncthreads();
}
__global__ void Count(void) {
    __shared__ int here;
    if (threadIdx.x == 0)
        here = 0;
    __syncthreads();
    atomicAdd(&here, 1);
    atomicAdd(&counter, 1);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(&counter, here);
}
__global__ void CountFirst(void) {
    atomicAdd(&counter, 1);
    __syncthreads();
}
__global__ void Static(int *p) {  // 16 KiB of its own
    __shared__ int tile[4096];
    tile[threadIdx.x] = 1;
    *p = tile[0];
}
__global__ void Late(void) {}

static int *d;  // of 1,024
static cudaStream_t a, b;
static cudaEvent_t start, stop;

static void say(const char *what, cudaError_t error) {
    printf("%s %s\n", what, cudaGetErrorName(error));
}
static void number(const char *what, double value) { printf("%s %g\n", what, value); }

static void free_twice(void) {
    int *first, *second;
    CHECK(cudaMallocAsync(&first, 4096, a));
    CHECK(cudaMallocAsync(&second, 4096, a));
    Wait<<<1, 1, 0, a>>>(cycles(1000));
    CHECK(cudaFreeAsync(first, a));
    say("free_async_again", cudaFreeAsync(first, a));
    say("free_again", cudaFree(first));
    say("memset_behind_free", cudaMemsetAsync(first, 0, 4, a));
    CHECK(cudaStreamSynchronize(a));
    say("free_once_gone", cudaFreeAsync(first, a));
    CHECK(cudaMemset(second, 0, 4));
    CHECK(cudaFree(second));
    CHECK(cudaMalloc(&first, 4096));
    Wait<<<1, 1, 0, b>>>(cycles(1000));
    CHECK(cudaMemsetAsync(first, 0, 4, b));
    CHECK(cudaFreeAsync(first, a));  // does not wait for b
    say("freed_under_memset", cudaDeviceSynchronize());
}

// An allocation made when the fibers' stacks are there already is watched like any other.
static void fiber_stacks(void) {
    static int h[1 << 20];
    int *later, fresh = 0;
    WaitFill<<<1, 1024>>>(d, 0, 1);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMalloc(&later, sizeof h));
    CHECK(cudaMemset(later, 0, sizeof h));
    CHECK(cudaDeviceSynchronize());
    WaitFill<<<1, 1024, 0, a>>>(later, 1, cycles(1000));
    // Too early: unordered on purpose.
    CHECK(cudaMemcpyAsync(h, later, sizeof h, cudaMemcpyDeviceToHost, b));
    for (int i = 0; i < 1024; i++)
        fresh += h[i];
    number("fresh", fresh);
}

static void barriers(void) {
    int value;
    for (int i = 1; i <= 2; i++) {
        CountFirst<<<2, 256>>>();
        CHECK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
        number("counted_first", value);
    }
    Count<<<2, 256>>>();
    CHECK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
    number("counted", value);
}

static void launch_blocking(void) {
    Store<<<1, 1>>>(NULL, 1);
    say("blocking_launch", cudaPeekAtLastError());
}

static void dead_context(void) {
    int *pinned, launched = 0;
    CHECK(cudaMallocHost(&pinned, sizeof *pinned));
    *pinned = 0;
    Wait<<<1, 1>>>(cycles(10000));
    Store<<<1, 1>>>(NULL, 1);
    for (; launched < 2000 && cudaPeekAtLastError() == cudaSuccess; launched++)
        Store<<<1, 1>>>(pinned, 5);  // the queue is full before the fault, which is seen here
    say("launch_into_full_queue", cudaPeekAtLastError());
    usleep(1000);
    number("stopped", launched < 2000);
    number("stored", *pinned);
    say("peer_copy", cudaMemcpyPeerAsync(d, 0, d, 7, 4, a));
}

static void fault_takes_time(void) {
    double t = now_us();
    WaitStore<<<1, 1>>>(NULL, 1, cycles(1000));
    say("synchronize", cudaDeviceSynchronize());
    number("ms", (int)((now_us() - t) / 1000));
}

static void graphs(void) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    WaitStore<<<1, 1, 0, a>>>(d, 1, cycles(1000));
    CHECK(cudaStreamEndCapture(a, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph));
    double t = now_us();
    CHECK(cudaGraphLaunch(exec, a));
    CHECK(cudaGraphLaunch(exec, b));
    CHECK(cudaDeviceSynchronize());
    number("ms", (int)((now_us() - t) / 1000));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
}

static void captures(void) {
    cudaGraph_t graph;
    cudaStream_t blocking;
    int *p;
    CHECK(cudaStreamCreate(&blocking));
    for (int relaxed = 0; relaxed < 2; relaxed++) {
        CHECK(cudaStreamBeginCapture(a, relaxed ? cudaStreamCaptureModeRelaxed
                                                : cudaStreamCaptureModeGlobal));
        say(relaxed ? "malloc_relaxed" : "malloc_global", cudaMalloc(&p, 4));
        say("end", cudaStreamEndCapture(a, &graph));
        cudaGetLastError();
    }
    for (int i = 0; i < 2; i++) {
        CHECK(cudaStreamBeginCapture(i ? blocking : a, cudaStreamCaptureModeGlobal));
        Store<<<1, 1>>>(d, 1);
        say(i ? "legacy_beside_blocking" : "legacy_beside_other", cudaGetLastError());
        say("end", cudaStreamEndCapture(i ? blocking : a, &graph));
        cudaGetLastError();
    }
}

static void static_shared(void) {
    CHECK(cudaFuncSetAttribute(Static, cudaFuncAttributeMaxDynamicSharedMemorySize, 40 << 10));
    for (int i = 0; i < 2; i++) {  // 56 KiB in all
        Static<<<1, 32, 40 << 10>>>(d);
        say("opted_in", cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
    }
    Static<<<1, 32, 41 << 10>>>(d);
    say("more", cudaGetLastError());
}

static void sizes(void) {
    int n = -100;
    void *p;
    say("negative", cudaMalloc(&p, n * sizeof(float)));
    say("negative_host", cudaMallocHost(&p, n * sizeof(float)));
}

static void host_memory(void) {
    char *to, from[64] = {1};
    CHECK(cudaMallocHost(&to, sizeof from));
    to[0] = 0;
    Wait<<<1, 1, 0, a>>>(cycles(1000));
    CHECK(cudaMemcpyAsync(to, from, sizeof from, cudaMemcpyHostToHost, a));
    number("host_to_host", to[0]);
    CHECK(cudaMemset(to, 7, sizeof from));
    number("memset_pinned", to[0]);
    CHECK(cudaMemsetAsync(to, 8, sizeof from));
    number("memset_async", to[0]);
}

static void sleep_1_ms(void *) {
    usleep(1000);
    cudaMalloc(NULL, 0);  // not permitted
    cudaGetLastError();
}
static void host_functions(void) {
    float ms;
    cudaFuncSetAttribute(Static, cudaFuncAttributeMaxDynamicSharedMemorySize, -1);
    double t = now_us();
    CHECK(cudaEventRecord(start, a));
    CHECK(cudaLaunchHostFunc(a, sleep_1_ms, NULL));
    CHECK(cudaEventRecord(stop, a));
    while (cudaStreamQuery(b) == cudaSuccess && now_us() - t < 500)
        ;
    number("polled_us", (int)((now_us() - t) / 100) * 100);
    CHECK(cudaEventSynchronize(stop));
    CHECK(cudaEventElapsedTime(&ms, start, stop));
    number("ms", (int)ms);
    say("host_error", cudaGetLastError());
}

// Two kernels that end one after the other, in either order: the host sleeps as long.
static void blocking_waits(void) {
    CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    double us[2];
    for (int i = 0; i < 2; i++) {
        CHECK(cudaDeviceSynchronize());
        double t = now_us();
        Wait<<<1, 1, 0, i ? a : b>>>(cycles(10000));
        Wait<<<1, 1, 0, i ? b : a>>>(cycles(10300));
        CHECK(cudaDeviceSynchronize());
        us[i] = now_us() - t;
    }
    number("same", us[0] - us[1] < 5 && us[1] - us[0] < 5);
}

static void counted(void) {
    void *p;
    float *typed;
    CHECK(cudaMallocHost(&p, 64));
    CHECK(cudaMallocHost(&typed, 64));
    CHECK(cudaMemset(d, 0, 4));
    CHECK(cudaMemcpyPeer(d, 0, d + 64, 0, 4));
}

static void peers(void) {
    int *there;
    CHECK(cudaSetDevice(1));
    CHECK(cudaMalloc(&there, 64));
    CHECK(cudaSetDevice(0));
    CHECK(cudaMemcpyPeer(d, 0, there, 1, 64));
    CHECK(cudaDeviceEnablePeerAccess(1, 0));
    Store<<<1, 1>>>(there, 1);
    say("enabled", cudaDeviceSynchronize());
    CHECK(cudaSetDevice(1));
    Store<<<1, 1>>>(d, 1);
    say("not_enabled", cudaDeviceSynchronize());
}

static void reset(void) {
    size_t before, after, total;
    int *p;
    CHECK(cudaMemGetInfo(&before, &total));
    CHECK(cudaMalloc(&p, 1 << 20));
    CHECK(cudaDeviceReset());
    say("free", cudaFree(p));
    CHECK(cudaMemGetInfo(&after, &total));
    number("memory_back", after >= before);
    double t = now_us();
    Wait<<<1, 1>>>(1);
    number("loads_again", now_us() - t > 50);
}

static void many_streams(void) {
    long pages = 0;
    for (int i = 0; i < 5000; i++) {
        cudaStream_t s;
        CHECK(cudaStreamCreate(&s));
        if (i % 100 == 0)
            Wait<<<1, 1, 0, s>>>(1);
        CHECK(cudaStreamDestroy(s));
    }
    CHECK(cudaDeviceSynchronize());
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1)
        return;
    fclose(file);
    number("small", pages < 20000);
}

static void traced(void) {
    sim_region("asked");
    Wait<<<1, 1, 0, a>>>(cycles(1000));
    CHECK(cudaEventRecord(stop, a));
    cudaEventQuery(stop);
    Late<<<1, 1, 0, b>>>();  // loaded meanwhile
    CHECK(cudaMemset(d, 0, 4));
    CHECK(cudaDeviceSynchronize());
    sim_region(NULL);
}

// That loading Static held it back is no edge.
static void lazy_edge(void) {
    WaitStore<<<1, 1, 0, a>>>(d, 1, cycles(1000));
    Static<<<1, 32, 0, b>>>(d);
    CHECK(cudaDeviceSynchronize());
}

static const struct {
    const char *name;
    void (*run)(void);
} corners[] = {
    {"free_twice", free_twice},
    {"fiber_stacks", fiber_stacks},
    {"barriers", barriers},
    {"launch_blocking", launch_blocking},
    {"dead_context", dead_context},
    {"fault_takes_time", fault_takes_time},
    {"graphs", graphs},
    {"captures", captures},
    {"static_shared", static_shared},
    {"sizes", sizes},
    {"host_memory", host_memory},
    {"host_functions", host_functions},
    {"blocking_waits", blocking_waits},
    {"counted", counted},
    {"peers", peers},
    {"reset", reset},
    {"many_streams", many_streams},
    {"traced", traced},
    {"lazy_edge", lazy_edge},
};

int main(int, char **argv) {
    CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    CHECK(cudaMalloc(&d, 4096));
    Wait<<<1, 1>>>(1);
    Store<<<1, 1>>>(d, 0);
    WaitStore<<<1, 1>>>(d, 0, 1);
    CHECK(cudaDeviceSynchronize());
    for (size_t i = 0; i < sizeof corners / sizeof corners[0]; i++)
        if (strcmp(argv[1], corners[i].name) == 0)
            corners[i].run();
    return 0;
}
