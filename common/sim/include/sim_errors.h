// SPDX-License-Identifier: MIT
// The runtime's error codes, names and texts. Numbers are the real ones, so that a program
// that prints or compares them behaves as on hardware.
#ifndef SIM_ERRORS_H
#define SIM_ERRORS_H

#define SIM_ERRORS(E) \
    E(0, cudaSuccess, "no error") \
    E(1, cudaErrorInvalidValue, "invalid argument") \
    E(2, cudaErrorMemoryAllocation, "out of memory") \
    E(3, cudaErrorInitializationError, "initialization error") \
    E(4, cudaErrorCudartUnloading, "driver shutting down") \
    E(9, cudaErrorInvalidConfiguration, "invalid configuration argument") \
    E(12, cudaErrorInvalidPitchValue, "invalid pitch argument") \
    E(13, cudaErrorInvalidSymbol, "invalid device symbol") \
    E(17, cudaErrorInvalidDevicePointer, "invalid device pointer") \
    E(21, cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy") \
    E(31, cudaErrorNotYetImplemented, "feature not yet implemented") \
    E(34, cudaErrorStubLibrary, "CUDA driver is a stub library") \
    E(35, cudaErrorInsufficientDriver, \
      "CUDA driver version is insufficient for CUDA runtime version") \
    E(36, cudaErrorCallRequiresNewerDriver, \
      "API call is not supported in the installed CUDA driver") \
    E(46, cudaErrorDevicesUnavailable, \
      "CUDA-capable device(s) is/are busy or unavailable") \
    E(52, cudaErrorMissingConfiguration, "__global__ function call is not configured") \
    E(65, cudaErrorLaunchMaxDepthExceeded, \
      "launch would exceed maximum depth of nested launches") \
    E(98, cudaErrorInvalidDeviceFunction, "invalid device function") \
    E(100, cudaErrorNoDevice, "no CUDA-capable device is detected") \
    E(101, cudaErrorInvalidDevice, "invalid device ordinal") \
    E(200, cudaErrorInvalidKernelImage, "device kernel image is invalid") \
    E(201, cudaErrorDeviceUninitialized, "invalid device context") \
    E(209, cudaErrorNoKernelImageForDevice, \
      "no kernel image is available for execution on the device") \
    E(217, cudaErrorPeerAccessUnsupported, \
      "peer access is not supported between these two devices") \
    E(222, cudaErrorUnsupportedPtxVersion, \
      "the provided PTX was compiled with an unsupported toolchain.") \
    E(304, cudaErrorOperatingSystem, \
      "OS call failed or operation not supported on this OS") \
    E(400, cudaErrorInvalidResourceHandle, "invalid resource handle") \
    E(401, cudaErrorIllegalState, \
      "the operation cannot be performed in the present state") \
    E(500, cudaErrorSymbolNotFound, "named symbol not found") \
    E(600, cudaErrorNotReady, "device not ready") \
    E(700, cudaErrorIllegalAddress, "an illegal memory access was encountered") \
    E(701, cudaErrorLaunchOutOfResources, "too many resources requested for launch") \
    E(702, cudaErrorLaunchTimeout, "the launch timed out and was terminated") \
    E(704, cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled") \
    E(705, cudaErrorPeerAccessNotEnabled, "peer access has not been enabled") \
    E(708, cudaErrorSetOnActiveProcess, \
      "cannot set while device is active in this process") \
    E(709, cudaErrorContextIsDestroyed, "context is destroyed") \
    E(710, cudaErrorAssert, "device-side assert triggered") \
    E(712, cudaErrorHostMemoryAlreadyRegistered, \
      "part or all of the requested memory range is already mapped") \
    E(713, cudaErrorHostMemoryNotRegistered, \
      "pointer does not correspond to a registered memory region") \
    E(714, cudaErrorHardwareStackError, "hardware stack error") \
    E(715, cudaErrorIllegalInstruction, "an illegal instruction was encountered") \
    E(716, cudaErrorMisalignedAddress, "misaligned address") \
    E(717, cudaErrorInvalidAddressSpace, \
      "operation not supported on global/shared address space") \
    E(718, cudaErrorInvalidPc, "invalid program counter") \
    E(719, cudaErrorLaunchFailure, "unspecified launch failure") \
    E(720, cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch") \
    E(800, cudaErrorNotPermitted, "operation not permitted") \
    E(801, cudaErrorNotSupported, "operation not supported") \
    E(802, cudaErrorSystemNotReady, "system not yet initialized") \
    E(803, cudaErrorSystemDriverMismatch, \
      "system has unsupported display driver / cuda driver combination") \
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
    E(908, cudaErrorStreamCaptureWrongThread, \
      "attempt to terminate a thread-local capture sequence from another thread") \
    E(909, cudaErrorTimeout, "wait operation timed out") \
    E(999, cudaErrorUnknown, "unknown error")

#endif
