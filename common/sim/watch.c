// SPDX-License-Identifier: MIT
// Watches a kernel's body: which bytes of which allocations it reads and writes, and what the
// pages that it writes to held before.
//
// The compiler helps: -fsanitize=thread puts a call before each load and store. The functions
// called are those at the end of this file, not the sanitizer's, which is never linked.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, TOUCHED_MAX = 64 };

static struct touched touched[TOUCHED_MAX];
static int touched_count;
static bool watching, pure;

// The pages that a body wrote to, as they were before and as it left them.
struct page {
    struct page *next;
    char *at;
    char before[PAGE], after[PAGE];
};
static struct page *pages;

static void widen(struct range *range, char *begin, char *end) {
    if (range->begin == NULL || begin < range->begin)
        range->begin = begin;
    if (end > range->end)
        range->end = end;
}

// Before the first write to a page, keep it.
static void keep_page(struct allocation *a, char *address) {
    size_t number = (size_t)(address - a->mapping) / PAGE;
    if (a->kept == NULL)
        a->kept = calloc(a->mapped / PAGE, 1);
    if (a->kept[number])
        return;
    a->kept[number] = 1;
    struct page *page = malloc(sizeof *page);
    page->at = a->mapping + number * PAGE;
    memcpy(page->before, page->at, PAGE);
    page->next = pages;
    pages = page;
}

static bool within(const char *p, const void *start, size_t bytes) {
    return (uintptr_t)p - (uintptr_t)start < bytes;
}

// A thread's own variables, on the stack, and its indices.
static bool is_own(const char *p) {
    enum { NEAR = 8 << 20 };
    char here;
    uintptr_t distance = (uintptr_t)p - (uintptr_t)&here + NEAR;
    return distance < 2 * NEAR || within(p, &threadIdx, sizeof threadIdx) ||
           within(p, &blockIdx, sizeof blockIdx) || within(p, &blockDim, sizeof blockDim) ||
           within(p, &gridDim, sizeof gridDim) || within(p, &sim_clock_reads, sizeof(int));
}

// The entry of the allocation that holds the bytes, a new one if need be; NULL for none.
static struct touched *find_touched(char *begin, char *end) {
    for (int i = 0; i < touched_count; i++)
        if (begin >= touched[i].allocation->base &&
            end <= touched[i].allocation->base + touched[i].allocation->bytes)
            return &touched[i];
    struct allocation *a = allocation_at(begin);
    if (a == NULL || a->symbol || end > a->base + a->bytes || touched_count == TOUCHED_MAX) {
        pure &= is_own(begin);  // if not, a global or shared variable, or about to fault
        return NULL;
    }
    touched[touched_count] = (struct touched){.allocation = a};
    allocation_open(begin);
    return &touched[touched_count++];
}

static void watch(void *pointer, size_t bytes, bool writes) {
    char *begin = pointer, *end = begin + bytes;
    struct touched *t = find_touched(begin, end);
    if (t == NULL)
        return;
    widen(writes ? &t->written : &t->read, begin, end);
    if (writes)
        for (char *at = begin; at < end; at += PAGE - (at - t->allocation->mapping) % PAGE)
            keep_page(t->allocation, at);
}

void watch_begin(void) {
    touched_count = 0;
    watching = pure = true;
}

// Gives memory back as it was when the watching began.
void watch_restore(void) {
    for (struct page *page = pages; page != NULL; page = page->next)
        memcpy(page->at, page->before, PAGE);
}

// Takes the body's writes back, and hands over what it touched and what it wrote; and whether
// what it wrote depends on nothing but its arguments and memory that it did not write itself.
struct page *watch_end(struct touched **all, int *count, bool *is_pure) {
    struct page *written = pages;
    watching = false;
    for (struct page *page = pages; page != NULL; page = page->next)
        memcpy(page->after, page->at, PAGE);
    watch_restore();
    for (int i = 0; i < touched_count; i++) {
        struct touched *t = &touched[i];
        free(t->allocation->kept);
        t->allocation->kept = NULL;
        t->version = t->allocation->version;
        pure &= t->read.end <= t->written.begin || t->written.end <= t->read.begin;
    }
    *is_pure = pure;
    free(*all);
    *all = malloc(sizeof touched[0] * (size_t)(touched_count + 1));
    memcpy(*all, touched, sizeof touched[0] * (size_t)touched_count);
    *count = touched_count;
    pages = NULL;
    return written;
}

