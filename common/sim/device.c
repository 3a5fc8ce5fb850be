// SPDX-License-Identifier: MIT
// The calls on devices.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

void devices_make(const char *how_many) {
    char *end = "";
    sim.devices = how_many != NULL ? (int)strtol(how_many, &end, 10) : 1;
    if (end == how_many || *end != '\0' || sim.devices < 0 || sim.devices > DEVICES_MAX)
        die("SIM_DEVICES=%s: not a number from 0 to %d", how_many, DEVICES_MAX);
    for (int i = 0; i < sim.devices; i++) {
        sim.device[i].id = i;
        for (int k = 0; k < (int)param.sms; k++)
            sim.device[i].sm[k] = (struct sm){.threads = (int)param.threads_per_sm,
                                              .blocks = (int)param.blocks_per_sm,
                                              .shared = (int)param.shared_per_sm_kib << 10};
    }
}

struct device *current_device(void) {
    return &sim.device[sim.current];
}

void create_context(struct device *device) {
    if (device->has_context)
        return;
    device->has_context = true;
    host_busy(param.context_us);
    device->legacy = stream_new(device, false, 0);
    device->per_thread = stream_new(device, true, 0);
}

bool no_device(int device) { return device < 0 || device >= sim.devices; }

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
    const int values[] = {
        [cudaDevAttrIntegrated] = 0,
        [cudaDevAttrMaxThreadsPerBlock] = 1024,
        [cudaDevAttrMaxBlockDimX] = 1024,
        [cudaDevAttrMaxBlockDimY] = 1024,
        [cudaDevAttrMaxBlockDimZ] = 64,
        [cudaDevAttrMaxGridDimX] = 0x7fffffff,
        [cudaDevAttrMaxGridDimY] = 65535,
        [cudaDevAttrMaxGridDimZ] = 65535,
        [cudaDevAttrMaxSharedMemoryPerBlock] = (int)param.shared_per_block_kib << 10,
        [cudaDevAttrWarpSize] = 32,
        [cudaDevAttrMaxRegistersPerBlock] = (int)param.registers_per_sm,
        [cudaDevAttrClockRate] = (int)(1e3 * param.peak_clock_mhz),
        [cudaDevAttrMultiProcessorCount] = (int)param.sms,
        [cudaDevAttrCanMapHostMemory] = 1,
        [cudaDevAttrConcurrentKernels] = 1,
        [cudaDevAttrMemoryClockRate] = (int)param.memory_clock_khz,
        [cudaDevAttrGlobalMemoryBusWidth] = (int)param.memory_bus_bits,
        [cudaDevAttrL2CacheSize] = (int)param.l2_mib << 20,
        [cudaDevAttrMaxThreadsPerMultiProcessor] = (int)param.threads_per_sm,
        [cudaDevAttrAsyncEngineCount] = (int)param.copy_engines,
        [cudaDevAttrUnifiedAddressing] = 1,
        [cudaDevAttrComputeCapabilityMajor] = (int)param.compute_major,
        [cudaDevAttrComputeCapabilityMinor] = (int)param.compute_minor,
        [cudaDevAttrStreamPrioritiesSupported] = 1,
        [cudaDevAttrMaxSharedMemoryPerMultiprocessor] = (int)param.shared_per_sm_kib << 10,
        [cudaDevAttrMaxSharedMemoryPerBlockOptin] = (int)param.shared_optin_kib << 10,
        [cudaDevAttrMaxBlocksPerMultiprocessor] = (int)param.blocks_per_sm,
        [cudaDevAttrReservedSharedMemoryPerBlock] = (int)param.shared_reserved_kib << 10,
    };
    if ((size_t)attribute >= sizeof values / sizeof values[0])
        return fail(cudaErrorInvalidValue);
    *value = values[attribute];
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    ENTER(param.query_device_us, 0);
    if (no_device(device))
        return fail(cudaErrorInvalidDevice);
    *p = (struct cudaDeviceProp){
        .totalGlobalMem = (size_t)param.memory_gib << 30,
        .totalConstMem = 64 << 10,
        .sharedMemPerBlock = (size_t)param.shared_per_block_kib << 10,
        .sharedMemPerBlockOptin = (size_t)param.shared_optin_kib << 10,
        .sharedMemPerMultiprocessor = (size_t)param.shared_per_sm_kib << 10,
        .regsPerBlock = (int)param.registers_per_sm,
        .warpSize = 32,
        .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {0x7fffffff, 65535, 65535},
        .major = (int)param.compute_major,
        .minor = (int)param.compute_minor,
        .multiProcessorCount = (int)param.sms,
        .canMapHostMemory = 1,
        .concurrentKernels = 1,
        .unifiedAddressing = 1,
        .asyncEngineCount = (int)param.copy_engines,
        .memoryBusWidth = (int)param.memory_bus_bits,
        .l2CacheSize = (int)param.l2_mib << 20,
        .maxThreadsPerMultiProcessor = (int)param.threads_per_sm,
        .maxBlocksPerMultiProcessor = (int)param.blocks_per_sm,
        .pciBusID = device + 1,
    };
    snprintf(p->name, sizeof p->name, "%s", param.name);
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

enum wait_how device_wait_how(const struct device *device) {
    return device->flags & cudaDeviceScheduleBlockingSync ? WAIT_BLOCK : WAIT_SPIN;
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER(param.sync_us, NEEDS_CONTEXT | NOT_IN_CAPTURE);
    device_wait_idle(current_device(), device_wait_how(current_device()));
    return outcome();
}

cudaError_t cudaDeviceReset(void) {
    ENTER(param.malloc_us, 0);
    struct device *device = current_device();
    if (!device->has_context)
        return cudaSuccess;
    device_wait_idle(device, WAIT_SPIN);
    device->has_context = false;  // the next call that needs one creates it again
    device->flags = device->peers = 0;
    allocations_release(device);
    kernels_unload(device);
    for (int i = 0; i < sim.streams; i++)
        if (sim.stream[i]->device == device) {
            sim.stream[i]->alive = sim.stream[i]->blocking = false;
            stream_drained(sim.stream[i]);
        }
    return outcome();
}
