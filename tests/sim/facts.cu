// SPDX-License-Identifier: MIT
// The probes whose figures an H200 gave, run on the simulated device: `name value` lines
// that test_sim.py compares with the recorded figures.
#include "check.h"

__global__ void Null(void) {}
__global__ void Late(void) {}
__global__ void Wait32(int cycles) {
    int start = clock();
    while ((int)clock() - start < cycles)
        ;
}
__global__ void Phases(long long a, long long b, long long *out) {
    long long t0 = clock64(), t1, t2;
    do
        t1 = clock64();
    while (t1 - t0 < a);
    do
        t2 = clock64();
    while (t2 - t1 < b);
    out[0] = t1 - t0, out[1] = t2 - t1;
}

static cudaEvent_t e0, e1, quiet, quiet2;
static cudaStream_t a, b, c;

static void say(const char *name, double value) {
    printf("%s %.4f\n", name, value);
}
// The probes ran in loops: calls that have just been made many times cost least.
static void warm_host(void) {
    for (int i = 0; i < 50; i++)
        CHECK(cudaEventRecord(e0));
    CHECK(cudaDeviceSynchronize());
}
static double elapsed_us(void) {
    float ms;
    CHECK(cudaEventSynchronize(e1));
    CHECK(cudaEventElapsedTime(&ms, e0, e1));
    return 1e3 * ms;
}

static void launches(void) {
    double t = now_us();
    Null<<<1, 1>>>();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    say("first_launch", now_us() - t);
    Wait<<<1, 1>>>(1), Wait32<<<1, 1>>>(1);
    CHECK(cudaDeviceSynchronize());
    t = now_us();
    for (int i = 0; i < 100000; i++)
        Null<<<1, 1>>>();
    CHECK(cudaDeviceSynchronize());
    say("launch_async", (now_us() - t) / 100000);
    t = now_us();
    for (int i = 0; i < 1000; i++) {
        Null<<<1, 1>>>();
        CHECK(cudaDeviceSynchronize());
    }
    say("launch_sync", (now_us() - t) / 1000);
    for (int i = 4000; i <= 10000; i += 1000) {
        char name[32];
        t = now_us();
        for (int k = 0; k < 1000; k++)
            Wait32<<<1, 1>>>(i);
        CHECK(cudaDeviceSynchronize());
        snprintf(name, sizeof name, "launch_wait_%d", i);
        say(name, (now_us() - t) / 1000);
    }
    Wait<<<1, 1>>>(cycles(20000));
    int depth = 0;
    for (bool blocked = false; !blocked; depth++) {
        t = now_us();
        Null<<<1, 1>>>();
        blocked = now_us() - t > 1000;
    }
    say("queue_depth", depth);
    CHECK(cudaDeviceSynchronize());
}

// What `round` costs the GPU, with `count` of them queued behind a long kernel.
template <class F> static double queued(int count, F round) {
    Wait<<<1, 1, 0, a>>>(cycles(20000));
    CHECK(cudaEventRecord(e0, a));
    for (int i = 0; i < count; i++)
        round();
    CHECK(cudaEventRecord(e1, a));
    return elapsed_us() / count;
}

