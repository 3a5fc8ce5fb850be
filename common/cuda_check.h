// SPDX-License-Identifier: MIT
// Every CUDA call returns an error code, and an unchecked one turns a program that did
// nothing into a program that printed 0.00 us. Wrap every call:
//
//     CUDA_CHECK(cudaMalloc(&d_data, bytes));
//     NullKernel<<<1, 1>>>();
//     CUDA_CHECK_LAUNCH();
//
// On an error both flush standard output, print on standard error where it happened, what
// was called, the error's name, number and text and, for the errors that students meet, a
// hint; then they end the program with exit code 3. So no figure can follow an error.
// The argument is evaluated once, and both are expressions: safe in an if without braces.
#ifndef CUDA_CHECK_H
#define CUDA_CHECK_H

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXIT_WRONG_RESULT = 1, EXIT_USAGE = 2, EXIT_CUDA_ERROR = 3, EXIT_SKIPPED = 77 };

#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__, __func__)

// A launch returns nothing; what was wrong with it (grid, block, shared memory, missing
// code for this GPU) is kept for cudaGetLastError. A cudaDeviceSynchronize does not report
// it. Measured on an H200, the check adds well under 2 % to a launch (make bench).
#define CUDA_CHECK_LAUNCH()                                                                  \
    cuda_check(cudaGetLastError(), "kernel launch", __FILE__, __LINE__, __func__)

static inline const char *cuda_error_hint(cudaError_t error) {
    switch (error) {
    case cudaErrorNoDevice:
        return "no GPU is visible: does nvidia-smi list one, and is CUDA_VISIBLE_DEVICES set?";
    case cudaErrorInsufficientDriver:
        return "no NVIDIA driver, or one older than this CUDA toolkit: compare nvidia-smi with "
               "nvcc --version";
    case cudaErrorMemoryAllocation:
        return "out of memory: nvidia-smi shows who holds it";
    case cudaErrorInvalidConfiguration:
        return "grid or block is empty or too large: a block has at most 1,024 threads";
    case cudaErrorInvalidValue:
        return "an argument is out of range; after a launch, a block of over 1,024 threads or "
               "too much shared memory also says this";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
        return "the program was built for another GPU: build again with ARCH=native, or name "
               "it, as in ARCH=sm_75";
    case cudaErrorLaunchOutOfResources:
        return "too many registers or too much shared memory a block: make the block smaller";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
        return "an EARLIER kernel broke the context, not this call: run under compute-sanitizer "
               "to see which";
    case cudaErrorLaunchTimeout:
        return "a GPU that drives a display stops kernels after a few seconds";
    case cudaErrorInvalidResourceHandle:
        return "an event never recorded, made with cudaEventDisableTiming, or of another device";
    case cudaErrorNotReady:
        return "the work is still running: synchronize with the event before reading it";
    case cudaErrorDevicesUnavailable:
        return "another process holds the GPU in exclusive mode";
    case cudaErrorStreamCaptureUnsupported:
        return "this call is not allowed while a stream is being captured";
    default:
        return NULL;
    }
}

// Kept out of line so that a check costs one comparison where nothing is wrong.
#if defined(__GNUC__)
__attribute__((noinline, cold))
#endif
static void cuda_check_failed(cudaError_t error, const char *what, const char *file, int line,
                              const char *function) {
    fflush(stdout);
    fprintf(stderr, "%s:%d: in %s(): %s\n  %s (%d): %s\n", file, line, function, what,
            cudaGetErrorName(error), (int)error, cudaGetErrorString(error));
    const char *hint = cuda_error_hint(error);
    if (hint != NULL)
        fprintf(stderr, "  hint: %s\n", hint);
    exit(EXIT_CUDA_ERROR);
}

static inline void cuda_check(cudaError_t error, const char *what, const char *file, int line,
                              const char *function) {
    if (error != cudaSuccess)
        cuda_check_failed(error, what, file, line, function);
}

#endif
