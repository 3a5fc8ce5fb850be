// SPDX-License-Identifier: MIT
// Lab 08: Copy in, compute, copy out: what does overlap buy, and what can it not?
//
// Ten chunks pass through three stages that last 3 : 5 : 1 on this GPU, whatever it is. One
// after the other that is 10 x 9 = 90 parts. Predict before you run: how many parts, if each
// stage has its own stream and events tie them? When does the first chunk come out? What is
// left of it with pageable host memory? And into how many chunks would you cut the data?
//
//     nvcc -O2 -arch=native labs/08_copyComputePipeline.cu -o pipeline && ./pipeline
//     make grade LAB=08
//
// Worksheet: worksheets/08_copyComputePipeline.md
#include "../common/lab.h"

enum {
    CHUNKS = 10,
    CHUNK = 16 << 20,  // bytes: 0.3 ms over PCIe 5, and a few us between stages do not count
    TOTAL = CHUNKS * CHUNK,
    ROUNDS = 7,  // each visits everything, so that a slow moment bends one round
};
static const int cuts[] = {1, 2, 5, 10, 20, 40, 80, 160, 320, 640};  // TOTAL into so many
enum { CUTS = sizeof cuts / sizeof cuts[0] };

struct host {
    char *in, *out;  // TOTAL bytes each, pinned or pageable
};

static char *d_in, *d_out;            // TOTAL bytes each
static long long kernel_cycles;       // to compute TOTAL
static size_t out_total = TOTAL / 3;  // bytes that come back
static cudaStream_t s_in;
static cudaEvent_t copied, computed, first_out;
static struct event_timer timer;

// Waits, then writes a result that needs its chunk. The wait stands for work whose length can
// be chosen, and for which one block is enough.
__global__ void StageKernel(int *result, const int *chunk, long long cycles) {
    int first = chunk[0];
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
    result[0] = first;
}

static size_t out_bytes(int n) { return out_total / n / sizeof(int) * sizeof(int); }

// The stages of chunk i, if TOTAL is cut into n. All but the first word of what comes back is
// there for its size only.
static void copy_in(const struct host *h, int i, int n, cudaStream_t stream) {
    size_t bytes = TOTAL / n, at = i * bytes;
    CUDA_CHECK(cudaMemcpyAsync(d_in + at, h->in + at, bytes, cudaMemcpyHostToDevice, stream));
}

static void kernel(const struct host *h, int i, int n, cudaStream_t stream) {
    int *result = (int *)(d_out + i * out_bytes(n));
    (void)h;  // it has the parameters of the two others
    StageKernel<<<1, 1, 0, stream>>>(result, (int *)(d_in + i * ((size_t)TOTAL / n)),
                                     kernel_cycles / n);
    CUDA_CHECK_LAUNCH();
}

static void copy_out(const struct host *h, int i, int n, cudaStream_t stream) {
    size_t bytes = out_bytes(n), at = i * bytes;
    CUDA_CHECK(cudaMemcpyAsync(h->out + at, d_out + at, bytes, cudaMemcpyDeviceToHost, stream));
}

// Microseconds until the last of n chunks is back, and the first. With s_in for all three
// stages nothing overlaps, and the stream's order is edge enough. One event serves all chunks:
// a wait is for the record that is the latest at the moment of the call.
static double run_us(const struct host *h, int n, cudaStream_t s_compute, cudaStream_t s_out,
                     double *first_us) {
    int edges = 0;
    float first_ms;
    event_timer_start(&timer, s_in);
    for (int i = 0; i < n; i++) {
        copy_in(h, i, n, s_in);
        // TODO(1): what comes next in s_compute must not start before the copy just enqueued in
        // s_in has ended: record `copied`, make s_compute wait, and add 1 to edges. (3 lines)
        // Your lines here.
        kernel(h, i, n, s_compute);
        // TODO(2): likewise what comes next in s_out, and the kernel just enqueued in
        // s_compute, with the event `computed`. Add 1 to edges. (3 lines)
        // Your lines here.
        copy_out(h, i, n, s_out);
        if (i == 0)
            CUDA_CHECK(cudaEventRecord(first_out, s_out));
    }
    event_timer_stop(&timer, s_out);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaEventElapsedTime(&first_ms, timer.start, first_out));
    bool written = edges == 2 * n || s_out == s_in;
    *first_us = written ? 1e3 * (double)first_ms : NAN;
    return written ? event_timer_us(&timer) : NAN;
}

// One stage of one chunk, alone.
static double stage_us(void (*stage)(const struct host *, int, int, cudaStream_t),
                       const struct host *h) {
    event_timer_start(&timer, s_in);
    for (int i = 0; i < CHUNKS; i++)
        stage(h, i, CHUNKS, s_in);
    event_timer_stop(&timer, s_in);
    return event_timer_us(&timer) / CHUNKS;
}

// Makes the kernel 5/3, and the copy out 1/3, as long as the copy in.
static void size_stages(const struct host *h) {
    kernel_cycles = CHUNKS * cycles_for_us(500);
    for (int pass = 0; pass < 3; pass++) {  // the first warms up
        double third = stage_us(copy_in, h) / 3;
        kernel_cycles = (long long)(kernel_cycles * (5 * third / stage_us(kernel, h)));
        double bytes = out_total * (third / stage_us(copy_out, h));
        out_total = (size_t)fmin(bytes, TOTAL);
    }
}

