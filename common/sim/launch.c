// SPDX-License-Identifier: MIT
// Launches, and what is asked or set about a kernel. The engine runs them, in kernel.c.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static struct kernel *kernels;

struct kernel *kernel_of(const void *function) {
    for (struct kernel *k = kernels; k != NULL; k = k->next)
        if (k->function == function)
            return k;
    struct kernel *k = calloc(1, sizeof *k);
    k->function = function;
    k->opted_in = -1;
    k->next = kernels;
    return kernels = k;
}

void kernels_unload(const struct device *device) {
    for (struct kernel *k = kernels; k != NULL; k = k->next)
        k->loaded[device->id] = false;
}

size_t kernel_shared(const struct kernel *kernel, size_t dynamic) {
    size_t used = dynamic + kernel->static_shared;
    return used > 0 ? used + ((size_t)param.shared_reserved_kib << 10) : 0;
}

int in_whole_warps(uint64_t threads) { return (int)((threads + 31) / 32 * 32); }

// With its arguments behind it.
struct sim_launch *launch_copy(const struct sim_launch *launch) {
    struct sim_launch *copy = malloc(sizeof *launch + launch->args_bytes);
    *copy = *launch;
    copy->args = memcpy(copy + 1, launch->args, launch->args_bytes);
    return copy;
}

static cudaError_t launch_error(const struct sim_launch *launch, const struct kernel *kernel) {
    dim3 grid = launch->grid, block = launch->block;
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    bool opted_in = kernel->opted_in >= 0;
    double most_kib = opted_in ? param.shared_optin_kib : param.shared_per_block_kib;
    if (threads == 0 || (uint64_t)grid.x * grid.y * grid.z == 0)
        return cudaErrorInvalidConfiguration;
    if (threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
        grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 ||
        launch->shared + kernel->static_shared > (size_t)most_kib << 10 ||
        (opted_in && launch->shared > (size_t)kernel->opted_in))
        return cudaErrorInvalidValue;  // as recorded for 2,048 threads
    return cudaSuccess;
}

// Lazy loading: a kernel's code is loaded at its first launch. The call returns, but the kernel
// runs only when all that its device had been given before is done: an accident, on which no
// program may count.
static void load(struct kernel *kernel, struct CUstream_st *stream, bool captured) {
    if (kernel->loaded[stream->device->id])
        return;
    kernel->loaded[stream->device->id] = true;
    if (sim.eager)
        return;
    host_busy(param.first_launch_us);
    for (int i = 0; i < sim.streams && !captured; i++)
        if (sim.stream[i]->device == stream->device)
            append_wait(stream, sim.stream[i], sim.stream[i]->last_seq);
}

cudaError_t sim_launch(const struct sim_launch *launch) {
    if (launch->line > 0)
        sim_site(launch->file, launch->line, "");
    const struct CUstream_st *known = known_stream(launch->stream);
    bool captured = known != NULL && capturing(known);
    ENTER_AS("cudaLaunchKernel", captured ? param.capture_us : param.launch_us,
             NEEDS_CONTEXT | SUBMITS);
    FIND(launch->stream, stream);
    if (launch->function != sim.last_launched && !captured)
        host_busy(param.other_kernel_us);
    sim.last_launched = launch->function;
    struct kernel *kernel = kernel_of(launch->function);
    cudaError_t error = launch_error(launch, kernel);
    if (error != cudaSuccess)
        return fail(error);
    load(kernel, stream, captured);  // on the stream's device, whichever is current
    struct op *op = op_new(OP_KERNEL, launch->name);
    op->kernel = kernel;
    op->launch = launch_copy(launch);
    op->blocks_left = op->blocks_to_place = launch->grid.x * launch->grid.y * launch->grid.z;
    error = enqueue(stream, op);
    if (error == cudaSuccess && sim.launch_blocking && !captured)
        host_wait(stream, stream->last_seq, WAIT_SPIN);
    return error == cudaSuccess && sim.launch_blocking ? outcome() : error;
}

cudaError_t sim_function_set(const void *function, enum cudaFuncAttribute which, int value) {
    ENTER_AS("cudaFuncSetAttribute", param.query_us, NEEDS_CONTEXT);
    if (which == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;  // a hint
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > (int)param.shared_optin_kib << 10)
        return fail(cudaErrorInvalidValue);
    kernel_of(function)->opted_in = value;
    return cudaSuccess;
}

cudaError_t sim_occupancy(int *blocks, const void *function, int threads, size_t shared) {
    ENTER_AS("cudaOccupancyMaxActiveBlocksPerMultiprocessor", param.query_us, NEEDS_CONTEXT);
    if (threads < 1 || threads > 1024)
        return fail(cudaErrorInvalidValue);
    size_t each = kernel_shared(kernel_of(function), shared);
    int by_threads = (int)param.threads_per_sm / in_whole_warps((uint64_t)threads);
    *blocks = (int)param.blocks_per_sm < by_threads ? (int)param.blocks_per_sm : by_threads;
    if (each > 0 && ((size_t)param.shared_per_sm_kib << 10) / each < (size_t)*blocks)
        *blocks = (int)(((size_t)param.shared_per_sm_kib << 10) / each);
    return cudaSuccess;
}
