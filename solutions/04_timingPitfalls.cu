// SPDX-License-Identifier: MIT
// Lab 04: Which readings look like measurements and are not?
//
// A stopwatch that is used wrongly seldom says so: it answers with an error that nobody
// reads, or with a number. My kernel lasts 0.5 ms, somebody else's 2 ms. Predict before you
// run what each way below will read, and what it will have measured.
//
//     nvcc -G -arch=native labs/04_timingPitfalls.cu -o timingPitfalls.debug
//     nvcc -O2 -arch=native labs/04_timingPitfalls.cu -o timingPitfalls && ./timingPitfalls
//     make grade LAB=04
//
// The first program is the same with -G; the second starts it to measure debug_kernel.
// Worksheet: worksheets/04_timingPitfalls.md
#include "../common/lab.h"

enum {
    KERNEL_US = 500,    // my kernel
    OTHER_US = 2000,    // somebody else's
    LONG_US = 10000,    // one to launch behind
    IDLE_US = 1000000,  // long enough for the GPU to lower its clock
    RAMP = 60,          // kernels of mine until the clock has risen: 30 ms or more
    STEPS = 20000,      // of ArithmeticKernel: some 50 us
    ROUNDS = 9,
};

__global__ void WaitKernel(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}

// Launched nowhere but in launch_behind_us: its first launch has to load it.
__global__ void LateKernel(void) {}

__global__ void ArithmeticKernel(float *data, float factor) {
    float x = data[threadIdx.x];
    for (int i = 0; i < STEPS; i++)
        x = x * factor + 1.0f;
    data[threadIdx.x] = x;
}

__global__ void WriteKernel(int *p) { *p = 1; }

static cudaStream_t mine, theirs;
static cudaEvent_t start, stop;
static long long kernel_cycles, other_cycles, long_cycles;

static void launch(cudaStream_t stream, long long cycles) {
    WaitKernel<<<1, 1, 0, stream>>>(cycles);
    CUDA_CHECK_LAUNCH();
}

// Waits for both events and returns the milliseconds from one to the other.
static double elapsed_ms(cudaEvent_t from, cudaEvent_t to) {
    float ms;
    CUDA_CHECK(cudaEventSynchronize(from));
    CUDA_CHECK(cudaEventSynchronize(to));
    CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
    return ms;
}

// The word for what a call returned. An error that was asked for is not left behind.
static const char *word(cudaError_t answer) {
    cudaGetLastError();
    return cudaGetErrorName(answer);
}

// The word that cudaEventElapsedTime answers, and in *ms what it has read.
static const char *elapsed_word(float *ms, cudaEvent_t from, cudaEvent_t to) {
    const char *answer = NULL;
    (void)ms, (void)from, (void)to;
    // TODO(1): ask cudaEventElapsedTime for the time between the two events, as they are: no
    // synchronize, no check. Store the word() for what it answers. (1 line)
    // BEGIN SOLUTION
    answer = word(cudaEventElapsedTime(ms, from, to));
    // END SOLUTION
    return answer;
}

// Ways to time my kernel, in ms. The right one first.
static double alone(void) {
    CUDA_CHECK(cudaEventRecord(start, mine));
    launch(mine, kernel_cycles);
    CUDA_CHECK(cudaEventRecord(stop, mine));
    return elapsed_ms(start, stop);
}

static double ahead_in_stream(void) {
    launch(mine, other_cycles);  // somebody else's: ahead of my start, in the same stream
    return alone();
}

static double behind_queue(void) {
    double ms = NAN;
    // TODO(2): as alone(), but between the record of start and my kernel somebody else's gets
    // in: a launch of other_cycles into stream 0, the default one. It waits for the other
    // streams of this lab, and they wait for it. (5 lines)
    // BEGIN SOLUTION
    CUDA_CHECK(cudaEventRecord(start, mine));
    launch(0, other_cycles);
    launch(mine, kernel_cycles);
    CUDA_CHECK(cudaEventRecord(stop, mine));
    ms = elapsed_ms(start, stop);
    // END SOLUTION
    return ms;
}

static double rerecorded(void) {
    double ms = NAN;
    // TODO(3): record start, launch my kernel, record start once more, launch my kernel again,
    // record stop. Store the elapsed_ms from start to stop: one kernel, or two? (6 lines)
    // BEGIN SOLUTION
    CUDA_CHECK(cudaEventRecord(start, mine));
    launch(mine, kernel_cycles);
    CUDA_CHECK(cudaEventRecord(start, mine));
    launch(mine, kernel_cycles);
    CUDA_CHECK(cudaEventRecord(stop, mine));
    ms = elapsed_ms(start, stop);
    // END SOLUTION
    return ms;
}

