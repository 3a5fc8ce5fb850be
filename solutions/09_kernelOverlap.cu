// SPDX-License-Identifier: MIT
// Lab 09: Two independent kernels in two streams: when do they really run together?
//
// Kernel A lasts 2 ms and kernel B 3 ms. Together they last 3 ms if they overlap, and 5 if
// not; and if not, either the code put them in order (a dependency) or the GPU had no room for
// both (a resource). Predict before you run, for each row of the table in main: how long, and
// which of the three is it?
//
//     nvcc -O2 -arch=native labs/09_kernelOverlap.cu -o kernelOverlap && ./kernelOverlap
//     make grade LAB=09
//
// Worksheet: worksheets/09_kernelOverlap.md
#include "../common/lab.h"

enum {
    A_US = 2000,  // unequal, so that longer, shorter and sum cannot be mixed up
    B_US = 3000,
    ROUNDS = 9,  // each visits every case, so that a slow moment bends one round
    // Of the kernels that read: half of what even a small SM holds, so that both find room, and
    // with READS loads on their way in each thread enough to use most of the memory's bandwidth.
    THREADS = 256,
    BLOCKS_PER_SM = 2,
    READS = 8,
    PAIRS = 7,
};

// Waits for `cycles` cycles of its SM's clock.
__global__ void WaitKernel(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}

// Reads `count` words. What they hold does not matter, but were the sum not stored, in a case
// that never comes, the compiler would drop the reads.
__global__ void ReadKernel(const unsigned long long *word, size_t count,
                           unsigned long long *result) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    unsigned long long sum = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += READS * stride)
        for (int k = 0; k < READS; k++)
            sum += word[i + k * stride];
    if (sum == 1)
        *result = sum;
}

__global__ void NullKernel(void) {}

struct job {
    int blocks;
    size_t shared;                   // bytes of shared memory a block
    long long cycles;                // of a WaitKernel
    const unsigned long long *word;  // of a ReadKernel; NULL: it is a WaitKernel
};

static size_t words;                  // that a ReadKernel reads
static unsigned long long *d_result;  // one element
static struct event_timer whole, timer_a, timer_b;
static cudaEvent_t end_b, a_done;

static void launch(const struct job *job, cudaStream_t stream) {
    if (job->word != NULL)
        ReadKernel<<<job->blocks, THREADS, 0, stream>>>(job->word, words, d_result);
    else
        WaitKernel<<<job->blocks, 1, job->shared, stream>>>(job->cycles);
    CUDA_CHECK_LAUNCH();
}

static double alone_us(const struct job *job, cudaStream_t stream) {
    event_timer_start(&timer_a, stream);
    launch(job, stream);
    event_timer_stop(&timer_a, stream);
    return event_timer_us(&timer_a);
}

// What is enqueued between the two kernels. Each returns whether it is written.
static bool nothing(cudaStream_t a, cudaStream_t b) {
    (void)a, (void)b;
    return true;
}

static bool event_edge(cudaStream_t a, cudaStream_t b) {
    bool written = false;
    (void)a, (void)b;
    // TODO(1): an explicit dependency: record a_done in stream a and make stream b wait for it.
    // Set written. (3 lines)
    // BEGIN SOLUTION
    CUDA_CHECK(cudaEventRecord(a_done, a));
    CUDA_CHECK(cudaStreamWaitEvent(b, a_done, 0));
    written = true;
    // END SOLUTION
    return written;
}

static bool default_stream_launch(cudaStream_t a, cudaStream_t b) {
    (void)a, (void)b;
    NullKernel<<<1, 1>>>();
    CUDA_CHECK_LAUNCH();
    return true;
}

// How many blocks of one thread and `shared` bytes fill all SMs; 0 until it is written.
static int blocks_that_fill(size_t shared) {
    int per_sm = 0;
    (void)shared;
    // TODO(2): ask cudaOccupancyMaxActiveBlocksPerMultiprocessor how many such blocks of
    // WaitKernel fit on one SM, and store it in per_sm. (1 line)
    // BEGIN SOLUTION
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, WaitKernel, 1, shared));
    // END SOLUTION
    return per_sm * device_attribute(cudaDevAttrMultiProcessorCount);
}

struct pair {
    const char *name, *class_name;
    cudaStream_t stream_a, stream_b;
    bool (*between)(cudaStream_t a, cudaStream_t b);
    bool ordered;  // whether the code puts B behind A
    struct job a, b;
};

// Launches A and B and adds how long they take together, and the shorter of the two by itself.
static void play(const struct pair *p, struct samples *both, struct samples *shorter_one) {
    double together = NAN, shorter = NAN;
    if (p->a.blocks > 0) {
        region_begin(p->name);
        event_timer_start(&whole, p->stream_a);
        event_timer_start(&timer_a, p->stream_a);
        launch(&p->a, p->stream_a);
        event_timer_stop(&timer_a, p->stream_a);
        bool written = p->between(p->stream_a, p->stream_b);
        event_timer_start(&timer_b, p->stream_b);
        launch(&p->b, p->stream_b);
        event_timer_stop(&timer_b, p->stream_b);
        CUDA_CHECK(cudaEventRecord(end_b, p->stream_b));  // stop the clock behind both
        CUDA_CHECK(cudaStreamWaitEvent(p->stream_a, end_b, 0));
        event_timer_stop(&whole, p->stream_a);
        CUDA_CHECK(cudaDeviceSynchronize());
        region_end();
        if (written) {
            together = event_timer_us(&whole);
            shorter = fmin(event_timer_us(&timer_a), event_timer_us(&timer_b));
        }
    }
    samples_add(both, together);
    samples_add(shorter_one, shorter);
}

