// SPDX-License-Identifier: MIT
// The calls on devices, streams, events and errors, and launches.
#include "sim.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct sim sim;

_Noreturn void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "sim: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(2);
}

// ---- What every call does first
// ------------------------------------------------------------
static struct {  // of SIM_FAIL=<api>:<n>[:<error>],...
    char call[48];
    int countdown;
    cudaError_t error;
} failures[16];
static int failure_count;
static struct {  // of SIM_COUNT=<file>: how often each call was made
    const char *call;
    long times;
} counts[128];
static const char *count_file;
static _Thread_local char this_thread;
static const char *first_thread;

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
#define SIM_ROW(code, name, text) {name, #name, text},
    SIM_ERRORS(SIM_ROW)
#undef SIM_ROW
};
enum { ERRORS = sizeof errors / sizeof errors[0] };

// The error that a call most often fails with.
static cudaError_t usual_error(const char *call) {
    if (strstr(call, "alloc") || strstr(call, "Alloc") || strstr(call, "Create"))
        return cudaErrorMemoryAllocation;
    if (strstr(call, "Synchronize") || strstr(call, "Query") ||
        strcmp(call, "cudaMemcpy") == 0)
        return cudaErrorLaunchFailure;
    if (strcmp(call, "cudaGetDeviceCount") == 0)
        return cudaErrorNoDevice;
    if (strcmp(call, "cudaLaunchKernel") == 0)
        return cudaErrorLaunchOutOfResources;
    return cudaErrorInvalidValue;
}

static void read_failures(const char *text) {
    while (text != NULL && *text != '\0') {
        char call[48] = "", name[64] = "";
        int n = 0, length = 0;
        int fields =
            sscanf(text, "%47[^:,]:%d%n:%63[^,]%n", call, &n, &length, name, &length);
        if (fields < 2 || n < 1 || failure_count == 16)
            die("SIM_FAIL=%s: expected <api>:<n>[:<error>], as in cudaMalloc:2", text);
        cudaError_t error = usual_error(call);
        for (int i = 0; fields == 3 && i <= ERRORS; i++) {
            if (i == ERRORS)
                die("SIM_FAIL: no error is called %s", name);
            if (strcmp(errors[i].name, name) == 0 ||
                errors[i].code == (cudaError_t)atoi(name)) {
                error = errors[i].code;
                if (error != cudaSuccess)
                    break;
            }
        }
        memcpy(failures[failure_count].call, call, sizeof call);
        failures[failure_count].countdown = n;
        failures[failure_count++].error = error;
        text += length;
        text += *text == ',';
    }
}

static void count_call(const char *call) {
    int i = 0;
    while (counts[i].call != NULL && strcmp(counts[i].call, call) != 0)
        if (++i == (int)(sizeof counts / sizeof counts[0]))
            die("SIM_COUNT: too many kinds of calls");
    counts[i].call = call;
    counts[i].times++;
}

static void write_counts(void) {
    FILE *out = fopen(count_file, "w");
    if (out == NULL)
        return;
    for (int i = 0; counts[i].call != NULL; i++)
        fprintf(out, "%s %ld\n", counts[i].call, counts[i].times);
    fclose(out);
}

__attribute__((constructor)) static void start(void) {
    params_load();
    const char *devices = getenv("SIM_DEVICES"), *trace = getenv("SIM_TRACE");
    const char *loading = getenv("CUDA_MODULE_LOADING");
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    sim.devices = devices != NULL ? atoi(devices) : 1;
    if (sim.devices < 0 || sim.devices > DEVICES_MAX)
        die("SIM_DEVICES=%s: 0 to %d", devices, DEVICES_MAX);
    sim.eager = loading != NULL && strcmp(loading, "EAGER") == 0;
    sim.launch_blocking = blocking != NULL && strcmp(blocking, "0") != 0;
    read_failures(getenv("SIM_FAIL"));
    count_file = getenv("SIM_COUNT");
    if (count_file != NULL && atexit(write_counts) != 0)
        die("SIM_COUNT: cannot be kept until the end");
    if (trace != NULL)
        trace_open(trace);
    for (int i = 0; i < sim.devices; i++) {
        sim.device[i].id = i;
        for (int sm = 0; sm < (int)param.sms; sm++) {
            sim.device[i].sm[sm].threads = (int)param.threads_per_sm;
            sim.device[i].sm[sm].blocks = (int)param.blocks_per_sm;
            sim.device[i].sm[sm].shared = (int)param.shared_per_sm_kib << 10;
        }
    }
    first_thread = &this_thread;
    install_signal_handlers();
}