static double reversed(void) {
    alone();
    return elapsed_ms(stop, start);
}

static double cross_stream(void) {
    launch(theirs, other_cycles);
    CUDA_CHECK(cudaEventRecord(start, theirs));  // in a busy stream
    launch(mine, kernel_cycles);
    CUDA_CHECK(cudaEventRecord(stop, mine));  // in another: nothing orders the two
    return elapsed_ms(start, stop);
}

static const struct way {
    const char *name;
    double (*ms)(void);
} ways[] = {{"alone", alone},
            {"ahead_in_stream", ahead_in_stream},
            {"behind_queue", behind_queue},
            {"rerecorded", rerecorded},
            {"reversed", reversed},
            {"cross_stream", cross_stream}};
enum { WAYS = sizeof ways / sizeof ways[0] };

static void read_wrongly(void) {
    static struct samples ms[WAYS];
    for (int i = 0; i < ROUNDS; i++)
        for (int way = 0; way < WAYS; way++)
            samples_add(&ms[way], ways[way].ms());
    for (int way = 0; way < WAYS; way++)
        print_measured(ways[way].name, "ms", &ms[way]);
}

// Answers that are errors, unless nobody looks.
static void ask_wrongly(void) {
    const float before = -7.0f;
    float ms = before;
    cudaEvent_t fresh, untimed, captured[2];
    cudaGraph_t graph;
    CUDA_CHECK(cudaEventCreate(&fresh));
    CUDA_CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventRecord(untimed, mine));
    alone();
    print_observed("elapsed_never_recorded", elapsed_word(&ms, start, fresh));
    print_observed("query_never_recorded", word(cudaEventQuery(fresh)));
    ms = before;
    const char *answer = elapsed_word(&ms, untimed, stop);
    print_observed("elapsed_disable_timing", answer);
    print_observed("ms_left_as_it_was", answer == NULL ? NULL : ms == before ? "yes" : "no");

    launch(mine, kernel_cycles);
    CUDA_CHECK(cudaEventRecord(stop, mine));
    print_observed("elapsed_not_ready", elapsed_word(&ms, start, stop));
    CUDA_CHECK(cudaDeviceSynchronize());

    CUDA_CHECK(cudaEventCreate(&captured[0]));
    CUDA_CHECK(cudaEventCreate(&captured[1]));
    CUDA_CHECK(cudaStreamBeginCapture(mine, cudaStreamCaptureModeThreadLocal));
    CUDA_CHECK(cudaEventRecord(captured[0], mine));
    launch(mine, kernel_cycles);
    CUDA_CHECK(cudaEventRecord(captured[1], mine));
    CUDA_CHECK(cudaStreamEndCapture(mine, &graph));
    print_observed("elapsed_in_capture", elapsed_word(&ms, captured[0], captured[1]));
    CUDA_CHECK(cudaGraphDestroy(graph));

    WaitKernel<<<1, 2048>>>(0);  // twice what a block may have
    print_observed("launch_too_large_sync", cudaGetErrorName(cudaDeviceSynchronize()));
    print_observed("launch_too_large", cudaGetErrorName(cudaGetLastError()));
}

// Microseconds until a launch of LateKernel is done, while a kernel runs in the other stream.
static double launch_behind_us(void) {
    double us = NAN;
    launch(theirs, long_cycles);
    // TODO(4): read now_us(), launch LateKernel<<<1, 1, 0, mine>>>, check it, wait for the
    // stream `mine` alone, and store the time that passed. (5 lines)
    // BEGIN SOLUTION
    double begun = now_us();
    LateKernel<<<1, 1, 0, mine>>>();
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaStreamSynchronize(mine));
    us = now_us() - begun;
    // END SOLUTION
    CUDA_CHECK(cudaDeviceSynchronize());
    return us;
}

// The clock that my kernel sees: cycles over time. A short kernel runs ahead of start, so that a
// host that is late with my launch is not in the interval.
static double clock_mhz(void) {
    launch(mine, kernel_cycles / 5);
    return (double)kernel_cycles / (1e3 * alone());
}

