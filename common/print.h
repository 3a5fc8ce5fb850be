// SPDX-License-Identifier: MIT
// The lines that a script can read back. A NAN is a TODO that is not done yet and prints
// `unmeasured`. Units are one of: ns us ms s x % count cycles MHz GB/s.
#pragma once

#include "samples.h"

// About four figures that mean something, and never an exponent: printf("%.*f", FIGURE(x)).
#define FIGURE(value) decimals(value), (value)

static inline int decimals(double value) {
    double size = fabs(value);
    if (value == floor(value) && size < 1e9)
        return 0;  // counts, and whole numbers of cycles
    return size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 ? 3 : 5;
}

// measured NAME = MEDIAN UNIT (median of N, ...). NAME may carry one parameter, as in
// launch_wait[cycles=4500]. From twenty readings on the quartiles are shown too: the
// extremes of a thousand are its two rarest accidents.
static inline void print_measured(const char *name, const char *unit, const struct samples *s) {
    double median = samples_median(s);
    if (isnan(median)) {
        printf("unmeasured %s %s\n", name, unit);
        return;
    }
    printf("measured %s = %.*f %s (median of %d, ", name, FIGURE(median), unit, s->count);
    if (s->count >= 20)
        printf("quartiles %.*f %.*f, ", FIGURE(samples_quantile(s, 0.25)),
               FIGURE(samples_quantile(s, 0.75)));
    printf("min %.*f, max %.*f)\n", FIGURE(samples_quantile(s, 0.0)),
           FIGURE(samples_quantile(s, 1.0)));
    fflush(stdout);
}

static inline void print_measured_at(const char *name, const char *key, double at,
                                     const char *unit, const struct samples *s) {
    char point[96];
    snprintf(point, sizeof point, "%s[%s=%g]", name, key, at);
    print_measured(point, unit, s);
}

// Something counted or timed once.
static inline void print_measured_once(const char *name, const char *unit, double value) {
    struct samples one = {1, {value}};
    print_measured(name, unit, &one);
}

// Computed from measured figures; the grader computes it again. Where one of them was zero
// there is nothing to compute.
static inline void print_derived(const char *name, const char *unit, double value) {
    if (!isfinite(value))
        printf("unmeasured %s %s\n", name, unit);
    else
        printf("derived %s = %.*f %s\n", name, FIGURE(value), unit);
}

// A word: an error's name, yes, no. NULL is a TODO that is not done yet.
static inline void print_observed(const char *name, const char *word) {
    if (word == NULL)
        printf("unmeasured %s word\n", name);
    else
        printf("observed %s = %s\n", name, word);
}
