// SPDX-License-Identifier: MIT
// Watches a kernel's body: which bytes of which allocations it reads and writes, and what
// the pages that it writes to held before.
//
// The compiler helps: -fsanitize=thread puts a call before each load and store. The
// functions called are those at the end of this file, not the sanitizer's, which is never
// linked.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { TOUCHED_MAX = 64, SPANS_MAX = 64, BLOCK = 64 << 10 };

// A watched allocation, in blocks that are made when they are first touched: a bit for each
// byte read and each byte written.
struct block {
    uint64_t read[BLOCK / 64], written[BLOCK / 64];
};
static struct watched {
    struct allocation *allocation;
    struct block **block;
    char *kept;  // a flag for each page
} watched[TOUCHED_MAX];
static int watched_count;
static bool watching, pure;

// The pages that a body wrote to, as they were before and as it left them.
struct page {
    struct page *next;
    char *at;
    char before[PAGE], after[PAGE];
};
static struct page *pages;

// Before the first write to a page, keep it.
static void keep_page(struct watched *w, char *address) {
    size_t number = (size_t)(address - w->allocation->mapping) / PAGE;
    if (w->kept[number])
        return;
    w->kept[number] = 1;
    struct page *page = malloc(sizeof *page);
    page->at = w->allocation->mapping + number * PAGE;
    if (!allocation_is_open(address))
        allocation_fault(address);  // as the write itself would a moment later
    memcpy(page->before, page->at, PAGE);
    page->next = pages;
    pages = page;
}

static bool within(const char *p, const void *start, size_t bytes) {
    return (uintptr_t)p - (uintptr_t)start < bytes;
}

// A thread's own variables, on the stack, and its indices.
static bool is_own(const char *p) {
    char here;
    uintptr_t distance = (uintptr_t)p - (uintptr_t)&here + NEAR;
    return distance < 2 * NEAR || within(p, &threadIdx, sizeof threadIdx) ||
           within(p, &blockIdx, sizeof blockIdx) || within(p, &blockDim, sizeof blockDim) ||
           within(p, &gridDim, sizeof gridDim) || within(p, sim_args, SIM_ARGS_BYTES);
}

// The entry of the allocation that holds the bytes, a new one if need be; NULL for none.
static struct watched *find_watched(char *begin, char *end) {
    if (is_own(begin))
        return NULL;
    for (int i = 0; i < watched_count; i++)
        if (begin >= watched[i].allocation->base &&
            end <= watched[i].allocation->base + watched[i].allocation->bytes)
            return &watched[i];
    struct allocation *a = allocation_at(begin);
    if (a == NULL || a->symbol || end > a->base + a->bytes || watched_count == TOUCHED_MAX) {
        pure = false;  // a global or shared variable, or about to fault
        return NULL;
    }
    struct watched *w = &watched[watched_count++];
    w->allocation = a;
    w->block = calloc(a->bytes / BLOCK + 1, sizeof *w->block);
    w->kept = calloc(a->mapped / PAGE, 1);
    return w;
}

static void watch(void *pointer, size_t bytes, bool writes) {
    char *begin = pointer, *end = begin + bytes;
    struct watched *w = find_watched(begin, end);
    if (w == NULL)
        return;
    for (size_t at = (size_t)(begin - w->allocation->base), left = bytes; left > 0;) {
        size_t here = 64 - at % 64 < left ? 64 - at % 64 : left;
        struct block **block = &w->block[at / BLOCK];
        if (*block == NULL)
            *block = calloc(1, sizeof **block);
        uint64_t *bits = writes ? (*block)->written : (*block)->read;
        bits[at % BLOCK / 64] |= (here == 64 ? ~0ull : (1ull << here) - 1) << at % 64;
        at += here;
        left -= here;
    }
    if (writes)
        for (char *at = begin; at < end; at += PAGE - (at - w->allocation->mapping) % PAGE)
            keep_page(w, at);
}

void watch_begin(void) {
    watched_count = 0;
    watching = pure = true;
}

// Gives memory back as it was when the watching began.
void watch_restore(void) {
    for (struct page *page = pages; page != NULL; page = page->next)
        memcpy(page->at, page->before, PAGE);
}