// Only what the body changed is put in place: others may have written the rest since.
void pages_put_in_place(struct page *page) {
    for (struct page *next; page != NULL; page = next) {
        next = page->next;
        if (allocation_at(page->at + PAGE - 1) != NULL) {
            allocation_open(page->at + PAGE - 1);
            for (int i = 0; i < PAGE; i++)
                if (page->after[i] != page->before[i])
                    page->at[i] = page->after[i];
        }
        free(page);
    }
}

void pages_free(struct page *page) {
    for (struct page *next; page != NULL; page = next) {
        next = page->next;
        free(page);
    }
}

// What the compiler puts before each load and store.
#define WATCH(name, bytes, writes)                                                           \
    void name(void *p);                                                                      \
    void name(void *p) {                                                                     \
        if (watching)                                                                        \
            watch(p, bytes, writes);                                                         \
    }
#define WATCH_SIZE(bytes)                                                                    \
    WATCH(__tsan_read##bytes, bytes, false)                                                  \
    WATCH(__tsan_write##bytes, bytes, true)                                                  \
    WATCH(__tsan_unaligned_read##bytes, bytes, false)                                        \
    WATCH(__tsan_unaligned_write##bytes, bytes, true)                                        \
    WATCH(__tsan_volatile_read##bytes, bytes, false)                                         \
    WATCH(__tsan_volatile_write##bytes, bytes, true)                                         \
    void __tsan_read_write##bytes(void *p);                                                  \
    void __tsan_read_write##bytes(void *p) {                                                 \
        if (watching) {                                                                      \
            watch(p, bytes, false);                                                          \
            watch(p, bytes, true);                                                           \
        }                                                                                    \
    }
WATCH_SIZE(1)
WATCH_SIZE(2)
WATCH_SIZE(4)
WATCH_SIZE(8)
WATCH_SIZE(16)

void __tsan_read_range(void *p, size_t bytes);
void __tsan_write_range(void *p, size_t bytes);
void __tsan_init(void);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_vptr_update(void **vptr, void *value);
void __tsan_vptr_read(void **vptr);
void __tsan_read_range(void *p, size_t bytes) {
    if (watching && bytes > 0)
        watch(p, bytes, false);
}
void __tsan_write_range(void *p, size_t bytes) {
    if (watching && bytes > 0)
        watch(p, bytes, true);
}
void *__tsan_memcpy(void *to, const void *from, size_t bytes);
void *__tsan_memmove(void *to, const void *from, size_t bytes);
void *__tsan_memset(void *to, int value, size_t bytes);
void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    __tsan_read_range((void *)(uintptr_t)from, bytes);
    __tsan_write_range(to, bytes);
    return memcpy(to, from, bytes);
}
void *__tsan_memmove(void *to, const void *from, size_t bytes) {
    __tsan_read_range((void *)(uintptr_t)from, bytes);
    __tsan_write_range(to, bytes);
    return memmove(to, from, bytes);
}
void *__tsan_memset(void *to, int value, size_t bytes) {
    __tsan_write_range(to, bytes);
    return memset(to, value, bytes);
}

// Atomics come as calls too. (A compiler that wants more of them names it when it links.)
#define ATOMIC_UPDATE(bits, what)                                                            \
    uint##bits##_t __tsan_atomic##bits##_##what(uint##bits##_t *, uint##bits##_t, int);      \
    uint##bits##_t __tsan_atomic##bits##_##what(uint##bits##_t *p, uint##bits##_t v,         \
                                                int order) {                                 \
        (void)order;                                                                         \
        return __atomic_##what(p, v, __ATOMIC_SEQ_CST);                                      \
    }
#define ATOMIC(bits)                                                                         \
    uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t *, int);                  \
    uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t *p, int order) {          \
        (void)order;                                                                         \
        return *p;                                                                           \
    }                                                                                        \
    void __tsan_atomic##bits##_store(uint##bits##_t *, uint##bits##_t, int);                 \
    void __tsan_atomic##bits##_store(uint##bits##_t *p, uint##bits##_t v, int order) {       \
        (void)order;                                                                         \
        *p = v;                                                                              \
    }                                                                                        \
    ATOMIC_UPDATE(bits, fetch_add)                                                           \
    ATOMIC_UPDATE(bits, fetch_sub)
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **vptr, void *value) { (void)vptr, (void)value; }
void __tsan_vptr_read(void **vptr) { (void)vptr; }
