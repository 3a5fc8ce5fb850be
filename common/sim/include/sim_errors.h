// SPDX-License-Identifier: MIT
// The errors that a lab can meet: codes, names and texts as on hardware.
#ifndef SIM_ERRORS_H
#define SIM_ERRORS_H

#define SIM_ERRORS(E) \
    E(0, cudaSuccess, "no error") \
    E(1, cudaErrorInvalidValue, "invalid argument") \
    E(2, cudaErrorMemoryAllocation, "out of memory") \
    E(3, cudaErrorInitializationError, "initialization error") \
    E(9, cudaErrorInvalidConfiguration, "invalid configuration argument") \
    E(17, cudaErrorInvalidDevicePointer, "invalid device pointer") \
    E(21, cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy") \
    E(35, cudaErrorInsufficientDriver, \
      "CUDA driver version is insufficient for CUDA runtime version") \
    E(46, cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable") \
    E(98, cudaErrorInvalidDeviceFunction, "invalid device function") \
    E(100, cudaErrorNoDevice, "no CUDA-capable device is detected") \
    E(101, cudaErrorInvalidDevice, "invalid device ordinal") \
    E(209, cudaErrorNoKernelImageForDevice, \
      "no kernel image is available for execution on the device") \
    E(222, cudaErrorUnsupportedPtxVersion, \
      "the provided PTX was compiled with an unsupported toolchain.") \
    E(400, cudaErrorInvalidResourceHandle, "invalid resource handle") \
    E(401, cudaErrorIllegalState, "the operation cannot be performed in the present state") \
    E(500, cudaErrorSymbolNotFound, "named symbol not found") \
    E(600, cudaErrorNotReady, "device not ready") \
    E(700, cudaErrorIllegalAddress, "an illegal memory access was encountered") \
    E(701, cudaErrorLaunchOutOfResources, "too many resources requested for launch") \
    E(702, cudaErrorLaunchTimeout, "the launch timed out and was terminated") \
    E(704, cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled") \
    E(710, cudaErrorAssert, "device-side assert triggered") \
    E(715, cudaErrorIllegalInstruction, "an illegal instruction was encountered") \
    E(716, cudaErrorMisalignedAddress, "misaligned address") \
    E(719, cudaErrorLaunchFailure, "unspecified launch failure") \
    E(800, cudaErrorNotPermitted, "operation not permitted") \
    E(801, cudaErrorNotSupported, "operation not supported") \
    E(900, cudaErrorStreamCaptureUnsupported, \
      "operation not permitted when stream is capturing") \
    E(901, cudaErrorStreamCaptureInvalidated, \
      "operation failed due to a previous error during capture") \
    E(902, cudaErrorStreamCaptureMerge, \
      "operation would result in a merge of separate capture sequences") \
    E(903, cudaErrorStreamCaptureUnmatched, \
      "capture was not ended in the same stream as it began") \
    E(904, cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work") \
    E(905, cudaErrorStreamCaptureIsolation, \
      "dependency created on uncaptured work in another stream") \
    E(906, cudaErrorStreamCaptureImplicit, \
      "operation would make the legacy stream depend on a capturing blocking stream") \
    E(907, cudaErrorCapturedEvent, \
      "operation not permitted on an event last recorded in a capturing stream") \
    E(999, cudaErrorUnknown, "unknown error")

#endif