struct device *current_device(void) {
    return &sim.device[sim.current];
}

static void create_context(struct device *device) {
    if (device->has_context)
        return;
    device->has_context = true;
    host_busy(param.context_us);
    device->legacy = stream_new(device, 0, 0);
    device->per_thread = stream_new(device, 0, 0);
    device->per_thread->blocking = true;
}

cudaError_t fail(cudaError_t error) {
    trace_failed();
    return sim.last_error = error;
}

void sticky_error(cudaError_t error) {
    sim.sticky = error;
    engine_abort();
}

cudaError_t enter(const char *call, double cost_us, int needs) {
    if (&this_thread != first_thread)
        die("%s was called by a second thread: the simulated device has one host thread",
            call);
    if (sim.in_kernel)
        die("%s was called inside a kernel", call);
    if (sim.in_host_function)
        return fail(cudaErrorNotPermitted);
    trace_call(call);
    if (needs & NEEDS_CONTEXT && sim.devices > 0 && sim.sticky == cudaSuccess)
        create_context(current_device());
    // After a long wait the caches have forgotten how to submit: the next calls cost more.
    bool cold = needs & SUBMITS && sim.warm_calls < param.cold_calls;
    sim.warm_calls += cold;
    host_busy(cold ? param.cold_factor * cost_us : cost_us);
    gpu_advance(sim.now);
    if (count_file != NULL)
        count_call(call);
    for (int i = 0; i < failure_count; i++)
        if (strcmp(failures[i].call, call) == 0 && --failures[i].countdown == 0)
            return fail(failures[i].error);
    if (sim.devices == 0 && !(needs & IGNORES_STICKY))
        return fail(cudaErrorNoDevice);
    if (sim.sticky != cudaSuccess && !(needs & IGNORES_STICKY))
        return fail(sim.sticky);
    if (needs & NOT_IN_CAPTURE && any_capture())
        return capture_forbids(NULL);
    return cudaSuccess;
}

// ---- Errors
// --------------------------------------------------------------------------------
cudaError_t cudaPeekAtLastError(void) {
    cudaError_t error = enter(__func__, param.last_error_us, IGNORES_STICKY);
    return error != cudaSuccess ? error : sim.last_error;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = enter(__func__, param.last_error_us, IGNORES_STICKY);
    if (error == cudaSuccess)
        error = sim.last_error;
    sim.last_error = sim.sticky;  // a sticky error stays
    return error;
}

const char *cudaGetErrorName(cudaError_t error) {
    for (int i = 0; i < ERRORS; i++)
        if (errors[i].code == error)
            return errors[i].name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    for (int i = 0; i < ERRORS; i++)
        if (errors[i].code == error)
            return errors[i].text;
    return "unrecognized error code";
}

