// SPDX-License-Identifier: MIT
// The C++ part of cuda_runtime.h: launches, overloads, and device functions. rewrite.py
// turns `Kernel<<<g, b>>>(x)` into `SIM_LAUNCH("Kernel", (Kernel), g, b)(x)`, so the
// kernel's own parameter types decide how the arguments convert, and whether a pointer is
// written through.
#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include <math.h>
#include <new>
#include <string.h>
#include <tuple>
#include <type_traits>

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
namespace {
const bool sim_per_thread = (sim_use_per_thread_stream(), true);
}
#endif

template <class... P>
__attribute__((no_sanitize("thread")))  // the simulation itself is not to be watched
void sim_run_thread(const void *function, const void *args) {
    std::apply((void (*)(P...))function, *(const std::tuple<P...> *)args);
}

// The argument's bytes go into the hash that tells whether the same launch was seen before.
template <class T> void sim_note_argument(struct sim_launch *launch, const T &value) {
    const unsigned char *byte = (const unsigned char *)&value;
    for (size_t i = 0; i < sizeof value; i++)
        launch->args_hash = (launch->args_hash ^ byte[i]) * 1099511628211u;
    launch->touches |= std::is_pointer_v<T> || std::is_class_v<T>;
    if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>)
        if (launch->pointers < SIM_POINTERS_MAX)
            launch->pointer[launch->pointers++] = (const void *)value;
}

template <class... P> struct sim_launcher {
    struct sim_launch launch;
    cudaError_t operator()(P... values) {
        static_assert((std::is_trivially_copyable_v<P> && ...),
                      "a kernel's arguments are copied byte by byte");
        std::tuple<P...> args(values...);
        static_assert(sizeof args <= SIM_ARGS_BYTES, "a kernel has at most 4 KiB of arguments");
        launch.args = &args, launch.args_bytes = sizeof args;
        launch.args_hash = 14695981039346656037u;
        (sim_note_argument(&launch, values), ...);
        return sim_launch(&launch);
    }
};

template <class... P>
sim_launcher<P...> sim_make_launcher(const char *name, const char *file, int line,
                                     void (*kernel)(P...), dim3 grid, dim3 block,
                                     size_t shared = 0, cudaStream_t stream = 0) {
    sim_launcher<P...> launcher;
    memset((void *)&launcher, 0, sizeof launcher);
    struct sim_launch *launch = &launcher.launch;
    launch->function = (const void *)kernel;
    launch->run_thread = sim_run_thread<P...>;
    launch->name = name, launch->file = file, launch->line = line;
    launch->grid = grid, launch->block = block;
    launch->shared = shared, launch->stream = stream;
    return launcher;
}
#define SIM_LAUNCH(name, ...) sim_make_launcher(name, __FILE__, __LINE__, __VA_ARGS__)

// A cast to const void * would lose the parameters' types, so this takes the kernel itself.
template <class... P, size_t... I>
cudaError_t sim_launch_array(sim_launcher<P...> launcher, void **args,
                             std::index_sequence<I...>) {
    (void)args;
    return launcher(*(std::remove_reference_t<P> *)args[I]...);
}
template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void **args,
                             size_t shared = 0, cudaStream_t stream = 0) {
    return sim_launch_array(sim_make_launcher("kernel", __FILE__, 0, kernel, grid, block,
                                              shared, stream),
                            args, std::index_sequence_for<P...>());
}

// Overloads that the real header has for typed pointers, symbols and kernels.
template <class T> cudaError_t cudaMalloc(T **p, size_t n) {
    return cudaMalloc((void **)p, n);
}
template <class T> cudaError_t cudaMallocHost(T **p, size_t n, unsigned flags = 0) {
    return flags == 0 ? cudaMallocHost((void **)p, n) : cudaHostAlloc((void **)p, n, flags);
}
template <class T> cudaError_t cudaHostAlloc(T **p, size_t n, unsigned flags) {
    return cudaHostAlloc((void **)p, n, flags);
}
template <class T> cudaError_t cudaMallocAsync(T **p, size_t n, cudaStream_t stream) {
    return cudaMallocAsync((void **)p, n, stream);
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned flags) {
    return cudaEventCreateWithFlags(event, flags);
}
static inline cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from,
                                            cudaGraphNode_t *to, size_t *count) {
    return cudaGraphGetEdges(graph, from, to, (cudaGraphEdgeData *)0, count);  // CUDA 12
}
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                               cudaGraphNode_t *, char *, size_t) {
    return cudaGraphInstantiate(exec, graph, 0ull);  // CUDA 11
}
template <class T>
cudaError_t cudaMemcpyToSymbol(const T &symbol, const void *from, size_t bytes,
                               size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
    return sim_symbol_copy((void *)&symbol, sizeof symbol, (void *)from, bytes, offset, true,
                           kind);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void *to, const T &symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
    return sim_symbol_copy((void *)&symbol, sizeof symbol, to, bytes, offset, false, kind);
}
template <class T> cudaError_t cudaGetSymbolAddress(void **pointer, const T &symbol) {
    return sim_symbol_address(pointer, (void *)&symbol, sizeof symbol);
}
template <class F>
cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute which, int value) {
    return sim_function_set((const void *)kernel, which, value);
}
template <class F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, F *kernel,
                                                          int threads, size_t shared) {
    return sim_occupancy(blocks, (const void *)kernel, threads, shared);
}

