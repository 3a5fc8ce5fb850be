// SPDX-License-Identifier: MIT
// All that the labs share: error check, clocks, samples, printed lines, device header, event
// timer. What a lab teaches stands in the lab.
#pragma once
#ifdef __clang__  // behind nvcc it takes these for the lab's own, and wants all used
#pragma clang diagnostic ignored "-Wunused-function"
#endif

#include "clock.h"
#include "cuda_check.h"
#include "device.h"
#include "event_timer.h"
#include "print.h"
#include "samples.h"