// What n chunks take in the pipeline, from the stages of one chunk.
static double predicted_us(double in, double kernel, double out, int n) {
    double us = NAN;
    (void)in, (void)kernel, (void)out, (void)n;
    // TODO(3): the first chunk passes through all three stages; each of the n - 1 others comes
    // out one slowest stage after the one before it. (2 lines)
    // Your lines here.
    return us;
}

// Until the call that copies one chunk in returns, and until the copy is done.
static void copy_call(const struct host *h, struct samples *returned, struct samples *done) {
    double returned_us = NAN, done_us = NAN;
    (void)h;
    // TODO(4): read now_us(), call copy_in for chunk 0 of CHUNKS in s_in, and store the time
    // passed in returned_us. Synchronize with s_in and store the time since the start in
    // done_us. (5 lines)
    // Your lines here.
    samples_add(returned, returned_us);
    samples_add(done, done_us);
}

int main(void) {
    static struct samples in, compute, out, serial, piped, first, plain_serial, plain, ret,
        ret_plain, done, done_plain, cut[CUTS];
    struct host pinned, pageable = {(char *)malloc(TOTAL), (char *)malloc(TOTAL)};
    cudaStream_t s_compute, s_out;
    double us, first_us;

    lab_begin("08", "copyComputePipeline");
    if (pageable.in == NULL || pageable.out == NULL) {
        fprintf(stderr,
                "no %d bytes of memory, twice: end other programs, or make CHUNK smaller\n",
                TOTAL);
        return 1;
    }
    CUDA_CHECK(cudaMallocHost(&pinned.in, TOTAL));
    CUDA_CHECK(cudaMallocHost(&pinned.out, TOTAL));
    CUDA_CHECK(cudaMalloc(&d_in, TOTAL));
    CUDA_CHECK(cudaMalloc(&d_out, TOTAL));
    CUDA_CHECK(cudaMemset(d_out, 0, TOTAL));
    memset(pageable.in, 1, TOTAL), memset(pageable.out, 1, TOTAL), memset(pinned.in, 1, TOTAL);
    // Non-blocking streams: the default stream must not order them behind our back.
    CUDA_CHECK(cudaStreamCreateWithFlags(&s_in, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&s_compute, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&s_out, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&computed, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreate(&first_out));
    timer = event_timer_create();
    CUDA_CHECK(cudaDeviceSynchronize());
    size_stages(&pinned);
    run_us(&pinned, CHUNKS, s_compute, s_out, &us);  // warm up
    run_us(&pageable, CHUNKS, s_compute, s_out, &us);

    for (int round = 0; round < ROUNDS; round++) {
        samples_add(&in, stage_us(copy_in, &pinned));
        samples_add(&compute, stage_us(kernel, &pinned));
        samples_add(&out, stage_us(copy_out, &pinned));
        region_begin("serial");
        samples_add(&serial, run_us(&pinned, CHUNKS, s_in, s_in, &us));
        region_begin("pipelined");
        samples_add(&piped, run_us(&pinned, CHUNKS, s_compute, s_out, &first_us));
        region_end();
        samples_add(&first, first_us);
        samples_add(&plain_serial, run_us(&pageable, CHUNKS, s_in, s_in, &us));
        region_begin("pageable");
        samples_add(&plain, run_us(&pageable, CHUNKS, s_compute, s_out, &us));
        region_end();
        copy_call(&pinned, &ret, &done);
        copy_call(&pageable, &ret_plain, &done_plain);
        for (int c = 0; c < CUTS; c++)
            samples_add(&cut[c], run_us(&pinned, cuts[c], s_compute, s_out, &us));
    }

    double i = samples_median(&in), k = samples_median(&compute), o = samples_median(&out);
    print_measured("copy_in", "us", &in);
    print_measured("kernel", "us", &compute);
    print_measured("copy_out", "us", &out);
    print_measured("serial", "us", &serial);
    print_derived("serial_predicted", "us", CHUNKS * (i + k + o));
    print_measured("pipelined", "us", &piped);
    print_derived("pipelined_predicted", "us", predicted_us(i, k, o, CHUNKS));
    print_derived("speedup", "x", samples_median(&serial) / samples_median(&piped));
    print_measured("first_chunk", "us", &first);
    print_measured("pageable_serial", "us", &plain_serial);
    print_measured("pageable", "us", &plain);
    print_measured("return_pinned", "us", &ret);
    print_measured("done_pinned", "us", &done);
    print_measured("return_pageable", "us", &ret_plain);
    print_measured("done_pageable", "us", &done_plain);
    int best = 0;
    for (int c = 0; c < CUTS; c++) {
        print_measured_at("pipelined_chunks", "n", cuts[c], "us", &cut[c]);
        if (samples_median(&cut[c]) < samples_median(&cut[best]))
            best = c;
    }
    double part = (double)CHUNKS / cuts[best], least = samples_median(&cut[best]);
    print_derived("best_chunks", "count", least > 0 ? cuts[best] : NAN);
    print_derived("best_over_predicted", "x",
                  least / predicted_us(part * i, part * k, part * o, cuts[best]));
    free(pageable.in), free(pageable.out);
    lab_end("08", "copyComputePipeline");
    return 0;
}