// What became of two kernels of which the longer takes `longer`, and both `sum` one after the
// other, if they took `together`. NULL until it is written.
static const char *classify(double together, double longer, double sum, bool ordered) {
    const char *word = NULL;
    (void)longer, (void)sum, (void)ordered;
    if (isnan(together))
        return word;
    // TODO(3): "concurrent" if together is nearer to longer than to sum. If not, "dependency"
    // where the code put the kernels in order, or else "resource". (6 lines)
    // BEGIN SOLUTION
    if (together < (longer + sum) / 2)
        word = "concurrent";
    else if (ordered)
        word = "dependency";
    else
        word = "resource";
    // END SOLUTION
    return word;
}

int main(void) {
    static struct samples alone_a, alone_b, alone_read, together[PAIRS], shorter[PAIRS],
        warm_up;
    cudaStream_t s, t, blocking_s, blocking_t;
    unsigned long long *d_word;

    lab_begin("09", "kernelOverlap");
    long long cycles_a = cycles_for_us(A_US), cycles_b = cycles_for_us(B_US);
    int sms = device_attribute(cudaDevAttrMultiProcessorCount);
    size_t shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    size_t step = (size_t)READS * THREADS * BLOCKS_PER_SM * sms;  // words read at once
    // Eight times what the cache holds, and no less than 64 MiB.
    size_t bytes = 8 * (size_t)device_attribute(cudaDevAttrL2CacheSize);
    words = ((bytes > 64 << 20 ? bytes : 64 << 20) / sizeof *d_word / step + 1) * step;
    CUDA_CHECK(cudaMalloc(&d_word, 2 * words * sizeof *d_word));
    CUDA_CHECK(cudaMalloc(&d_result, sizeof *d_result));
    // A block that takes all the shared memory it can get leaves no room on its SM.
    CUDA_CHECK(cudaFuncSetAttribute(WaitKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)shared));
    CUDA_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreate(&blocking_s));  // these two heed the default stream
    CUDA_CHECK(cudaStreamCreate(&blocking_t));
    CUDA_CHECK(cudaEventCreateWithFlags(&end_b, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&a_done, cudaEventDisableTiming));
    whole = event_timer_create(), timer_a = event_timer_create(),
    timer_b = event_timer_create();

    int full = blocks_that_fill(shared);
    struct job a = {1, 0, cycles_a, NULL}, b = {1, 0, cycles_b, NULL};
    struct job full_a = a, full_b = b, half_a = a, half_b = b, read_a = a, read_b = b;
    full_a.blocks = full_b.blocks = full;
    half_a.blocks = half_b.blocks = full / 2;
    full_a.shared = full_b.shared = half_a.shared = half_b.shared = shared;
    read_a.blocks = read_b.blocks = BLOCKS_PER_SM * sms;
    read_a.word = d_word, read_b.word = d_word + words;
    const struct pair pairs[PAIRS] = {
        {"same_stream", "class_same_stream", s, s, nothing, true, a, b},
        {"two_streams", "class_two_streams", s, t, nothing, false, a, b},
        {"event_edge", "class_event_edge", s, t, event_edge, true, a, b},
        {"full_sms", "class_full_sms", s, t, nothing, false, full_a, full_b},
        {"half_sms", "class_half_sms", s, t, nothing, false, half_a, half_b},
        {"legacy_default", "class_legacy_default", blocking_s, blocking_t,
         default_stream_launch, true, a, b},
        {"memory_bound", "class_memory_bound", s, t, nothing, false, read_a, read_b},
    };
    for (int i = 0; i < PAIRS; i++)  // an unwarmed kernel would wait for the running one to end
        play(&pairs[i], &warm_up, &warm_up);
    for (int round = 0; round < ROUNDS; round++) {
        samples_add(&alone_a, alone_us(&a, s));
        samples_add(&alone_b, alone_us(&b, t));
        samples_add(&alone_read, alone_us(&read_a, s));
        for (int i = 0; i < PAIRS; i++)
            play(&pairs[i], &together[i], &shorter[i]);
    }

    print_measured("alone_a", "us", &alone_a);
    print_measured("alone_b", "us", &alone_b);
    print_measured("memory_alone", "us", &alone_read);
    print_measured_once("full_blocks", "count", full > 0 ? full : NAN);
    for (int i = 0; i < PAIRS; i++) {
        bool reads = pairs[i].a.word != NULL;
        double one = samples_median(reads ? &alone_read : &alone_a);
        double other = samples_median(reads ? &alone_read : &alone_b);
        print_measured(pairs[i].name, "us", &together[i]);
        print_observed(pairs[i].class_name,
                       classify(samples_median(&together[i]), fmax(one, other), one + other,
                                pairs[i].ordered));
    }
    // That two kernels shared the memory shows in that even the shorter one was slowed.
    print_measured("memory_each", "us", &shorter[PAIRS - 1]);
    print_derived("memory_slowdown", "x",
                  samples_median(&shorter[PAIRS - 1]) / samples_median(&alone_read));
    lab_end("09", "kernelOverlap");
    return 0;
}