static void events(void) {
    warm_host();
    CHECK(cudaEventRecord(e0));
    CHECK(cudaEventRecord(e1));
    say("event_empty", elapsed_us());
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaEventRecord(e0));
    Null<<<1, 1>>>();
    CHECK(cudaEventRecord(e1));
    say("event_null", elapsed_us());
    CHECK(cudaEventRecord(e0));
    for (int i = 0; i < 1000; i++)
        Null<<<1, 1>>>();
    CHECK(cudaEventRecord(e1));
    say("event_null_batch", elapsed_us() / 1000);
    say("queued_null", queued(400, [] { Null<<<1, 1, 0, a>>>(); }));
    say("queued_timing",
        queued(400, [] { Null<<<1, 1, 0, a>>>(), cudaEventRecord(e1, a); }));
    say("queued_quiet",
        queued(400, [] { Null<<<1, 1, 0, a>>>(), cudaEventRecord(quiet, a); }));

    cudaEvent_t kinds[2] = {e0, quiet}, others[2] = {e1, quiet2};
    for (int k = 0; k < 2; k++) {
        double t = now_us();
        for (int i = 0; i < 1000; i++)
            CHECK(cudaEventRecord(kinds[k], a));
        say(k ? "record_quiet" : "record_timing", (now_us() - t) / 1000);
        CHECK(cudaDeviceSynchronize());
        t = now_us();
        for (int i = 0; i < 5000; i++) {
            Null<<<1, 1, 0, a>>>();
            CHECK(cudaEventRecord(kinds[k], a));
        }
        CHECK(cudaDeviceSynchronize());
        say(k ? "null_record_quiet" : "null_record_timing", (now_us() - t) / 5000);
        t = now_us();
        for (int i = 0; i < 2000; i++) {
            Null<<<1, 1, 0, a>>>();
            CHECK(cudaEventRecord(kinds[k], a));
            CHECK(cudaStreamWaitEvent(b, kinds[k]));
            Null<<<1, 1, 0, b>>>();
            CHECK(cudaEventRecord(others[k], b));
            CHECK(cudaStreamWaitEvent(a, others[k], 0));
        }
        CHECK(cudaDeviceSynchronize());
        say(k ? "hop_quiet" : "hop_timing", (now_us() - t) / 4000);
    }
}

static void waits(void) {
    cudaEvent_t sleepy;
    CHECK(cudaEventCreateWithFlags(&sleepy, cudaEventBlockingSync));
    const double ms[] = {0.01, 0.1, 1, 10, 50};
    Wait<<<1, 1>>>(1);
    for (int i = 0; i < 5; i++)
        for (int how = 0; how < 3; how++) {
            cudaEvent_t event = how == 1 ? sleepy : e1;
            char name[48];
            const char *word[] = {"spin", "block", "poll"};
            warm_host();
            double t = now_us(), used = cpu_us();
            Wait<<<1, 1>>>(cycles(1e3 * ms[i]));
            CHECK(cudaEventRecord(event));
            if (how < 2)
                CHECK(cudaEventSynchronize(event));
            else
                while (cudaEventQuery(event) == cudaErrorNotReady)
                    ;
            double wall = now_us() - t;
            used = cpu_us() - used;
            snprintf(name, sizeof name, "wall_%s_%g", word[how], ms[i]);
            say(name, wall);
            snprintf(name, sizeof name, "cpu_%s_%g", word[how], ms[i]);
            say(name, used);
        }
    CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    double used = cpu_us();
    Wait<<<1, 1>>>(cycles(10000));
    CHECK(cudaEventRecord(e1));
    CHECK(cudaEventSynchronize(e1));
    say("cpu_device_flag_event", cpu_us() - used);
    CHECK(cudaSetDeviceFlags(0));
}

static double pair_ms(cudaStream_t second, int blocks, bool between) {
    CHECK(cudaDeviceSynchronize());
    double t = now_us();
    Wait<<<blocks, 1024, 0, b>>>(cycles(2000));
    if (between)
        Null<<<1, 1>>>();
    if (second != NULL)
        Wait<<<blocks, 1024, 0, second>>>(cycles(2000));
    CHECK(cudaDeviceSynchronize());
    return (now_us() - t) / 1e3;
}

static void overlap(void) {
    say("one", pair_ms(NULL, 1, false));
    say("same_stream", pair_ms(b, 1, false));
    say("two_streams", pair_ms(c, 1, false));
    say("full_sms", pair_ms(c, 264, false));
    say("half_sms", pair_ms(c, 132, false));
    say("legacy_default", pair_ms(c, 1, true));
}

