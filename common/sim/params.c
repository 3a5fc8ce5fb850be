// SPDX-License-Identifier: MIT
// Reads the parameter file. The one of SIM_INI_FILE is compiled in, so that a program built
// for the simulated device runs anywhere; SIM_DEVICE_FILE names another.
#define _GNU_SOURCE
#include "sim.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef SIM_INI_FILE
#define SIM_INI_FILE "common/sim/h200.ini"
#endif

__asm__(".pushsection .rodata\n"
        ".global sim_builtin_ini\n"
        "sim_builtin_ini:\n"
        ".incbin \"" SIM_INI_FILE "\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char sim_builtin_ini[];

struct params param;

static const struct {
    const char *key;
    double *value;
    struct table *table;
} keys[] = {
#define SIM_KEY(key) {#key, &param.key, NULL},
    SIM_PARAMS(SIM_KEY)
#undef SIM_KEY
#define SIM_KEY(key) {#key, NULL, &param.key},
        SIM_TABLES(SIM_KEY)
#undef SIM_KEY
};
enum { KEYS = sizeof keys / sizeof keys[0] };

static char *trim(char *text) {
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    return text;
}

static void parse_numbers(const char *file, int line, int key, char *text) {
    double value[TABLE_MAX];
    int count = 0, most = keys[key].table ? TABLE_MAX : 1;
    char *rest = text;
    for (; *rest != '\0' && count < most; count++) {
        errno = 0;
        char *start = rest;
        value[count] = strtod(start, &rest);
        if (rest == start || errno != 0 || !(value[count] >= 0) || isinf(value[count]))
            break;
        while (isspace((unsigned char)*rest))
            rest++;
    }
    if (count == 0 || *rest != '\0')
        die("%s:%d: %s = %s: not %s of zero or more", file, line, keys[key].key, text,
            keys[key].table ? "one to eight numbers" : "a number");
    if (keys[key].table) {
        keys[key].table->count = count;
        memcpy(keys[key].table->value, value, sizeof value);
    } else
        *keys[key].value = value[0];
}

static void parse(const char *file, char *text) {
    int seen[KEYS + 1] = {0}, line = 0;  // the last: the name
    for (char *next; text != NULL; text = next) {
        next = strchr(text, '\n');
        if (next != NULL)
            *next++ = '\0';
        line++;
        char *hash = strchr(text, '#');
        if (hash != NULL)
            *hash = '\0';
        text = trim(text);
        if (*text == '\0' || *text == '[')
            continue;
        char *equals = strchr(text, '=');
        if (equals == NULL)
            die("%s:%d: not `key = value`: %s", file, line, text);
        *equals = '\0';
        char *name = trim(text), *value = trim(equals + 1);
        int key = 0;
        while (key < KEYS && strcmp(keys[key].key, name) != 0)
            key++;
        if (key == KEYS && strcmp(name, "name") != 0)
            die("%s:%d: no parameter is called %s", file, line, name);
        if (seen[key])
            die("%s:%d: %s was set in line %d already", file, line, name, seen[key]);
        seen[key] = line;
        if (key == KEYS) {
            // Nothing that it prints may pass for hardware.
            bool says_so = strstr(value, "imulated") != NULL;
            snprintf(param.name, sizeof param.name, "%s%s", says_so ? "" : "Simulated ", value);
        } else
            parse_numbers(file, line, key, value);
    }
    for (int key = 0; key < KEYS; key++)
        if (!seen[key])
            die("%s:%d: the parameter %s is missing", file, line, keys[key].key);
    if (param.name[0] == '\0')
        die("%s:%d: the parameter name is missing", file, line);
    if (param.sms < 1 || param.sms > SMS_MAX || param.clock_mhz <= 0 || param.queue_depth < 1 ||
        param.queue_depth > RING / 2 || param.memory_gbps <= 0)
        die("%s:%d: sms must be 1 .. %d, queue_depth 1 .. %d, clock_mhz and memory_gbps "
            "above zero",
            file, line, SMS_MAX, RING / 2);
    if (param.block_wait_us.count != param.block_wake_us.count ||
        param.block_wait_us.count != param.block_cpu_us.count)
        die("%s:%d: block_wait_us, block_wake_us and block_cpu_us differ in length", file,
            line);
}

void params_load(void) {
    const char *file = getenv("SIM_DEVICE_FILE");
    char *text;
    if (file == NULL || *file == '\0') {
        file = SIM_INI_FILE;
        text = strdup(sim_builtin_ini);
    } else {
        FILE *in = fopen(file, "r");
        if (in == NULL)
            die("SIM_DEVICE_FILE: cannot read %s: %s", file, strerror(errno));
        text = calloc(1, 1 << 16);
        size_t got = fread(text, 1, (1 << 16) - 1, in);
        text[got] = '\0';
        fclose(in);
    }
    parse(file, text);
    free(text);
}

// y at `at` on the straight lines through the points (x, y); flat before and after them.
double table_at(const struct table *x, const struct table *y, double at) {
    if (at <= x->value[0])
        return y->value[0];
    for (int i = 1; i < x->count; i++)
        if (at <= x->value[i])
            return y->value[i - 1] + (at - x->value[i - 1]) / (x->value[i] - x->value[i - 1]) *
                                         (y->value[i] - y->value[i - 1]);
    return y->value[x->count - 1];
}