// Device functions. Threads run one at a time, so an atomic is a plain operation.
static __device__ const int warpSize = 32;
static inline __device__ void __threadfence(void) {}
static inline __device__ void __threadfence_block(void) {}
static inline __device__ void __threadfence_system(void) {}
static inline __device__ void __syncwarp(unsigned = 0xffffffffu) {}
static inline __device__ float __fmaf_rn(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
template <class T> __device__ T __ldg(const T *p) { return *p; }
#define SIM_ATOMIC(name, becomes)                                                              \
    template <class T, class U> __device__ T name(T *p, U given) {                             \
        T old = *p, v = (T)given;                                                              \
        *p = becomes;                                                                          \
        return old;                                                                            \
    }
SIM_ATOMIC(atomicAdd, old + v)
SIM_ATOMIC(atomicSub, old - v)
SIM_ATOMIC(atomicExch, v)
SIM_ATOMIC(atomicMax, old < v ? v : old)
SIM_ATOMIC(atomicMin, v < old ? v : old)
#undef SIM_ATOMIC
template <class T, class U, class V> __device__ T atomicCAS(T *p, U expected, V v) {
    T old = *p;
    *p = old == (T)expected ? (T)v : old;
    return old;
}

// Well-known functions that have no model: using one is a compile error that says so.
#define SIM_LACKS(name)                                                                        \
    template <class... A>                                                                      \
    __attribute__((unavailable("the simulated device does not model " #name))) cudaError_t     \
    name(A...);
// clang-format off
SIM_LACKS(cudaMallocManaged) SIM_LACKS(cudaMemPrefetchAsync) SIM_LACKS(cudaMemcpy2D)
SIM_LACKS(cudaMemcpy2DAsync) SIM_LACKS(cudaMallocPitch) SIM_LACKS(cudaHostRegister)
SIM_LACKS(cudaHostUnregister) SIM_LACKS(cudaHostGetDevicePointer)
SIM_LACKS(cudaPointerGetAttributes) SIM_LACKS(cudaFuncGetAttributes)
SIM_LACKS(cudaLaunchCooperativeKernel) SIM_LACKS(cudaLaunchKernelExC)
SIM_LACKS(cudaStreamAddCallback) SIM_LACKS(cudaStreamAttachMemAsync)
SIM_LACKS(cudaEventRecordWithFlags) SIM_LACKS(cudaGraphCreate) SIM_LACKS(cudaGraphAddKernelNode)
SIM_LACKS(cudaGraphExecUpdate) SIM_LACKS(cudaGraphNodeGetType)
SIM_LACKS(cudaCreateTextureObject) SIM_LACKS(cudaIpcGetEventHandle)
SIM_LACKS(cudaDeviceSetLimit) SIM_LACKS(__shfl_sync) SIM_LACKS(__shfl_down_sync)
SIM_LACKS(__shfl_xor_sync) SIM_LACKS(__ballot_sync)
// clang-format on
#undef SIM_LACKS

// Reports and error injection name the line and, for allocations, the variable. The calls
// that touch memory note both on the way in; the macro does not expand inside itself.
#define SIM_HERE(...)            sim_site(__FILE__, __LINE__, #__VA_ARGS__)
#define cudaMalloc(...)          (SIM_HERE(__VA_ARGS__), cudaMalloc(__VA_ARGS__))
#define cudaMallocAsync(...)     (SIM_HERE(__VA_ARGS__), cudaMallocAsync(__VA_ARGS__))
#define cudaMallocHost(...)      (SIM_HERE(__VA_ARGS__), cudaMallocHost(__VA_ARGS__))
#define cudaHostAlloc(...)       (SIM_HERE(__VA_ARGS__), cudaHostAlloc(__VA_ARGS__))
#define cudaMemcpy(...)          (SIM_HERE(), cudaMemcpy(__VA_ARGS__))
#define cudaMemcpyAsync(...)     (SIM_HERE(), cudaMemcpyAsync(__VA_ARGS__))
#define cudaMemcpyPeer(...)      (SIM_HERE(), cudaMemcpyPeer(__VA_ARGS__))
#define cudaMemcpyPeerAsync(...) (SIM_HERE(), cudaMemcpyPeerAsync(__VA_ARGS__))
#define cudaMemset(...)          (SIM_HERE(), cudaMemset(__VA_ARGS__))
#define cudaMemsetAsync(...)     (SIM_HERE(), cudaMemsetAsync(__VA_ARGS__))
#define cudaMemcpyToSymbol(...)  (SIM_HERE(), cudaMemcpyToSymbol(__VA_ARGS__))
#define cudaLaunchKernel(...)    (SIM_HERE(), cudaLaunchKernel(__VA_ARGS__))
#define cudaLaunchHostFunc(...)  (SIM_HERE(), cudaLaunchHostFunc(__VA_ARGS__))
#define cudaEventRecord(...)     (SIM_HERE(), cudaEventRecord(__VA_ARGS__))
#define cudaStreamWaitEvent(...) (SIM_HERE(), cudaStreamWaitEvent(__VA_ARGS__))
#define cudaGraphLaunch(...)     (SIM_HERE(), cudaGraphLaunch(__VA_ARGS__))

#ifdef __CUDA__  // what clang takes a launch for, and clock() in a kernel
extern "C" __device__ clock_t clock(void);
cudaError_t cudaConfigureCall(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = 0);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared = 0,
                                     cudaStream_t stream = 0);
#endif

#endif