// What a rest does to a reading, and to the clock.
static void read_rested(void) {
    static struct samples warm;
    usleep(IDLE_US);
    print_measured_once("alone_rested", "ms", alone());
    usleep(IDLE_US);
    print_measured_once("clock_cold", "MHz", clock_mhz());
    for (int i = 0; i < RAMP; i++)
        alone();
    for (int i = 0; i < ROUNDS; i++)
        samples_add(&warm, clock_mhz());
    print_measured("clock_warm", "MHz", &warm);
}

// Adds readings of ArithmeticKernel, in us.
static void time_arithmetic(struct samples *us) {
    struct event_timer timer = event_timer_create();
    float *d_data;
    CUDA_CHECK(cudaMalloc(&d_data, 256 * sizeof *d_data));
    CUDA_CHECK(cudaMemset(d_data, 0, 256 * sizeof *d_data));
    for (int i = -ROUNDS; i < ROUNDS; i++) {  // the first half warms up
        event_timer_start(&timer, 0);
        ArithmeticKernel<<<1, 256>>>(d_data, 0.5f);
        CUDA_CHECK_LAUNCH();
        event_timer_stop(&timer, 0);
        double reading = event_timer_us(&timer);
        if (i >= 0)
            samples_add(us, reading);
    }
}

// What needs a process of its own prints one line: device code with -G, and an error that
// never goes away.
static int child(const char *what) {
    static struct samples us;
    int *d_p;
    if (strcmp(what, "arithmetic") == 0) {
        time_arithmetic(&us);
        printf("%.9g\n", samples_median(&us));
        return 0;
    }
    WriteKernel<<<1, 1>>>(NULL);
    printf("%s ", cudaGetErrorName(cudaGetLastError()));
    printf("%s ", cudaGetErrorName(cudaDeviceSynchronize()));
    printf("%s\n", cudaGetErrorName(cudaMalloc(&d_p, sizeof *d_p)));
    return 0;
}

// Runs this program, or the one whose name is longer by `suffix`, and keeps the line that its
// child(what) prints; none if there is no such program. To be called before this process uses
// the GPU, which some clusters lend to one process at a time.
static void run_child(const char *suffix, const char *what, char line[256]) {
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 64);
    strcpy(program + (length > 0 ? length : 0), suffix);
    setenv("LAB_PROGRAM", program, 1);
    setenv("LAB_WHAT", what, 1);
    FILE *output = popen("exec \"$LAB_PROGRAM\" \"$LAB_WHAT\" 2>/dev/null", "r");
    if (output == NULL || fgets(line, 256, output) == NULL)
        line[0] = '\0';
    if (output != NULL)
        pclose(output);
}

int main(int argc, char **argv) {
    static struct samples release;
    char sticky[256], debug[256], last[64], sync[64], next[64];
    double us;
    if (argc > 1)
        return child(argv[1]);
    run_child("", "sticky", sticky);
    run_child(".debug", "arithmetic", debug);

    lab_begin("04", "timingPitfalls");
    // Plain streams: the default stream orders them, as it does those of most programs.
    CUDA_CHECK(cudaStreamCreate(&mine));
    CUDA_CHECK(cudaStreamCreate(&theirs));
    CUDA_CHECK(cudaEventCreate(&start));
    CUDA_CHECK(cudaEventCreate(&stop));
    kernel_cycles = cycles_for_us(KERNEL_US);
    other_cycles = cycles_for_us(OTHER_US);
    long_cycles = cycles_for_us(LONG_US);
    launch(mine, kernel_cycles);  // warm up
    launch(theirs, kernel_cycles);
    CUDA_CHECK(cudaDeviceSynchronize());

    print_measured_once("lazy_blocked", "us", launch_behind_us());  // LateKernel's first launch
    region_begin("late_launch");
    print_measured_once("lazy_warm", "us", launch_behind_us());  // and its second
    region_end();
    read_wrongly();
    ask_wrongly();
    read_rested();
    time_arithmetic(&release);
    print_measured("release_kernel", "us", &release);
    print_measured_once("debug_kernel", "us", sscanf(debug, "%lf", &us) == 1 ? us : NAN);
    bool three = sscanf(sticky, "%63s %63s %63s", last, sync, next) == 3;
    print_observed("sticky_get_last_error", three ? last : NULL);
    print_observed("sticky_synchronize", three ? sync : NULL);
    print_observed("sticky_next_call", three ? next : NULL);
    lab_end("04", "timingPitfalls");
    return 0;
}
