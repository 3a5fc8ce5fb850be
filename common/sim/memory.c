// SPDX-License-Identifier: MIT
// Allocations, copies and memsets. Device memory is mapped memory that ends at a page which
// nobody may touch, and that is itself closed while the host's own code runs: neither a
// kernel that runs over the end nor a host that dereferences a device pointer goes unseen.
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 256 };

static struct allocation **table;  // by address
static struct allocation *freed;
static int count;

static int position(const void *pointer) {
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (table[middle]->base <= (const char *)pointer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct allocation *allocation_at(const void *pointer) {
    int i = position(pointer);
    if (i == 0 || (const char *)pointer >= table[i - 1]->base + table[i - 1]->bytes)
        return NULL;
    return table[i - 1];
}

// Whether an address that is in no allocation is the host's own memory.
bool host_can_read(const void *pointer) {
    unsigned char resident;
    char *page = (char *)((uintptr_t)pointer & ~(uintptr_t)(PAGE - 1));
    return mincore(page, 1, &resident) == 0;
}

static void allocation_add(struct allocation *a) {
    static uint64_t ids;
    a->id = ++ids;
    int i = position(a->base);
    table = grow(table, count, sizeof *table);
    memmove(table + i + 1, table + i, (size_t)(count - i) * sizeof *table);
    table[i] = a;
    count++;
}

// Device memory that is open at the moment, by pages.
static struct range *opened;
static int opened_count;

bool allocation_open(const void *address, size_t bytes) {
    struct allocation *a = allocation_at(address);
    if (a == NULL || a->device == NULL || a->symbol)
        return false;
    char *end = a->mapping + a->mapped - PAGE, *at = (char *)((uintptr_t)address & -PAGE);
    char *to = (char *)(((uintptr_t)address + bytes + PAGE - 1) & -PAGE);
    for (int i = 0; i < opened_count; i++)
        if (at >= opened[i].begin && at < opened[i].end)
            at = opened[i].end;
    if (at >= to)
        return false;
    to = to < end ? to : end;
    if (mprotect(at, (size_t)(to - at), PROT_READ | PROT_WRITE) != 0)
        return false;
    if (opened_count > 0 && opened[opened_count - 1].end == at) {
        opened[opened_count - 1].end = to;
        return true;
    }
    opened = grow(opened, opened_count, sizeof *opened);
    opened[opened_count++] = (struct range){at, to};
    return true;
}

bool allocation_is_open(const void *address) {
    for (int i = opened_count - 1; i >= 0; i--)
        if ((const char *)address >= opened[i].begin && (const char *)address < opened[i].end)
            return true;
    return false;
}

// A kernel has come to closed memory. It will probably go on: open ever larger pieces, and
// at last all of it.
bool allocation_fault(const void *address) {
    struct allocation *a = allocation_at(address);
    if (a == NULL)
        return false;
    if (a->faults < 4)
        return allocation_open(address, (size_t)(16 * PAGE) << 3 * a->faults++);
    if (a->faults++ > 4)
        return false;
    return allocation_open(a->base, a->bytes);
}

// Called when the host has waited: until then its own code has no business there, but
// opening and closing memory for each op would cost more than the ops.
void allocations_close(void) {
    while (opened_count > 0) {
        struct range *r = &opened[--opened_count];
        mprotect(r->begin, (size_t)(r->end - r->begin), PROT_NONE);
        allocation_at(r->end - 1)->faults = 0;
    }
}

// `&d_data, n` or `(void **)&d_data, n`: the variable's name, for reports.
static void name_of_argument(char name[48]) {
    const char *start = sim.argument, *cast = strchr(start, ')');
    if (*start == '(' && cast != NULL)
        start = cast + 1;
    start += strspn(start, "& ");
    size_t length = strcspn(start, ",");
    snprintf(name, 48, "%.*s", (int)(length < 47 ? length : 47), start);
}

static cudaError_t allocate(void **pointer, size_t bytes, struct device *device) {
    if (pointer == NULL)
        return fail(cudaErrorInvalidValue);
    *pointer = NULL;
    if (bytes == 0)
        return cudaSuccess;
    size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    size_t pages = (rounded + PAGE - 1) / PAGE * PAGE;
    if (bytes > (size_t)1 << 47 ||  // as from a negative number
        (device != NULL && device->memory_used + rounded > (size_t)param.memory_gib << 30))
        return fail(cudaErrorMemoryAllocation);
    struct allocation *a = calloc(1, sizeof *a);
    a->mapped = pages + PAGE;
    a->mapping =
        mmap(NULL, a->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->mapping == MAP_FAILED ||
        (device == NULL && mprotect(a->mapping, pages, PROT_READ | PROT_WRITE) != 0)) {
        free(a);
        return fail(cudaErrorMemoryAllocation);
    }
    a->base = a->mapping + pages - rounded;
    a->bytes = rounded;
    a->device = device;
    name_of_argument(a->name);
    if (device != NULL)
        device->memory_used += rounded;
    allocation_add(a);
    *pointer = a->base;
    return cudaSuccess;
}

void allocation_release(void *pointer) {
    allocations_close();
    int i = position(pointer) - 1;
    struct allocation *a = table[i];
    memmove(table + i, table + i + 1, (size_t)(--count - i) * sizeof *table);
    if (a->device != NULL)
        a->device->memory_used -= a->bytes;
    munmap(a->mapping, a->mapped);
    free(a->log);
    a->log = NULL;
    a->logs = 0;
    a->version++;
    a->next_freed = freed;  // what is known of kernels may still point to it
    freed = a;
}

static bool is_base(const void *pointer, bool of_device) {
    const struct allocation *a = allocation_at(pointer);
    return a != NULL && a->base == pointer && !a->symbol && !a->leaving &&
           (a->device != NULL) == of_device;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    ENTER(param.malloc_us, NEEDS_CONTEXT | UNSAFE);
    return allocate(pointer, bytes, current_device());
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t handle) {
    ENTER(param.launch_us, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    FIND(handle, stream);
    return allocate(pointer, bytes, stream->device);
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
    ENTER(param.host_alloc_us, NEEDS_CONTEXT | UNSAFE);
    return allocate(pointer, bytes, NULL);
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    ENTER(param.host_alloc_us, NEEDS_CONTEXT | UNSAFE);
    return flags > 7 ? fail(cudaErrorInvalidValue) : allocate(pointer, bytes, NULL);
}

// Freeing waits for the device: what still runs might use the memory.
static cudaError_t free_checked(void *pointer, bool of_device) {
    if (pointer == NULL)
        return cudaSuccess;
    if (!is_base(pointer, of_device))
        return fail(cudaErrorInvalidValue);
    for (int i = 0; i < sim.devices; i++)
        if (sim.device[i].has_context)
            device_wait_idle(&sim.device[i], WAIT_SPIN);
    RETURN_ERROR(outcome());
    host_busy(param.free_us);
    allocation_release(pointer);
    return cudaSuccess;
}

cudaError_t cudaFree(void *pointer) {
    ENTER(param.query_device_us, NEEDS_CONTEXT | UNSAFE);
    return free_checked(pointer, true);
}

cudaError_t cudaFreeHost(void *pointer) {
    ENTER(param.query_device_us, NEEDS_CONTEXT | UNSAFE);
    return free_checked(pointer, false);
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t handle) {
    ENTER(param.launch_us, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    FIND(handle, stream);
    if (!is_base(pointer, true))
        return fail(cudaErrorInvalidValue);
    struct op *op = op_new(OP_FREE, "cudaFreeAsync");
    op->to = pointer;
    allocation_at(pointer)->leaving = true;
    return enqueue(stream, op);
}

// What a device's context takes with it.
void allocations_release(const struct device *device) {
    for (int i = count - 1; i >= 0; i--)
        if (table[i]->device == device && !table[i]->symbol)
            allocation_release(table[i]->base);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    ENTER(param.sync_us, NEEDS_CONTEXT);
    *total = (size_t)param.memory_gib << 30;
    *free_bytes = *total - current_device()->memory_used;
    return cudaSuccess;
}

// What a pointer points to. An allocation must hold all of the bytes.
enum place { PAGEABLE, PINNED, DEVICE, OUT_OF_BOUNDS };
static enum place place_of(const void *pointer, size_t bytes, struct device **device) {
    const struct allocation *a = allocation_at(pointer);
    if (a == NULL)
        return pointer == NULL ? OUT_OF_BOUNDS : PAGEABLE;
    if (a->leaving || (size_t)(a->base + a->bytes - (const char *)pointer) < bytes)
        return OUT_OF_BOUNDS;
    *device = a->device;
    return a->device != NULL ? DEVICE : PINNED;
}

// All copies: checks, the engine and its speed, and how long the host is held up.
static cudaError_t copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                        struct CUstream_st *stream, bool wait) {
    struct device *to_device = NULL, *from_device = NULL;
    if (bytes == 0)
        return cudaSuccess;
    enum place a = place_of(to, bytes, &to_device), b = place_of(from, bytes, &from_device);
    bool to_gpu = a == DEVICE, from_gpu = b == DEVICE;
    if (a == OUT_OF_BOUNDS || b == OUT_OF_BOUNDS)
        return fail(cudaErrorInvalidValue);
    if (kind > cudaMemcpyDefault)
        return fail(cudaErrorInvalidMemcpyDirection);
    // Pinned memory has an address on the device too, so it may stand for either side.
    static const struct {
        bool to_gpu, from_gpu;
    } said[] = {{false, false}, {true, false}, {false, true}, {true, true}};
    if (kind != cudaMemcpyDefault && ((said[kind].to_gpu != to_gpu && a != PINNED) ||
                                      (said[kind].from_gpu != from_gpu && b != PINNED)))
        return fail(cudaErrorInvalidValue);

    struct op *op = op_new(OP_COPY, to_gpu && from_gpu ? "copy on device"
                                    : to_gpu           ? "copy to device"
                                                       : "copy to host");
    op->to = to;
    op->from = from;
    op->bytes = bytes;
    bool staged = false;
    if (to_gpu && from_gpu) {
        op->gbps = to_device == from_device ? param.d2d_gbps : param.peer_gbps;
    } else if (to_gpu) {
        staged = b == PAGEABLE && bytes <= (size_t)param.staged_bytes;
        op->engine = ENGINE_H2D;
        op->gbps = b == PINNED || staged ? param.pinned_h2d_gbps : param.pageable_h2d_gbps;
        wait = !staged && (wait || b == PAGEABLE);
    } else {
        op->engine = param.copy_engines > 1 ? ENGINE_D2H : ENGINE_H2D;
        op->gbps = a == PINNED ? param.pinned_d2h_gbps : param.pageable_d2h_gbps;
        wait |= a == PAGEABLE || (!from_gpu && !capturing(stream));
    }
    if (staged) {  // the call returns once the host's memory has been read
        op->staged = malloc(bytes);
        memcpy(op->staged, from, bytes);
        op->from = op->staged;
        host_busy((double)bytes / (1e3 * param.staging_gbps));
    }
    if (capturing(stream)) {
        if (wait) {
            op_free(op);
            return capture_forbids(stream);
        }
        return enqueue(stream, op);
    }
    cudaError_t error = enqueue(stream, op);
    if (error != cudaSuccess || !wait || (to_gpu && from_gpu))
        return error;
    return stream_wait(stream, WAIT_SPIN);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t handle) {
    ENTER(param.copy_us, NEEDS_CONTEXT | SUBMITS);
    FIND(handle, stream);
    return copy(to, from, bytes, kind, stream, false);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    ENTER(param.copy_us, NEEDS_CONTEXT | SUBMITS | NOT_IN_CAPTURE);
    FIND(0, stream);
    return copy(to, from, bytes, kind, stream, true);
}

static cudaError_t copy_peer(const char *call, void *to, int to_device, const void *from,
                             int from_device, size_t bytes, cudaStream_t handle) {
    ENTER_AS(call, param.copy_us, NEEDS_CONTEXT | SUBMITS);
    FIND(handle, stream);
    if (no_device(to_device) || no_device(from_device))
        return fail(cudaErrorInvalidDevice);
    return copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream, false);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream) {
    return copy_peer(__func__, to, to_device, from, from_device, bytes, stream);
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device,
                           size_t bytes) {
    return copy_peer(__func__, to, to_device, from, from_device, bytes, 0);
}

// The host waits for the memset of pinned memory, unless the call is the asynchronous one.
static cudaError_t set(const char *call, void *to, int value, size_t bytes, cudaStream_t handle,
                       bool wait) {
    struct device *device;
    ENTER_AS(call, param.memset_us, NEEDS_CONTEXT | SUBMITS);
    FIND(handle, stream);
    if (bytes == 0)
        return cudaSuccess;
    enum place place = place_of(to, bytes, &device);
    if (place != DEVICE && place != PINNED)
        return fail(cudaErrorInvalidValue);
    struct op *op = op_new(OP_MEMSET, "memset");
    op->to = to;
    op->value = value;
    op->bytes = bytes;
    RETURN_ERROR(enqueue(stream, op));
    return wait && place == PINNED ? stream_wait(stream, WAIT_SPIN) : cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    return set(__func__, to, value, bytes, stream, false);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    return set(__func__, to, value, bytes, 0, true);
}

// Whether memory has been freed since the op was queued.
static bool gone(const void *pointer) {
    return pointer != NULL && allocation_at(pointer) == NULL && !host_can_read(pointer);
}

void copy_effects(struct op *op) {
    struct allocation *a = allocation_at(op->to);
    if (gone(op->to) || gone(op->from)) {
        sticky_error(cudaErrorIllegalAddress);
        return;
    }
    if (a != NULL)
        a->version++;
    allocation_open(op->to, op->bytes);
    if (op->kind == OP_MEMSET)
        memset(op->to, op->value, op->bytes);
    else {
        allocation_open(op->from, op->bytes);
        memmove(op->to, op->from, op->bytes);
    }
    if (op->kind == OP_COPY)
        order_access(op, op->from, op->bytes, false);
    order_access(op, op->to, op->bytes, true);
}

// ---- __device__ and __constant__ variables: the host's own memory
static void symbol_add(void *symbol, size_t bytes) {
    if (allocation_at(symbol) != NULL)
        return;
    struct allocation *a = calloc(1, sizeof *a);
    a->base = symbol;
    a->bytes = bytes;
    a->device = current_device();
    a->symbol = true;
    snprintf(a->name, sizeof a->name, "a __device__ variable");
    allocation_add(a);
}

cudaError_t sim_symbol_copy(void *symbol, size_t size_of_symbol, void *host, size_t bytes,
                            size_t offset, bool to_symbol, enum cudaMemcpyKind kind) {
    ENTER_AS(to_symbol ? "cudaMemcpyToSymbol" : "cudaMemcpyFromSymbol", param.copy_us,
             NEEDS_CONTEXT | SUBMITS | NOT_IN_CAPTURE);
    FIND(0, stream);
    if (offset > size_of_symbol || bytes > size_of_symbol - offset)
        return fail(cudaErrorInvalidValue);
    symbol_add(symbol, size_of_symbol);
    char *place = (char *)symbol + offset;
    return to_symbol ? copy(place, host, bytes, kind, stream, true)
                     : copy(host, place, bytes, kind, stream, true);
}

cudaError_t sim_symbol_address(void **pointer, void *symbol, size_t size_of_symbol) {
    ENTER_AS("cudaGetSymbolAddress", param.query_device_us, NEEDS_CONTEXT);
    symbol_add(symbol, size_of_symbol);
    *pointer = symbol;
    return cudaSuccess;
}
