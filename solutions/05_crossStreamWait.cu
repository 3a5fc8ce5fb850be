// SPDX-License-Identifier: MIT
// Lab 05: How does one stream wait for another without the host?
//
// A producer in stream A takes 2 ms to write an array; a consumer in stream B copies it.
// Nothing orders two streams unless you do. Predict before you run: how many of the 65,536
// elements does the consumer get wrong if nobody waits? If B waits for an event of A, how
// long is the host held up, and how long if the host waits for the device instead? And a
// third stream, which has nothing to do with either: when is its work done, each way?
//
//     nvcc -O2 -arch=native labs/05_crossStreamWait.cu -o crossStreamWait && ./crossStreamWait
//     make grade LAB=05
//
// Worksheet: worksheets/05_crossStreamWait.md
#include "../common/lab.h"

enum {
    N = 1 << 16,  // elements; so few that copying them is nothing beside the producer
    THREADS = 256,
    BLOCKS = 8,  // leaves room on every GPU for the other streams' kernels
    PRODUCER_US = 2000,
    BYSTANDER_US = 500,
    ROUNDS = 9,
};

__device__ void wait_cycles(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}

// Writes `value` everywhere, but only after its wait: who reads early sees the old value.
__global__ void Producer(int *data, int value, long long cycles) {
    wait_cycles(cycles);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < N; i += gridDim.x * blockDim.x)
        data[i] = value;
}

__global__ void Consumer(int *copy, const int *data) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < N; i += gridDim.x * blockDim.x)
        copy[i] = data[i];
}

__global__ void Bystander(long long cycles) { wait_cycles(cycles); }

static int *d_data, *d_copy, *h_copy;
static long long producer_cycles, bystander_cycles;
static cudaStream_t a, b, c;
static cudaEvent_t produced;  // made anew for each use: nobody has recorded it yet
static struct event_timer consumer, bystander;

// The four ways to order the consumer behind the producer, or not to. Each returns whether
// its lines have been written.
static bool no_wait(int value) {
    Producer<<<BLOCKS, THREADS, 0, a>>>(d_data, value, producer_cycles);
    // Unordered on purpose; so the simulated device does not report it.
    Consumer<<<BLOCKS, THREADS, 0, b>>>(d_copy, d_data);
    return true;
}

static bool event_wait(int value) {
    bool written = false;
    Producer<<<BLOCKS, THREADS, 0, a>>>(d_data, value, producer_cycles);
    // TODO(1): record the event `produced` in stream a and make stream b wait for it, without
    // holding up the host. Then set written to true. (3 lines)
    // BEGIN SOLUTION
    CUDA_CHECK(cudaEventRecord(produced, a));
    CUDA_CHECK(cudaStreamWaitEvent(b, produced, 0));
    written = true;
    // END SOLUTION
    Consumer<<<BLOCKS, THREADS, 0, b>>>(d_copy, d_data);
    return written;
}

static bool device_sync(int value) {
    bool written = false;
    Producer<<<BLOCKS, THREADS, 0, a>>>(d_data, value, producer_cycles);
    // TODO(2): the blunt way: the host waits for the whole device. Set written. (2 lines)
    // BEGIN SOLUTION
    CUDA_CHECK(cudaDeviceSynchronize());
    written = true;
    // END SOLUTION
    Consumer<<<BLOCKS, THREADS, 0, b>>>(d_copy, d_data);
    return written;
}

static bool wait_before_record(int value) {
    bool written = false;
    Producer<<<BLOCKS, THREADS, 0, a>>>(d_data, value, producer_cycles);
    // TODO(3): the two calls of TODO(1) in the wrong order. What will b wait for? Set written.
    // (3 lines)
    // BEGIN SOLUTION
    CUDA_CHECK(cudaStreamWaitEvent(b, produced, 0));
    CUDA_CHECK(cudaEventRecord(produced, a));
    written = true;
    // END SOLUTION
    // Unordered on purpose: which of the two calls came too late?
    Consumer<<<BLOCKS, THREADS, 0, b>>>(d_copy, d_data);
    return written;
}

enum { STALE, HOST_BUSY, CONSUMER, BYSTANDER, READINGS };

// One round of one way: elements that the consumer got wrong; microseconds that the host
// needed to submit it all; microseconds until the consumer, and the bystander, was done.
static void play(const char *name, bool (*way)(int), int value, struct samples seen[READINGS]) {
    CUDA_CHECK(cudaEventCreateWithFlags(&produced, cudaEventDisableTiming));
    CUDA_CHECK(cudaMemset(d_data, 0, N * sizeof *d_data));
    CUDA_CHECK(cudaDeviceSynchronize());

    region_begin(name);
    double start = now_us();
    event_timer_start(&consumer, b);
    event_timer_start(&bystander, c);
    bool written = way(value);
    CUDA_CHECK_LAUNCH();
    event_timer_stop(&consumer, b);
    Bystander<<<1, 1, 0, c>>>(bystander_cycles);
    CUDA_CHECK_LAUNCH();
    event_timer_stop(&bystander, c);
    double host_busy = now_us() - start;
    region_end();
    CUDA_CHECK(cudaDeviceSynchronize());

    int stale = 0;
    CUDA_CHECK(cudaMemcpy(h_copy, d_copy, N * sizeof *h_copy, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++)
        stale += h_copy[i] != value;
    samples_add(&seen[STALE], written ? stale : NAN);
    samples_add(&seen[HOST_BUSY], written ? host_busy : NAN);
    samples_add(&seen[CONSUMER], written ? event_timer_us(&consumer) : NAN);
    samples_add(&seen[BYSTANDER], written ? event_timer_us(&bystander) : NAN);
    CUDA_CHECK(cudaEventDestroy(produced));
}

int main(void) {
    static struct samples none[READINGS], event[READINGS], sync[READINGS], early[READINGS],
        warm_up[READINGS];

    lab_begin("05", "crossStreamWait");
    producer_cycles = cycles_for_us(PRODUCER_US);
    bystander_cycles = cycles_for_us(BYSTANDER_US);
    CUDA_CHECK(cudaMalloc(&d_data, N * sizeof *d_data));
    CUDA_CHECK(cudaMalloc(&d_copy, N * sizeof *d_copy));
    CUDA_CHECK(cudaMallocHost(&h_copy, N * sizeof *h_copy));
    // Non-blocking streams: the default stream must not order them behind our back.
    CUDA_CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&c, cudaStreamNonBlocking));
    consumer = event_timer_create();
    bystander = event_timer_create();

    play("warm_up", no_wait, -1, warm_up);
    for (int i = 1; i <= ROUNDS; i++) {
        play("no_wait", no_wait, i, none);
        play("event_wait", event_wait, i, event);
        play("device_sync", device_sync, i, sync);
        play("wait_before_record", wait_before_record, i, early);
    }

    print_measured("stale_no_wait", "count", &none[STALE]);
    print_measured("stale_event_wait", "count", &event[STALE]);
    print_measured("stale_device_sync", "count", &sync[STALE]);
    print_measured("stale_wait_before_record", "count", &early[STALE]);
    print_measured("consumer_no_wait", "us", &none[CONSUMER]);
    print_measured("consumer_event", "us", &event[CONSUMER]);
    print_measured("consumer_sync", "us", &sync[CONSUMER]);
    print_measured("host_busy_event", "us", &event[HOST_BUSY]);
    print_measured("host_busy_sync", "us", &sync[HOST_BUSY]);
    print_measured("bystander_event", "us", &event[BYSTANDER]);
    print_measured("bystander_sync", "us", &sync[BYSTANDER]);
    lab_end("05", "crossStreamWait");
    return 0;
}