// Turns bits into spans. A kernel that leaves out every other byte makes more than can be
// kept: then the rest is not.
static void add_spans(struct touched *t, const struct watched *w, bool written) {
    size_t bytes = w->allocation->bytes, begin = 0;
    bool in = false;
    for (size_t i = 0; i <= bytes; i++) {
        const struct block *block = i < bytes ? w->block[i / BLOCK] : NULL;
        uint64_t bits = block == NULL ? 0
                        : written     ? block->written[i % BLOCK / 64]
                                      : block->read[i % BLOCK / 64];
        // Whole blocks and words in which nothing changes; allocations are multiples of
        // 256.
        if (!in && block == NULL && i % BLOCK == 0) {
            i += BLOCK - 1;
            continue;
        }
        if (i % 64 == 0 && i < bytes && bits == (in ? ~0ull : 0)) {
            i += 63;
            continue;
        }
        bool set = bits >> i % 64 & 1;
        if (set && !in)
            begin = i;
        else if (in && !set) {
            t->bytes += (double)(i - begin);
            if (t->spans < SPANS_MAX) {
                char *base = w->allocation->base;
                t->span[t->spans++] = (struct span){{base + begin, base + i}, written};
            }
        }
        in = set;
    }
}

// Takes the body's writes back into `pages`, and tells what it touched.
struct touched *watch_end(struct page **written) {
    struct touched *t = calloc(1, sizeof *t);
    watching = false;
    for (struct page *page = pages; page != NULL; page = page->next)
        memcpy(page->after, page->at, PAGE);
    watch_restore();
    *written = pages;
    pages = NULL;
    t->users = 1;
    t->span = malloc(SPANS_MAX * sizeof *t->span);
    t->in = malloc(sizeof *t->in * (size_t)(watched_count + 1));
    t->allocations = watched_count;
    for (int i = 0; i < watched_count; i++) {
        struct watched *w = &watched[i];
        double before = t->bytes;
        add_spans(t, w, true);
        t->in[i].allocation = w->allocation;
        t->in[i].version = w->allocation->version;
        t->in[i].written = t->bytes > before;
        add_spans(t, w, false);
        for (size_t k = 0; k <= w->allocation->bytes / BLOCK; k++) {
            for (size_t i = 0; w->block[k] != NULL && i < BLOCK / 64; i++)
                pure &= (w->block[k]->read[i] & w->block[k]->written[i]) == 0;
            free(w->block[k]);
        }
        free(w->block);
        free(w->kept);
    }
    t->span = realloc(t->span, sizeof *t->span * (size_t)(t->spans + 1));
    t->pure = pure;
    return t;
}

void touched_release(struct touched *t) {
    if (t == NULL || --t->users > 0)
        return;
    free(t->span);
    free(t->in);
    free(t);
}

// Only what the body changed is put in place: others may have written the rest since.
void pages_put_in_place(struct page *page) {
    for (struct page *next; page != NULL; page = next) {
        next = page->next;
        if (allocation_at(page->at + PAGE - 1) != NULL) {
            allocation_open(page->at + PAGE - 1, 1);
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

// ---- What the compiler puts before each load and store
void __tsan_read_range(void *p, size_t bytes) {
    if (watching && bytes > 0)
        watch(p, bytes, false);
}
void __tsan_write_range(void *p, size_t bytes) {
    if (watching && bytes > 0)
        watch(p, bytes, true);
}
#define WATCH_SIZE(bytes)                                                                      \
    void __tsan_read##bytes(void *p) { __tsan_read_range(p, bytes); }                          \
    void __tsan_write##bytes(void *p) { __tsan_write_range(p, bytes); }                        \
    void __tsan_unaligned_read##bytes(void *p) { __tsan_read_range(p, bytes); }                \
    void __tsan_unaligned_write##bytes(void *p) { __tsan_write_range(p, bytes); }              \
    void __tsan_volatile_read##bytes(void *p) { __tsan_read_range(p, bytes); }                 \
    void __tsan_volatile_write##bytes(void *p) { __tsan_write_range(p, bytes); }               \
    void __tsan_read_write##bytes(void *p) {                                                   \
        __tsan_read_range(p, bytes);                                                           \
        __tsan_write_range(p, bytes);                                                          \
    }
WATCH_SIZE(1)
WATCH_SIZE(2)
WATCH_SIZE(4)
WATCH_SIZE(8)
WATCH_SIZE(16)

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
#define ORDER int order __attribute__((unused))
#define ATOMIC(type, bits)                                                                     \
    type __tsan_atomic##bits##_load(const type *p, ORDER) { return *p; }                       \
    void __tsan_atomic##bits##_store(type *p, type v, ORDER) { *p = v; }                       \
    type __tsan_atomic##bits##_fetch_add(type *p, type v, ORDER) { return (*p += v) - v; }     \
    type __tsan_atomic##bits##_fetch_sub(type *p, type v, ORDER) { return (*p -= v) + v; }
ATOMIC(uint8_t, 8)
ATOMIC(uint16_t, 16)
ATOMIC(uint32_t, 32)
ATOMIC(uint64_t, 64)

void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **vptr, void *value) { (void)vptr, (void)value; }
void __tsan_vptr_read(void **vptr) { (void)vptr; }
