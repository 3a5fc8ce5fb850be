// SPDX-License-Identifier: MIT
// An unchecked error turns a program that did nothing into one that printed 0.00 us. So:
//
//     CUDA_CHECK(cudaMalloc(&d_data, bytes));
//     NullKernel<<<1, 1>>>();
//     CUDA_CHECK_LAUNCH();
//
// On an error both print where, what, and the error's name, number and text, with a hint for
// those that students meet, and end the program with exit code 3: no figure can follow an
// error. The argument is evaluated once, and both are expressions: safe in an if without
// braces.
#pragma once

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXIT_CUDA_ERROR = 3, EXIT_SKIPPED = 77 };

#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__, __func__)

// A launch returns nothing; what was wrong with it (grid, block, shared memory, no code for
// this GPU) is kept for cudaGetLastError, and a cudaDeviceSynchronize does not report it. The
// check adds under 2 % to a launch: make bench.
#define CUDA_CHECK_LAUNCH()                                                                    \
    cuda_check(cudaGetLastError(), "kernel launch", __FILE__, __LINE__, __func__)

static inline const char *cuda_error_hint(cudaError_t error) {
    switch (error) {
    case cudaErrorNoDevice:
        return "no GPU is visible: does nvidia-smi list one? Is CUDA_VISIBLE_DEVICES set?";
    case cudaErrorInsufficientDriver:
        return "no driver, or older than the toolkit: compare nvidia-smi, nvcc --version";
    case cudaErrorMemoryAllocation:
        return "out of memory: nvidia-smi shows who holds it";
    case cudaErrorInvalidConfiguration:
        return "grid or block is empty or too large: a block has at most 1,024 threads";
    case cudaErrorInvalidValue:
        return "an argument is out of range; of a launch: over 1,024 threads a block, say";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
        return "built for another GPU: build again with ARCH=native";
    case cudaErrorLaunchOutOfResources:
        return "too many registers or too much shared memory: make the block smaller";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
        return "an EARLIER kernel broke the context, not this call: run compute-sanitizer";
    case cudaErrorInvalidResourceHandle:
        return "an event never recorded, without timing, or of another device";
    case cudaErrorNotReady:
        return "the work is still running: synchronize with the event first";
    case cudaErrorStreamCaptureUnsupported:
        return "this call is not allowed while a stream is being captured";
    default:
        return NULL;
    }
}

static inline void cuda_check(cudaError_t error, const char *what, const char *file, int line,
                              const char *function) {
    if (error == cudaSuccess)
        return;
    const char *hint = cuda_error_hint(error);
    fflush(stdout);
    fprintf(stderr, "%s:%d: in %s(): %s\n  %s (%d): %s\n", file, line, function, what,
            cudaGetErrorName(error), (int)error, cudaGetErrorString(error));
    if (hint != NULL)
        fprintf(stderr, "  hint: %s\n", hint);
    exit(EXIT_CUDA_ERROR);
}
