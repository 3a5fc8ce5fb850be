// SPDX-License-Identifier: MIT
// The header that every lab prints, with a warning for whatever would spoil its figures, and
// the clock rate. lab_begin first, lab_end last.
#pragma once

#include "clock.h"
#include "cuda_check.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

static inline int device_attribute(enum cudaDeviceAttr attribute) {
    int device, value;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}

// Cycles for a kernel to wait on clock64() so that it lasts `us` microseconds at the GPU's
// peak clock: the same length on every GPU, and longer where cold, heat or want of power hold
// the clock down. Costs half a millisecond: call it before the clock starts.
static inline long long cycles_for_us(double us) {
    return (long long)(us * 1e-3 * device_attribute(cudaDevAttrClockRate));  // in kHz
}

// In the output, where the figures are, and on standard error, seen when the output is not.
static inline void lab_warning(const char *text) {
    printf("warning %s\n", text);
    if (!isatty(STDOUT_FILENO))
        fprintf(stderr, "warning %s\n", text);
}

// How many processes compute on the GPU: this one, too, once it has a context. 0 where there is
// no NVML to ask.
static inline unsigned gpu_processes(int device) {
    unsigned found = 0;
#ifndef LAB_SIMULATED
    char bus_id[32];
    void *handle = NULL, *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (nvml != NULL && cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device) == cudaSuccess) {
        typedef int init_fn(void), find_fn(const char *, void **),
            count_fn(void *, unsigned *, void *);
        init_fn *init = (init_fn *)dlsym(nvml, "nvmlInit_v2");
        find_fn *find = (find_fn *)dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
        count_fn *count = (count_fn *)dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
        if (init && find && count && init() == 0 && find(bus_id, &handle) == 0)
            count(handle, &found, NULL);  // room for none: it says how many there are
    }
#endif
    (void)device;
    return found;
}

// Whether others took much of this core: Linux keeps how long a thread ran, and how long it
// waited for a core, in ns. Waiting is 1 % on a quiet machine, half beside a busy process.
static inline bool waited_much(long long ran, long long waited) { return waited > ran / 10; }

static inline bool core_is_shared(void) {
    long long ran = 0, waited = 0;
    FILE *file = fopen("/proc/self/schedstat", "r");
    bool known = file != NULL && fscanf(file, "%lld %lld", &ran, &waited) == 2;
    if (file != NULL)
        fclose(file);
    return known && waited_much(ran, waited);
}

static inline void lab_warnings(const char *device_name) {
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    const char *loading = getenv("CUDA_MODULE_LOADING");
    if (blocking != NULL && strcmp(blocking, "0") != 0)
        lab_warning("CUDA_LAUNCH_BLOCKING is set: every launch waits for its kernel; unset it");
    if (loading != NULL && strcmp(loading, "EAGER") == 0)
        lab_warning("CUDA_MODULE_LOADING=EAGER: first launches look cheaper than they are");
    if (getenv("CUDA_DEVICE_MAX_CONNECTIONS") != NULL)
        lab_warning("CUDA_DEVICE_MAX_CONNECTIONS is set: streams may share one queue");
    if (getenv("CUDA_MPS_PIPE_DIRECTORY") || access("/tmp/nvidia-mps/control", F_OK) == 0)
        lab_warning("MPS is running: the GPU may serve other processes between your launches");
    if (strstr(device_name, " MIG ") != NULL)
        lab_warning("this is a MIG slice: fewer SMs and copy engines than the whole GPU");
#ifdef __CUDACC_DEBUG__
    lab_warning("built with -G: device code is slower than it should be (lab 04: 60 x)");
#endif
}

static double lab_begun_us;
static int lab_device;
static bool lab_gpu_is_shared;
static void (*trace_region)(const char *name);  // NULL unless a tracer is there

// Name a part of the program that make timeline shows, and that the grader looks at.
static inline void region_begin(const char *name) {
    if (trace_region != NULL)
        trace_region(name);
}

static inline void region_end(void) { region_begin(NULL); }

// `own` is 1 once this process has a context. Says it once.
static inline void warn_if_gpu_is_shared(unsigned own) {
    if (!lab_gpu_is_shared && gpu_processes(lab_device) > own) {
        lab_gpu_is_shared = true;
        lab_warning("another process is on this GPU: synchronizing can take 30 x longer");
    }
}

// Prints the header and creates the context: 0.3 s, which no lab shall time by accident. Ends
// the program with 77 where there is no driver or no device.
static inline void lab_begin(const char *number, const char *name) {
    int devices = 0, driver, runtime;
    struct cudaDeviceProp properties;
    lab_begun_us = now_us();
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
        printf("skipped %s %s: no CUDA device (%s)\n", number, name,
               error == cudaSuccess ? "none listed" : cudaGetErrorString(error));
        exit(EXIT_SKIPPED);
    }
    CUDA_CHECK(cudaGetDevice(&lab_device));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, lab_device));
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
#ifdef LAB_SIMULATED
    printf("lab %s %s\nbackend simulated\n", number, name);
    trace_region = sim_region;
#else
    printf("lab %s %s\nbackend hardware\n", number, name);
    trace_region = (void (*)(const char *))dlsym(RTLD_DEFAULT, "lab_trace_region");
#endif
    printf("device %s, sm_%d%d, %d SMs, %.0f MHz, driver %d.%d, runtime %d.%d\n",
           properties.name, properties.major, properties.minor, properties.multiProcessorCount,
           device_attribute(cudaDevAttrClockRate) / 1e3, driver / 1000, driver % 1000 / 10,
           runtime / 1000, runtime % 1000 / 10);
    lab_warnings(properties.name);
    warn_if_gpu_is_shared(0);
    fflush(stdout);
    CUDA_CHECK(cudaFree(0));
}

// Without this last line the output counts as truncated.
static inline void lab_end(const char *number, const char *name) {
    warn_if_gpu_is_shared(1);
#ifndef LAB_SIMULATED  // whose clock stands still meanwhile
    if (core_is_shared())
        lab_warning("another process is on this core: what the host does comes late");
#endif
    printf("finished %s %s after %.2f s\n", number, name, (now_us() - lab_begun_us) / 1e6);
}
