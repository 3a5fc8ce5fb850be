// SPDX-License-Identifier: MIT
// What common/ holds, at the ends of its ranges; tests/test_sources.py builds it with sanitizers
// and reads what it prints.
//
//     headers            measured, derived and observed lines, and `ok` or what is wrong
//     headers readings   one reading too many
//     headers error      a call that fails
//     headers core       whether this core was shared, after some tenths of a second
#include "../common/lab.h"

static int wrong;

static void expect(bool good, const char *what, int line) {
    if (!good) {
        printf("wrong in line %d: %s\n", line, what);
        wrong++;
    }
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

static void quantiles(void) {
    static struct samples none, one, four, full, holed;
    EXPECT(isnan(samples_median(&none)));
    samples_add(&one, 5.0);
    EXPECT(samples_median(&one) == 5.0 && samples_quantile(&one, 0.0) == 5.0);
    EXPECT(samples_quantile(&one, 1.0) == 5.0);
    for (int i = 4; i >= 1; i--)
        samples_add(&four, i);
    EXPECT(samples_median(&four) == 2.5 && samples_quantile(&four, 1.0) == 4.0);
    EXPECT(samples_quantile(&four, 0.25) == 1.75);
    for (int i = 0; i < SAMPLES_MAX; i++)
        samples_add(&full, SAMPLES_MAX - i);
    EXPECT(full.count == SAMPLES_MAX && samples_quantile(&full, 0.0) == 1.0);
    samples_add(&holed, 1.0);
    samples_add(&holed, NAN);
    EXPECT(isnan(samples_median(&holed)));
    print_measured("full", "us", &full);
    print_measured("four", "ms", &four);
    print_measured("holed", "us", &holed);
    print_measured_at("series", "n", 1e6, "us", &one);
    print_measured_at("series", "n", 0.1, "us", &four);
}

static void numbers(void) {
    static const double values[] = {0.0,       -0.0,        1e-9,   0.0999999, 0.1,
                                    9.9996,    99.996,      999.96, 1000.4,    -3.25,
                                    123456789, 123456789.5, 1e14};
    char text[32], name[32];
    for (int i = 0; i < (int)(sizeof values / sizeof values[0]); i++) {
        snprintf(text, sizeof text, "%.*f", FIGURE(values[i]));
        double back = strtod(text, NULL);
        EXPECT(fabs(back - values[i]) <= fmax(5e-4 * fabs(values[i]), 5e-6));
        snprintf(name, sizeof name, "number_%d", i);
        print_measured_once(name, "count", values[i]);
    }
    EXPECT(decimals(INFINITY) == 0 && decimals(-INFINITY) == 0);
    print_derived("ratio", "x", 2.5);
    print_derived("of_nothing", "x", 1.0 / values[0]);
    print_derived("unknown", "x", NAN);
    print_observed("word", "cudaSuccess");
    print_observed("no_word", NULL);
}

static void clocks(void) {
    double start = now_us(), cpu = thread_cpu_us();
    usleep(1000);
    EXPECT(now_us() - start >= 1000.0 && thread_cpu_us() - cpu < 1000.0);
    for (int n = 0; n < 3 * CPU_SETSIZE; n += 97)
        move_to_core(n);
    EXPECT(!waited_much(100000000, 1000000) && waited_much(100000000, 50000000));
    EXPECT(cycles_for_us(0) == 0 && cycles_for_us(1000) == 1980000);
}

static void timer(void) {
    struct event_timer timer = event_timer_create();
    event_timer_start(&timer, 0);
    event_timer_stop(&timer, 0);
    EXPECT(event_timer_us(&timer) >= 0.0 && event_timer_us(&timer) < 1000.0);
}

int main(int argc, char **argv) {
    static struct samples many;
    if (argc > 1 && strcmp(argv[1], "core") == 0) {
        for (volatile int i = 0; i < 100000000; i++)  // the clocks here are the simulated device's
            ;
        return !core_is_shared();
    }
    for (int i = 0; argc > 1 && strcmp(argv[1], "readings") == 0 && i <= SAMPLES_MAX; i++)
        samples_add(&many, i);
    if (argc > 1)
        CUDA_CHECK(cudaStreamWaitEvent((cudaStream_t)NULL, (cudaEvent_t)NULL, 0));
    EXPECT(cuda_error_hint(cudaErrorNotReady) != NULL && cuda_error_hint(cudaSuccess) == NULL);
    lab_begin("00", "headers");
    quantiles();
    numbers();
    clocks();
    timer();
    region_begin("nothing");
    region_end();
    lab_end("00", "headers");
    printf("%s\n", wrong == 0 ? "ok" : "not ok");
    return wrong != 0;
}