static void copies(void) {
    enum { BYTES = 64 << 20 };
    char *d, *d2, *pinned, *pinned2, *pageable = (char *)malloc(BYTES);
    CHECK(cudaMalloc(&d, BYTES));
    CHECK(cudaMalloc(&d2, BYTES));
    CHECK(cudaMallocHost(&pinned, BYTES));
    CHECK(cudaMallocHost(&pinned2, BYTES));
    const char *names[] = {"pinned_h2d", "pinned_d2h", "pinned_both", "pageable_h2d",
                           "pageable_d2h"};
    for (int i = 0; i < 5; i++) {
        warm_host();
        double t = now_us();
        if (i == 0 || i == 2)
            CHECK(cudaMemcpyAsync(d, pinned, BYTES, cudaMemcpyHostToDevice, a));
        if (i == 1 || i == 2)
            CHECK(cudaMemcpyAsync(pinned2, d2, BYTES, cudaMemcpyDeviceToHost, b));
        if (i == 3) {
            CHECK(cudaMemcpyAsync(d, pageable, BYTES, cudaMemcpyHostToDevice, a));
            say("return_pageable", now_us() - t);
        }
        if (i == 4)
            CHECK(cudaMemcpyAsync(pageable, d, BYTES, cudaMemcpyDeviceToHost, a));
        CHECK(cudaDeviceSynchronize());
        say(names[i], (now_us() - t) / 1e3);
    }
    Wait<<<1, 1, 0, a>>>(cycles(5000));
    double t = now_us();
    CHECK(cudaMemcpyAsync(d, pageable, 65536, cudaMemcpyHostToDevice, a));
    say("small_pageable_behind_busy", now_us() - t);
    free(pageable);
}

static void graphs(void) {
    const int sizes[] = {1, 10, 100};
    for (int s = 0; s < 3; s++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        char name[32];
        CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
        for (int i = 0; i < sizes[s]; i++)
            Null<<<1, 1, 0, a>>>();
        CHECK(cudaStreamEndCapture(a, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        CHECK(cudaGraphLaunch(exec, a));
        CHECK(cudaStreamSynchronize(a));
        double t = now_us();
        for (int i = 0; i < 500; i++)
            CHECK(cudaGraphLaunch(exec, a));
        CHECK(cudaStreamSynchronize(a));
        snprintf(name, sizeof name, "graph_node_%d", sizes[s]);
        say(name, (now_us() - t) / 500 / sizes[s]);
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    double us[2] = {0, 0};
    for (int captured = 0; captured < 2; captured++) {
        double t = now_us();
        for (int i = 0; i < (captured ? 1 : 200); i++) {
            if (captured)
                CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
            Null<<<1, 1, 0, a>>>();
            CHECK(cudaEventRecord(quiet, a));
            CHECK(cudaStreamWaitEvent(b, quiet));
            Null<<<1, 1, 0, a>>>();
            Null<<<1, 1, 0, b>>>();
            CHECK(cudaEventRecord(quiet2, b));
            CHECK(cudaStreamWaitEvent(a, quiet2));
            Null<<<1, 1, 0, a>>>();
            if (captured)
                CHECK(cudaStreamEndCapture(a, &graph));
        }
        CHECK(cudaDeviceSynchronize());
        us[0] = captured ? us[0] : (now_us() - t) / 200;
    }
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, a));
    CHECK(cudaStreamSynchronize(a));
    double t = now_us();
    for (int i = 0; i < 500; i++)
        CHECK(cudaGraphLaunch(exec, a));
    CHECK(cudaStreamSynchronize(a));
    us[1] = (now_us() - t) / 500;
    size_t nodes, edges;
    CHECK(cudaGraphGetNodes(graph, NULL, &nodes));
    CHECK(cudaGraphGetEdges(graph, NULL, NULL, NULL, &edges));
    say("diamond_streams", us[0]);
    say("diamond_graph", us[1]);
    say("diamond_nodes", (double)nodes);
    say("diamond_edges", (double)edges);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
}

// Sixteen chunks, copied in, waited over and copied out as 3 : 5 : 1: times against what
// the stages alone predict, one stage after the other and in three streams.
__global__ void Work(char *chunk, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
    chunk[0]++;
}

static void pipeline(int mib) {
    enum { CHUNKS = 16 };
    size_t bytes = (size_t)mib << 20, out = bytes / 3;
    char *d, *h, name[32];
    cudaStream_t s[3];
    cudaEvent_t in[CHUNKS], done[CHUNKS];
    CHECK(cudaMalloc(&d, CHUNKS * bytes));
    CHECK(cudaMallocHost(&h, CHUNKS * bytes));
    for (int i = 0; i < 3; i++)
        CHECK(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
    for (int i = 0; i < CHUNKS; i++) {
        CHECK(cudaEventCreateWithFlags(&in[i], cudaEventDisableTiming));
        CHECK(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming));
    }
    Work<<<1, 1, 0, s[1]>>>(d, 1);
    double stage[3];
    for (int k = 0; k < 3; k++) {  // each alone
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaEventRecord(e0, s[0]));
        for (int i = 0; i < CHUNKS; i++) {
            if (k == 0)
                CHECK(cudaMemcpyAsync(d + i * bytes, h + i * bytes, bytes,
                                      cudaMemcpyHostToDevice, s[0]));
            else if (k == 1)
                Work<<<1, 1, 0, s[0]>>>(d + i * bytes, cycles(5 * stage[0] / 3));
            else
                CHECK(cudaMemcpyAsync(h + i * bytes, d + i * bytes, out,
                                      cudaMemcpyDeviceToHost, s[0]));
        }
        CHECK(cudaEventRecord(e1, s[0]));
        stage[k] = elapsed_us() / CHUNKS;
    }
    for (int streams = 1; streams <= 3; streams += 2) {
        CHECK(cudaDeviceSynchronize());
        double t = now_us();
        for (int i = 0; i < CHUNKS; i++) {
            cudaStream_t a = s[0], b = s[streams / 2], c = s[streams - 1];
            CHECK(cudaMemcpyAsync(d + i * bytes, h + i * bytes, bytes,
                                  cudaMemcpyHostToDevice, a));
            if (streams > 1) {
                CHECK(cudaEventRecord(in[i], a));
                CHECK(cudaStreamWaitEvent(b, in[i], 0));
            }
            Work<<<1, 1, 0, b>>>(d + i * bytes, cycles(5 * stage[0] / 3));
            if (streams > 1) {
                CHECK(cudaEventRecord(done[i], b));
                CHECK(cudaStreamWaitEvent(c, done[i], 0));
            }
            CHECK(cudaMemcpyAsync(h + i * bytes, d + i * bytes, out, cudaMemcpyDeviceToHost,
                                  c));
        }
        CHECK(cudaDeviceSynchronize());
        double sum = stage[0] + stage[1] + stage[2];
        snprintf(name, sizeof name, streams > 1 ? "pipelined_%d" : "serial_%d", mib);
        say(name,
            (now_us() - t) / (streams > 1 ? sum + (CHUNKS - 1) * stage[1] : CHUNKS * sum));
    }
    CHECK(cudaFree(d));
    CHECK(cudaFreeHost(h));
}