// ---- Devices
// -------------------------------------------------------------------------------
static bool no_device(int device) {
    return device < 0 || device >= sim.devices;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    ENTER(param.query_device_us, 0);
    *count = sim.devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    ENTER(param.query_device_us, 0);
    if (no_device(device))
        return fail(cudaErrorInvalidDevice);
    sim.current = device;
    create_context(current_device());
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    ENTER(param.query_device_us, 0);
    *device = sim.current;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    ENTER(param.query_device_us, 0);
    if (flags & ~0x1fu || (flags & 7) == 3 || (flags & 7) > 4)
        return fail(cudaErrorInvalidValue);
    current_device()->flags = flags;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceFlags(unsigned *flags) {
    ENTER(param.query_device_us, 0);
    *flags = current_device()->flags;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = (int)param.driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = (int)param.runtime_version;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    ENTER(param.query_device_us, 0);
    if (no_device(device))
        return fail(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
        *value = 1024;
        break;
    case cudaDevAttrMaxBlockDimZ:
        *value = 64;
        break;
    case cudaDevAttrMaxGridDimX:
        *value = 0x7fffffff;
        break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
        *value = 65535;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)param.shared_per_block_kib << 10;
        break;
    case cudaDevAttrWarpSize:
        *value = 32;
        break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
        *value = (int)param.registers_per_sm;
        break;
    case cudaDevAttrClockRate:
        *value = (int)(1e3 * param.peak_clock_mhz);
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = (int)param.sms;
        break;
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
        *value = 1;
        break;
    case cudaDevAttrKernelExecTimeout:
    case cudaDevAttrIntegrated:
    case cudaDevAttrComputeMode:
    case cudaDevAttrPciDeviceId:
        *value = 0;
        break;
    case cudaDevAttrPciBusId:
        *value = device + 1;
        break;
    case cudaDevAttrMemoryClockRate:
        *value = (int)param.memory_clock_khz;
        break;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = (int)param.memory_bus_bits;
        break;
    case cudaDevAttrL2CacheSize:
        *value = (int)param.l2_mib << 20;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = (int)param.threads_per_sm;
        break;
    case cudaDevAttrAsyncEngineCount:
        *value = (int)param.copy_engines;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = (int)param.compute_major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = (int)param.compute_minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)param.shared_per_sm_kib << 10;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)param.shared_optin_kib << 10;
        break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
        *value = (int)param.blocks_per_sm;
        break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        *value = (int)param.shared_reserved_kib << 10;
        break;
    default:
        return fail(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    ENTER(param.query_device_us, 0);
    if (no_device(device))
        return fail(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", param.name);
    p->totalGlobalMem = (size_t)param.memory_gib << 30;
    p->totalConstMem = 64 << 10;
    p->sharedMemPerBlock = (size_t)param.shared_per_block_kib << 10;
    p->sharedMemPerBlockOptin = (size_t)param.shared_optin_kib << 10;
    p->sharedMemPerMultiprocessor = (size_t)param.shared_per_sm_kib << 10;
    p->reservedSharedMemPerBlock = (size_t)param.shared_reserved_kib << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = (int)param.registers_per_sm;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = (int)param.compute_major;
    p->minor = (int)param.compute_minor;
    p->multiProcessorCount = (int)param.sms;
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = 1;
    p->streamPrioritiesSupported = 1;
    p->pciBusID = device + 1;
    p->asyncEngineCount = (int)param.copy_engines;
    p->memoryBusWidth = (int)param.memory_bus_bits;
    p->l2CacheSize = (int)param.l2_mib << 20;
    p->maxThreadsPerMultiProcessor = (int)param.threads_per_sm;
    p->maxBlocksPerMultiProcessor = (int)param.blocks_per_sm;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    ENTER(param.query_device_us, 0);
    if (no_device(device))
        return fail(cudaErrorInvalidDevice);
    if (id == NULL || length < 13)
        return fail(cudaErrorInvalidValue);
    snprintf(id, (size_t)length, "0000:%02X:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    ENTER(param.query_device_us, 0);
    if (no_device(device) || no_device(peer))
        return fail(cudaErrorInvalidDevice);
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    ENTER(param.malloc_us, NEEDS_CONTEXT);
    if (no_device(peer) || peer == sim.current)
        return fail(cudaErrorInvalidDevice);
    if (flags != 0)
        return fail(cudaErrorInvalidValue);
    if (current_device()->peers >> peer & 1)
        return fail(cudaErrorPeerAccessAlreadyEnabled);
    current_device()->peers |= 1u << peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    ENTER(param.malloc_us, NEEDS_CONTEXT);
    if (no_device(peer))
        return fail(cudaErrorInvalidDevice);
    if (!(current_device()->peers >> peer & 1))
        return fail(cudaErrorPeerAccessNotEnabled);
    current_device()->peers &= ~(1u << peer);
    return cudaSuccess;
}

enum wait_how device_wait_how(const struct device *device) {
    return device->flags & cudaDeviceScheduleBlockingSync ? WAIT_BLOCK : WAIT_SPIN;
}

// One wait, however many streams: until the stream that ends last.
void device_wait_idle(struct device *device, enum wait_how how) {
    double begin = sim.now, cpu = sim.cpu, now = sim.now, cpu_used = 0.0;
    for (int i = 0; i < sim.streams; i++) {
        struct CUstream_st *stream = sim.stream[i];
        if (stream->device != device)
            continue;
        sim.now = begin, sim.cpu = cpu;
        host_wait(stream, stream->last_seq, how);
        order_join(&sim.host, &stream->order);
        if (sim.now > now) {
            now = sim.now;
            cpu_used = sim.cpu - cpu;
        }
    }
    sim.now = now;
    sim.cpu = cpu + cpu_used;
}

static cudaError_t result(void) {
    return sim.sticky != cudaSuccess ? fail(sim.sticky) : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER(param.sync_us, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    device_wait_idle(current_device(), device_wait_how(current_device()));
    return result();
}

cudaError_t cudaDeviceReset(void) {
    ENTER(param.malloc_us, 0);
    struct device *device = current_device();
    if (!device->has_context)
        return cudaSuccess;
    device_wait_idle(device, WAIT_SPIN);
    device->has_context = false;  // the next call that needs one creates it again
    for (int i = 0; i < sim.streams; i++)
        if (sim.stream[i]->device == device)
            sim.stream[i]->alive = sim.stream[i]->blocking = false;
    return result();
}

// ---- Streams
// -------------------------------------------------------------------------------
void sim_use_per_thread_stream(void) {
    sim.per_thread_default = true;
}

cudaError_t find_stream(cudaStream_t handle, struct CUstream_st **stream) {
    struct device *device = current_device();
    create_context(device);
    if (handle == NULL)
        handle = sim.per_thread_default ? cudaStreamPerThread : cudaStreamLegacy;
    if (handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
        *stream = handle == cudaStreamLegacy ? device->legacy : device->per_thread;
        trace_stream(*stream);
        return cudaSuccess;
    }
    for (int i = sim.streams - 1; i >= 0; i--)
        if (sim.stream[i] == handle && handle->alive) {
            *stream = handle;
            trace_stream(handle);
            return cudaSuccess;
        }
    return fail(cudaErrorInvalidResourceHandle);
}
#define FIND(handle, stream)                                                               \
    struct CUstream_st *stream;                                                            \
    do {                                                                                   \
        cudaError_t found = find_stream(handle, &stream);                                  \
        if (found != cudaSuccess)                                                          \
            return found;                                                                  \
    } while (0)

static cudaError_t stream_create(cudaStream_t *handle, unsigned flags, int priority) {
    static int created;
    if (handle == NULL || flags > 1)
        return fail(cudaErrorInvalidValue);
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *handle = stream_new(current_device(), flags, priority);
    (*handle)->number = ++created;
    (*handle)->blocking = flags == cudaStreamDefault;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    ENTER(param.stream_create_us, NEEDS_CONTEXT);
    return stream_create(stream, 0, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    ENTER(param.stream_create_us, NEEDS_CONTEXT);
    return stream_create(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                         int priority) {
    ENTER(param.stream_create_us, NEEDS_CONTEXT);
    return stream_create(stream, flags, priority);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(param.query_device_us, NEEDS_CONTEXT);
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    ENTER(param.stream_create_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    if (stream->number == 0)
        return fail(cudaErrorInvalidResourceHandle);
    stream->alive = false;  // what is queued in it still runs
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    ENTER(param.sync_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    if (capturing(stream) || (stream->number == 0 && any_capture()))
        return capture_forbids(stream);
    host_wait(stream, stream->last_seq, device_wait_how(stream->device));
    order_join(&sim.host, &stream->order);
    return result();
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    ENTER(param.query_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    if (capturing(stream))
        return capture_forbids(stream);
    if (!stream_done(stream, stream->last_seq))
        return cudaErrorNotReady;  // an answer, not kept as the last error
    order_join(&sim.host, &stream->order);
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags) {
    ENTER(param.query_device_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    *flags = stream->flags;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
    ENTER(param.query_device_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    *priority = stream->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device) {
    ENTER(param.query_device_us, NEEDS_CONTEXT);
    FIND(handle, stream);
    *device = stream->device->id;
    return cudaSuccess;
}

// ---- Queueing
// ------------------------------------------------------------------------------
void sim_site(const char *file, int line, const char *argument) {
    sim.site.file = file;
    sim.site.line = line;
    snprintf(sim.argument, sizeof sim.argument, "%s", argument);
}

cudaError_t enqueue(struct CUstream_st *stream, struct op *op) {
    if (capturing(stream))
        return capture_add(stream, op);
    if ((stream->number == 0 && stream == stream->device->legacy) && any_capture()) {
        op_free(op);
        capture_forbids(NULL);
        return fail(cudaErrorStreamCaptureImplicit);
    }
    submit(stream, op);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *user) {
    ENTER(param.launch_us, NEEDS_CONTEXT | SUBMITS);
    FIND(handle, stream);
    if (function == NULL)
        return fail(cudaErrorInvalidValue);
    struct op *op = op_new(OP_HOST, "host function");
    op->host_function = function;
    op->user = user;
    return enqueue(stream, op);
}

static cudaError_t launch_error(const struct sim_launch *launch, struct kernel *kernel) {
    uint64_t threads = (uint64_t)launch->block.x * launch->block.y * launch->block.z;
    uint64_t blocks = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
    if (threads == 0 || blocks == 0)
        return cudaErrorInvalidConfiguration;
    if (threads > 1024 || launch->block.x > 1024 || launch->block.y > 1024 ||
        launch->block.z > 64 || launch->grid.x > 0x7fffffff || launch->grid.y > 65535 ||
        launch->grid.z > 65535 ||
        launch->shared + kernel_static_shared(kernel) > (size_t)*kernel_max_shared(kernel))
        return cudaErrorInvalidValue;  // as recorded for 2,048 threads
    return cudaSuccess;
}

cudaError_t sim_launch(const struct sim_launch *launch) {
    if (launch->line > 0)
        sim_site(launch->file, launch->line, "");
    bool captured =
        any_capture() && launch->stream > cudaStreamPerThread && capturing(launch->stream);
    cudaError_t error =
        enter("cudaLaunchKernel", captured ? param.capture_us : param.launch_us,
              NEEDS_CONTEXT | SUBMITS);
    struct CUstream_st *stream;
    if (error == cudaSuccess)
        error = find_stream(launch->stream, &stream);
    if (error != cudaSuccess)
        return error;
    if (launch->function != sim.last_launched && !captured)
        host_busy(param.other_kernel_us);
    sim.last_launched = launch->function;
    struct kernel *kernel = kernel_find(launch->function, launch->name);
    struct device *device = stream->device;
    error = launch_error(launch, kernel);
    if (error == cudaSuccess && device != current_device())
        error = cudaErrorInvalidResourceHandle;
    if (error != cudaSuccess)
        return fail(error);
    if (!*kernel_loaded(kernel, device->id)) {
        // Lazy loading: the kernel's code is loaded at its first launch, on an idle device.
        *kernel_loaded(kernel, device->id) = true;
        if (!sim.eager) {
            struct order keep = {0, NULL};
            order_copy(&keep, &sim.host);  // an accident, on which no program may count
            if (!captured)
                device_wait_idle(device, WAIT_SPIN);
            free(sim.host.seen);
            sim.host = keep;
            host_busy(param.first_launch_us);
            gpu_advance(sim.now);
        }
    }
    struct op *op = op_new(OP_KERNEL, launch->name);
    op->kernel = kernel;
    op->launch = malloc(sizeof *launch + launch->args_bytes);
    *op->launch = *launch;
    op->launch->args = memcpy(op->launch + 1, launch->args, launch->args_bytes);
    op->blocks_left = op->blocks_to_place =
        (unsigned)(launch->grid.x * launch->grid.y * launch->grid.z);
    error = enqueue(stream, op);
    if (error == cudaSuccess && sim.launch_blocking && !captured)
        host_wait(stream, stream->last_seq, WAIT_SPIN);
    return error;
}

cudaError_t sim_function_attributes(struct cudaFuncAttributes *attributes,
                                    const void *function) {
    cudaError_t error = enter("cudaFuncGetAttributes", param.query_us, NEEDS_CONTEXT);
    if (error != cudaSuccess)
        return error;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->sharedSizeBytes = kernel_static_shared(kernel_find(function, "kernel"));
    attributes->numRegs = 32;  // registers are not modelled
    attributes->binaryVersion = attributes->ptxVersion =
        (int)(10 * param.compute_major + param.compute_minor);
    attributes->maxDynamicSharedSizeBytes =
        *kernel_max_shared(kernel_find(function, "kernel"));
    return cudaSuccess;
}

cudaError_t sim_function_set(const void *function, enum cudaFuncAttribute which,
                             int value) {
    cudaError_t error = enter("cudaFuncSetAttribute", param.query_us, NEEDS_CONTEXT);
    if (error != cudaSuccess)
        return error;
    if (which == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;  // a hint
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > (int)param.shared_optin_kib << 10)
        return fail(cudaErrorInvalidValue);
    *kernel_max_shared(kernel_find(function, "kernel")) = value;
    return cudaSuccess;
}

cudaError_t sim_occupancy(int *blocks, const void *function, int threads, size_t shared) {
    cudaError_t error = enter("cudaOccupancyMaxActiveBlocksPerMultiprocessor",
                              param.query_us, NEEDS_CONTEXT);
    if (error != cudaSuccess)
        return error;
    if (threads < 1 || threads > 1024)
        return fail(cudaErrorInvalidValue);
    shared += kernel_static_shared(kernel_find(function, "kernel"));
    size_t each = shared > 0 ? shared + ((size_t)param.shared_reserved_kib << 10) : 0;
    int by_threads = (int)param.threads_per_sm / ((threads + 31) / 32 * 32);
    *blocks = (int)param.blocks_per_sm < by_threads ? (int)param.blocks_per_sm : by_threads;
    if (each > 0 && ((size_t)param.shared_per_sm_kib << 10) / each < (size_t)*blocks)
        *blocks = (int)(((size_t)param.shared_per_sm_kib << 10) / each);
    return cudaSuccess;
}

// ---- Events
// --------------------------------------------------------------------------------
enum { CHUNK = 1024, CHUNKS = 4096 };
static struct CUevent_st *chunks[CHUNKS], *free_events;
static int chunk_count;

// A handle is one of ours and alive, or it is none: no stray pointer is ever followed.
static bool is_event(const struct CUevent_st *event) {
    for (int i = 0; i < chunk_count; i++)
        if (event >= chunks[i] && event < chunks[i] + CHUNK)
            return ((const char *)event - (const char *)chunks[i]) % sizeof *event == 0 &&
                   event->alive;
    return false;
}

static void event_release(struct CUevent_st *event) {
    if (event->alive || event->pending > 0)
        return;
    free(event->order.seen);
    free(event->tips);
    memset(event, 0, sizeof *event);
    event->next_free = free_events;
    free_events = event;
}

static cudaError_t event_create(cudaEvent_t *handle, unsigned flags) {
    if (handle == NULL || flags > 7 || (flags & 6) == 4)
        return fail(cudaErrorInvalidValue);
    if (free_events == NULL) {
        if (chunk_count == CHUNKS)
            return fail(cudaErrorMemoryAllocation);
        struct CUevent_st *chunk = chunks[chunk_count++] = calloc(CHUNK, sizeof *chunk);
        for (int i = CHUNK - 1; i >= 0; i--) {
            chunk[i].next_free = free_events;
            free_events = &chunk[i];
        }
    }
    struct CUevent_st *event = *handle = free_events;
    free_events = event->next_free;
    event->next_free = NULL;
    static int created;
    event->number = ++created;
    event->alive = true;
    event->flags = flags;
    event->device = current_device();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    ENTER(param.event_create_us, NEEDS_CONTEXT);
    return event_create(event, 0);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    ENTER(param.event_create_us, NEEDS_CONTEXT);
    return event_create(event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ENTER(param.event_create_us, NEEDS_CONTEXT);
    if (!is_event(event))
        return fail(cudaErrorInvalidResourceHandle);
    event->alive = false;
    event_release(event);
    return cudaSuccess;
}

void event_recorded(struct CUevent_st *event, const struct op *op, double now) {
    event->pending--;
    // Only the latest record counts. %globaltimer, from which stamps are taken, steps by 32
    // ns.
    if (event->stream == op->stream && event->seq == op->seq)
        event->stamp = floor(now * 1e3 / 32.0) * 32.0 / 1e3;
    event_release(event);
}

static cudaError_t record(cudaEvent_t event, cudaStream_t handle, unsigned flags,
                          const char *call) {
    bool timing = is_event(event) && !(event->flags & cudaEventDisableTiming);
    cudaError_t error = enter(call, timing ? param.record_timing_us : param.record_us,
                              NEEDS_CONTEXT | SUBMITS);
    if (error != cudaSuccess)
        return error;
    FIND(handle, stream);
    if (!is_event(event) || event->device != stream->device)
        return fail(cudaErrorInvalidResourceHandle);
    if (flags != cudaEventRecordDefault)
        return fail(cudaErrorInvalidValue);
    if (capturing(stream)) {
        capture_record(stream, event);
        trace_event(event, true);
        return cudaSuccess;
    }
    struct op *op = op_new(OP_RECORD, "event record");
    op->event = event;
    event->pending++;
    error = enqueue(stream, op);
    if (error != cudaSuccess) {
        event->pending--;
        return error;
    }
    event->capture = NULL;
    event->recorded = true;
    event->stream = stream;
    event->seq = stream->last_seq;
    order_copy(&event->order, &stream->order);
    trace_event(event, true);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return record(event, stream, 0, __func__);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                     unsigned flags) {
    return record(event, stream, flags, __func__);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    ENTER(param.wait_event_us, NEEDS_CONTEXT | SUBMITS);
    FIND(handle, stream);
    if (!is_event(event))
        return fail(cudaErrorInvalidResourceHandle);
    if (flags != cudaEventWaitDefault)
        return fail(cudaErrorInvalidValue);
    trace_event(event, false);
    if (event->capture != NULL || capturing(stream))
        return capture_wait(stream, event);
    if (!event->recorded)
        return cudaSuccess;  // nothing to wait for: orders nothing
    if (event->device != stream->device)
        host_busy(param.wait_other_device_us);
    if (event->stream != stream && !stream_done(event->stream, event->seq)) {
        struct op *op = op_new(OP_WAIT, "wait");
        op->wait_stream = event->stream;
        op->wait_seq = event->seq;
        submit(stream, op);
    }
    order_join(&stream->order, &event->order);
    return cudaSuccess;
}

static bool event_done(const struct CUevent_st *event) {
    return !event->recorded || stream_done(event->stream, event->seq);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER(param.query_us, NEEDS_CONTEXT);
    if (!is_event(event))
        return fail(cudaErrorInvalidResourceHandle);
    trace_event(event, false);
    if (event->capture != NULL) {
        capture_forbids(NULL);
        return fail(cudaErrorCapturedEvent);
    }
    if (!event_done(event))
        return cudaErrorNotReady;  // an answer, not kept as the last error
    order_join(&sim.host, &event->order);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER(param.sync_us, NEEDS_CONTEXT);
    if (!is_event(event))
        return fail(cudaErrorInvalidResourceHandle);
    trace_event(event, false);
    if (event->capture != NULL) {
        capture_forbids(NULL);
        return fail(cudaErrorCapturedEvent);
    }
    // The event's own flag decides; the device's does not, as recorded.
    if (event->recorded)
        host_wait(event->stream, event->seq,
                  event->flags & cudaEventBlockingSync ? WAIT_BLOCK : WAIT_SPIN);
    order_join(&sim.host, &event->order);
    return result();
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t stop) {
    ENTER(param.query_us, NEEDS_CONTEXT);
    if (ms == NULL)
        return fail(cudaErrorInvalidValue);
    // As recorded: lab 04 for events of a capture that is over, a probe for the rest.
    if (is_event(start) && is_event(stop) && capture_ended(start) && capture_ended(stop))
        return fail(cudaErrorInvalidValue);
    if (!is_event(start) || !is_event(stop) || start->capture != NULL ||
        stop->capture != NULL || !start->recorded || !stop->recorded ||
        start->device != stop->device ||
        (start->flags | stop->flags) & cudaEventDisableTiming)
        return fail(cudaErrorInvalidResourceHandle);
    if (!event_done(start) || !event_done(stop))
        return cudaErrorNotReady;  // an answer, not kept as the last error
    *ms = (float)((stop->stamp - start->stamp) / 1e3);
    return cudaSuccess;
}
