// SPDX-License-Identifier: MIT
// Lab 07: What does a timestamp cost when nobody reads it?
//
// An event that only orders streams needs no timestamp, and cudaEventDisableTiming leaves it
// out. Predict before you run: what does a record cost the CPU with and without? What does it
// cost the GPU, between two kernels that are queued already? And when two streams wait for
// each other in turn, how much faster is a hop?
//
//     nvcc -O2 -arch=native labs/07_disableTiming.cu -o disableTiming && ./disableTiming
//     make grade LAB=07
//
// Worksheet: worksheets/07_disableTiming.md
#include "../common/lab.h"

enum {
    ROUNDS = 21,     // readings of each figure; both kinds of event in every round
    RECORDS = 200,   // a batch: far fewer than the thousand or so that a stream's queue holds
    HOPS = 200,      // from stream to stream and back, in all
    QUEUED = 200,    // kernels, and records, behind the gate
    GATE_US = 8000,  // time enough to queue them all while the GPU is busy
};

__global__ void NullKernel(void) {}

__global__ void WaitKernel(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}

static cudaStream_t a, b;
static struct event_timer timer;
static long long gate_cycles;
static int early_gates;

// An event that can order streams but not tell the time; NULL until it is written.
static cudaEvent_t event_without_timing(void) {
    cudaEvent_t event = NULL;
    // TODO(1): create the event with the flag that leaves the timestamp out. (1 line)
    // Your lines here.
    return event;
}

// Microseconds of CPU that one cudaEventRecord takes.
static double record_us(cudaEvent_t event) {
    double us = NAN;
    (void)event;
    // TODO(2): between two readings of now_us(), record the event in stream a RECORDS times.
    // Store the time of one record in us, and only then synchronize: it is the CPU's time that
    // is asked for. (5 lines)
    // Your lines here.
    return us;
}

// The gate keeps stream a shut while everything is queued behind it, so that the CPU cannot
// hold up what the timer then times.
static void shut_gate(void) {
    WaitKernel<<<1, 1, 0, a>>>(gate_cycles);
    CUDA_CHECK_LAUNCH();
    event_timer_start(&timer, a);
}

// Microseconds from the gate's opening until all behind it is done. Counts the gates that had
// opened before all was queued.
static double behind_gate_us(void) {
    event_timer_stop(&timer, a);
    cudaError_t gate = cudaEventQuery(timer.start);
    if (gate != cudaErrorNotReady) {
        CUDA_CHECK(gate);
        early_gates++;
    }
    return event_timer_us(&timer);
}

// Microseconds that the GPU takes for a hop: a NULL kernel in one stream, then one in the
// other, which waits for the first, and back.
static double hop_us(cudaEvent_t there, cudaEvent_t back) {
    int hops = 0;
    (void)there, (void)back;
    shut_gate();
    // TODO(3): HOPS / 2 times: launch NullKernel in stream a, record `there` in a, let b wait
    // for it; launch NullKernel in b, record `back` in b, let a wait for that. Each turn adds 2
    // to hops. (9 lines)
    // Your lines here.
    CUDA_CHECK_LAUNCH();
    double us = behind_gate_us();
    return hops > 0 ? us / hops : NAN;
}

// Microseconds that the GPU takes for a NULL kernel and a record; without, if event is NULL.
static double queued_us(cudaEvent_t event) {
    shut_gate();
    for (int i = 0; i < QUEUED; i++) {
        NullKernel<<<1, 1, 0, a>>>();
        CUDA_CHECK_LAUNCH();
        if (event != NULL)
            CUDA_CHECK(cudaEventRecord(event, a));
    }
    return behind_gate_us() / QUEUED;
}

struct cost {
    struct samples record, hop, queued;
};

static void measure(cudaEvent_t there, cudaEvent_t back, struct cost *cost) {
    bool created = there != NULL && back != NULL;
    samples_add(&cost->record, created ? record_us(there) : NAN);
    region_begin("hop");
    samples_add(&cost->hop, created ? hop_us(there, back) : NAN);
    region_end();
    samples_add(&cost->queued, created ? queued_us(there) : NAN);
}

// What cudaEventElapsedTime answers for two events of a kind, recorded and reached.
static const char *elapsed_word(cudaEvent_t start, cudaEvent_t stop) {
    float ms;
    if (start == NULL || stop == NULL)
        return NULL;
    CUDA_CHECK(cudaEventRecord(start, a));
    CUDA_CHECK(cudaEventRecord(stop, a));
    CUDA_CHECK(cudaEventSynchronize(stop));
    cudaError_t answer = cudaEventElapsedTime(&ms, start, stop);
    cudaGetLastError();  // the error was asked for: leave none behind
    return cudaGetErrorName(answer);
}

int main(void) {
    static struct cost timing, disabled, warm_up;
    static struct samples bare;
    cudaEvent_t there, back, untimed_there, untimed_back;

    lab_begin("07", "disableTiming");
    CUDA_CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreate(&there));
    CUDA_CHECK(cudaEventCreate(&back));
    untimed_there = event_without_timing();
    untimed_back = event_without_timing();
    timer = event_timer_create();
    gate_cycles = cycles_for_us(GATE_US);

    queued_us(NULL);
    measure(there, back, &warm_up);
    measure(untimed_there, untimed_back, &warm_up);
    early_gates = 0;
    for (int round = 0; round < ROUNDS; round++) {
        samples_add(&bare, queued_us(NULL));
        measure(there, back, &timing);
        measure(untimed_there, untimed_back, &disabled);
    }

    print_measured("record_timing", "us", &timing.record);
    print_measured("record_disable_timing", "us", &disabled.record);
    print_measured("hop_timing", "us", &timing.hop);
    print_measured("hop_disable_timing", "us", &disabled.hop);
    print_measured("queued_null", "us", &bare);
    print_measured("queued_timing", "us", &timing.queued);
    print_measured("queued_disable_timing", "us", &disabled.queued);
    print_measured_once("early_gates", "count", early_gates);
    print_observed("elapsed_timing", elapsed_word(there, back));
    print_observed("elapsed_disable_timing", elapsed_word(untimed_there, untimed_back));
    lab_end("07", "disableTiming");
    return 0;
}
