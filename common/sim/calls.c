// SPDX-License-Identifier: MIT
// What every call does first, the errors and their names, SIM_FAIL and SIM_COUNT.
#include "sim.h"

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

void *grow(void *array, int count, size_t item) {
    bool full = count == 0 || (count >= 8 && (count & (count - 1)) == 0);
    return full ? realloc(array, (size_t)(count ? 2 * count : 8) * item) : array;
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
#define SIM_ROW(code, name, text) {name, #name, text},
    SIM_ERRORS(SIM_ROW)
#undef SIM_ROW
};
enum { ERRORS = sizeof errors / sizeof errors[0] };

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

// ---- SIM_FAIL=<api>:<n>[:<error>],... and SIM_COUNT=<file>
static struct {
    char call[48];
    int countdown;
    cudaError_t error;
} failures[16];
static int failure_count;
static struct {
    const char *call;
    long times;
} counts[128];
static const char *count_file;

// The error that a call most often fails with.
static cudaError_t usual_error(const char *call) {
    if (strstr(call, "alloc") || strstr(call, "Alloc") || strstr(call, "Create"))
        return cudaErrorMemoryAllocation;
    if (strstr(call, "Synchronize") || strstr(call, "Query") || strcmp(call, "cudaMemcpy") == 0)
        return cudaErrorLaunchFailure;
    if (strcmp(call, "cudaGetDeviceCount") == 0)
        return cudaErrorNoDevice;
    if (strcmp(call, "cudaLaunchKernel") == 0)
        return cudaErrorLaunchOutOfResources;
    return cudaErrorInvalidValue;
}

static cudaError_t error_called(const char *name_or_number) {
    for (int i = 0; i < ERRORS; i++)
        if (errors[i].code != cudaSuccess && (strcmp(errors[i].name, name_or_number) == 0 ||
                                              (int)errors[i].code == atoi(name_or_number)))
            return errors[i].code;
    die("SIM_FAIL: no error is called %s", name_or_number);
}

static void read_failures(const char *text) {
    while (text != NULL && *text != '\0') {
        char call[48] = "", name[64] = "";
        int n = 0, length = 0;
        int fields = sscanf(text, "%47[^:,]:%d%n:%63[^,]%n", call, &n, &length, name, &length);
        if (fields < 2 || n < 1 || failure_count == 16)
            die("SIM_FAIL=%s: expected <api>:<n>[:<error>], as in cudaMalloc:2", text);
        memcpy(failures[failure_count].call, call, sizeof call);
        failures[failure_count].countdown = n;
        failures[failure_count++].error = fields == 3 ? error_called(name) : usual_error(call);
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
    for (int i = 0; out != NULL && counts[i].call != NULL; i++)
        fprintf(out, "%s %ld\n", counts[i].call, counts[i].times);
    if (out != NULL)
        fclose(out);
}

// ---- What every call does first
static _Thread_local char this_thread;
static const char *first_thread;

// The host has waited or slept for so long. Its caches have forgotten how to submit, and after a
// rest its core is slow, too: the next calls cost more.
void host_waited(double us) {
    if (us < param.cold_wait_us)
        return;
    sim.warm_calls = 0;
    sim.cold_factor = us < param.rest_us ? param.cold_factor : param.rested_factor;
}

__attribute__((constructor)) static void start(void) {
    params_load();
    host_waited(param.cold_wait_us);  // a program that starts is cold, too
    const char *trace = getenv("SIM_TRACE");
    devices_make(getenv("SIM_DEVICES"));
    const char *loading = getenv("CUDA_MODULE_LOADING");
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    sim.eager = loading != NULL && strcmp(loading, "EAGER") == 0;
    sim.launch_blocking = blocking != NULL && strcmp(blocking, "0") != 0;
    read_failures(getenv("SIM_FAIL"));
    count_file = getenv("SIM_COUNT");
    if (count_file != NULL && atexit(write_counts) != 0)
        die("SIM_COUNT: cannot be kept until the end");
    if (trace != NULL)
        trace_open(trace);
    first_thread = &this_thread;
    install_signal_handlers();
    fibers_make();
}

void sim_site(const char *file, int line, const char *argument) {
    sim.site.file = file;
    sim.site.line = line;
    snprintf(sim.argument, sizeof sim.argument, "%s", argument);
}

cudaError_t fail(cudaError_t error) {
    trace_failed();
    return sim.last_error = error;
}

cudaError_t outcome(void) { return sim.sticky != cudaSuccess ? fail(sim.sticky) : cudaSuccess; }

cudaError_t enter(const char *call, double cost_us, int needs) {
    if (&this_thread != first_thread)
        die("%s was called by a second thread: the simulated device has one host thread", call);
    if (sim.in_kernel)
        die("%s was called inside a kernel", call);
    if (sim.in_host_function)
        return cudaErrorNotPermitted;  // the last error is the calling thread's own
    trace_call(call);
    if (needs & NEEDS_CONTEXT && sim.devices > 0 && sim.sticky == cudaSuccess)
        create_context(current_device());
    bool cold = needs & SUBMITS && sim.warm_calls < param.cold_calls;
    sim.warm_calls += cold;
    host_busy(cold ? sim.cold_factor * cost_us : cost_us);
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
    if ((needs & NOT_IN_CAPTURE && any_capture(ANY)) || (needs & UNSAFE && any_capture(STRICT)))
        return capture_forbids(NULL);
    return cudaSuccess;
}

cudaError_t cudaPeekAtLastError(void) {
    cudaError_t error = enter(__func__, param.last_error_us, IGNORES_STICKY);
    return error != cudaSuccess ? error : sim.last_error;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = enter(__func__, param.last_error_us, IGNORES_STICKY);
    if (error == cudaSuccess)
        error = sim.last_error;
    if (!sim.in_host_function)
        sim.last_error = sim.sticky;  // a sticky error stays
    return error;
}