static void rest(void) {
    pipeline(1);
    pipeline(4);
    pipeline(16);
    long long *d, h[2];
    CHECK(cudaMalloc(&d, sizeof h));
    Phases<<<1, 1>>>(200000, 600000, d);
    CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    say("phase1_cycles", (double)h[0]);
    say("phase2_cycles", (double)h[1]);
    for (int i = 0; i < 2; i++) {
        if (i == 0) {
            struct timespec three = {3, 0};
            nanosleep(&three, NULL);
        }
        CHECK(cudaEventRecord(e0));
        Wait<<<1, 1>>>(1000000);
        CHECK(cudaEventRecord(e1));
        say(i ? "warm_1e6" : "cold_1e6", elapsed_us());
    }
    Wait<<<1, 1, 0, a>>>(cycles(20000));
    double t = now_us();
    Null<<<1, 1, 0, b>>>();
    say("warm_launch_beside", now_us() - t);
    t = now_us();
    Late<<<1, 1, 0, b>>>();
    say("lazy_launch_beside", now_us() - t);
    CHECK(cudaStreamSynchronize(b));
    say("lazy_done_beside", now_us() - t);
}

int main(void) {
    double t = now_us();
    CHECK(cudaFree(0));
    say("context", (now_us() - t) / 1e3);
    CHECK(cudaEventCreate(&e0));
    CHECK(cudaEventCreate(&e1));
    CHECK(cudaEventCreate(&quiet, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&quiet2, cudaEventDisableTiming));
    CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreate(&b));
    CHECK(cudaStreamCreate(&c));
    launches();
    events();
    waits();
    overlap();
    copies();
    graphs();
    rest();
    return 0;
}
