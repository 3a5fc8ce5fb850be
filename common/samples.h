// SPDX-License-Identifier: MIT
// A handful of readings of one thing, and what to say of them: the median, because one
// interrupt must not move it, and the spread, because a figure without it says nothing.
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES_MAX = 1024 };

struct samples {
    int count;
    double value[SAMPLES_MAX];
};

static inline void samples_add(struct samples *s, double value) {
    if (s->count == SAMPLES_MAX) {
        fprintf(stderr, "samples_add: over %d readings: take fewer batches\n", SAMPLES_MAX);
        exit(1);
    }
    s->value[s->count++] = value;
}

static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The value below which the fraction q (0 .. 1) of the readings lies, interpolated between
// neighbours; q = 0.5 is the median. NAN without readings, or if any reading is NAN.
static inline double samples_quantile(const struct samples *s, double q) {
    double sorted[SAMPLES_MAX];
    for (int i = 0; i < s->count; i++)
        if (isnan(s->value[i]))
            return NAN;
    if (s->count == 0)
        return NAN;
    memcpy(sorted, s->value, (size_t)s->count * sizeof sorted[0]);
    qsort(sorted, (size_t)s->count, sizeof sorted[0], compare_doubles);
    double place = q * (s->count - 1);
    int below = (int)place;
    int above = below + 1 < s->count ? below + 1 : below;
    return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

static inline double samples_median(const struct samples *s) {
    return samples_quantile(s, 0.5);
}
