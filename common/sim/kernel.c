// SPDX-License-Identifier: MIT
// Running kernels' bodies. A body runs on the CPU, thread by thread; the time that it takes
// comes from the clock readings it makes or, without any, from the bytes it points to.
//
// What it writes must become visible at its simulated end, but its length must be known at
// its start. So the first time that a kernel is launched in a certain way, its body runs at
// the start, its writes are taken back, and put in place at the end. From then on the length
// is known and the body simply runs at the end.
#define _GNU_SOURCE
#include "sim.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    READ_CYCLES = 30,    // between two readings of the clock in a tight loop
    FINENESS = 1024,     // a wait overshoots by at most one part in this
    RUNS_MAX = 64,
    CACHE = 4096,
    SMALL_BYTES = 4096,  // allocations up to this are compared to see if anything was written
};

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
_Alignas(256) char sim_dynamic_shared[256 << 10];
int sim_clock_reads;

// What is known of a kernel function.
struct kernel {
    const void *function;
    const char *name;
    bool loaded[DEVICES_MAX];
    int max_dynamic_shared;
    bool plain;    // has run and never read a clock
    bool uneven;   // its threads do not all wait alike
    bool unsteady; // the same launch took different numbers of cycles
    struct kernel *next;
};
static struct kernel *kernels[256];

struct kernel *kernel_find(const void *function, const char *name) {
    struct kernel **head = &kernels[((uintptr_t)function >> 4) % 256];
    for (struct kernel *k = *head; k != NULL; k = k->next)
        if (k->function == function)
            return k;
    struct kernel *k = calloc(1, sizeof *k);
    k->function = function;
    k->name = name;
    k->max_dynamic_shared = (int)param.shared_per_block_kib << 10;
    k->next = *head;
    return *head = k;
}

bool *kernel_loaded(struct kernel *kernel, int device) { return &kernel->loaded[device]; }
int *kernel_max_shared(struct kernel *kernel) { return &kernel->max_dynamic_shared; }

size_t kernel_shared(const struct op *op) {
    size_t reserved = (size_t)param.shared_reserved_kib << 10;
    return op->launch->shared + (op->launch->shared > 0 ? reserved : 0);
}

// ---- The clock inside a kernel -----------------------------------------------------------
// A loop that waits on the clock may run for 1e8 cycles, in every thread of a full grid, so
// the clock cannot tick by tick. Readings from one place in the code in a row are such a
// loop: each is later than the last by 1/FINENESS of the time spent in the loop so far. The
// first thread of a launch notes its loops; a thread that comes to the same loop at the same
// time is taken to its last two readings at once, since it leaves by the same one.
struct run {  // one loop of the first thread
    const void *place;
    int64_t start, before_last, last;
    int reads;
};
static struct {
    int64_t cycles;        // since the thread began
    const void *place;     // of the latest reading
    int64_t start;         // cycles when its run began
    int reads, index;      // in the run; of the run
    bool jumped;
} thread;
static struct {
    struct op *op;
    struct run run[RUNS_MAX];
    int runs;
    bool noting;           // the first thread
    int64_t most_cycles;
    bool read_clock;
    double ghz;
} body;

static void run_ended(void) {
    if (body.noting && thread.index >= 0 && thread.index < RUNS_MAX) {
        struct run *run = &body.run[thread.index];
        run->place = thread.place;
        run->start = thread.start;
        run->last = thread.cycles;
        run->reads = thread.reads;
        body.runs = thread.index + 1;
    } else if (thread.jumped && thread.reads == 2)
        body.op->kernel->uneven = true;  // it left a loop earlier than the first thread
    thread.jumped = false;
}

static int64_t sm_offset(void) {
    // Different SMs' clocks do not agree: spread them by a fixed pattern.
    return (int64_t)(sim_smid() * 2654435761u >> 8);
}

static int64_t read_clock(const void *place) {
    sim_clock_reads++;
    if (place != thread.place) {
        run_ended();
        thread.place = place;
        thread.start = thread.cycles;
        thread.reads = 0;
        thread.index++;
    }
    thread.reads++;
    int64_t step = (thread.cycles - thread.start) / FINENESS;
    if (step < READ_CYCLES)
        step = READ_CYCLES;
    int64_t next = thread.cycles + step;
    if (body.noting) {
        if (thread.index < RUNS_MAX)
            body.run[thread.index].before_last = thread.cycles;
    } else if (!body.op->kernel->uneven && thread.index < body.runs) {
        const struct run *run = &body.run[thread.index];
        if (run->place == place && run->start == thread.start && run->reads > 3) {
            if (thread.reads == 2) {
                next = run->before_last;
                thread.jumped = true;
            } else if (thread.reads == 3)
                next = run->last;
        }
    }
    thread.cycles = next;
    return (int64_t)(body.op->start * 1e3 * body.ghz) + sm_offset() + thread.cycles;
}

void sim_thread_end(void) {
    run_ended();
    if (thread.cycles > body.most_cycles)
        body.most_cycles = thread.cycles;
    body.read_clock = true;
    body.noting = false;
    sim_clock_reads = 0;
    memset(&thread, 0, sizeof thread);
    thread.index = -1;
}

static void not_in_kernel(const char *what) {
    if (!sim.in_kernel)
        die("%s was called by the host: it is a device function", what);
}

__attribute__((noinline)) long long clock64(void) {
    not_in_kernel("clock64");
    return read_clock(__builtin_return_address(0));
}

int64_t kernel_clock(const void *place) { return read_clock(place); }

__attribute__((noinline)) unsigned long long sim_globaltimer(void) {
    not_in_kernel("%globaltimer");
    read_clock(__builtin_return_address(0));
    double us = body.op->start + (double)thread.cycles / (1e3 * body.ghz);
    return (unsigned long long)(us * 1e3 / 32.0) * 32;  // it steps by 32 ns, as recorded
}

unsigned sim_smid(void) {
    uint64_t block = blockIdx.x + (uint64_t)gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z);
    return (unsigned)(block % (unsigned)param.sms);
}

void __nanosleep(unsigned ns) {
    not_in_kernel("__nanosleep");
    sim_clock_reads++;
    thread.cycles += (int64_t)(ns * body.ghz);
}

// ---- Blocks whose threads meet at __syncthreads ------------------------------------------
// Each thread becomes a fiber that runs until the next barrier.
enum { FIBER_STACK = 64 << 10, FIBERS_MAX = 1024 };
static struct fiber {
    ucontext_t context;
    uint3 index;
    bool done;
    int64_t cycles;
} *fibers;
static char *fiber_stacks;
static ucontext_t fiber_home;
static int fiber_current = -1;
static void (*fiber_thread)(const void *, const void *);
static const void *fiber_function, *fiber_args;

static void fiber_main(void) {
    fiber_thread(fiber_function, fiber_args);
    fibers[fiber_current].cycles = 0;
    fibers[fiber_current].done = true;
}

void __syncthreads(void) {
    not_in_kernel("__syncthreads");
    if (fiber_current < 0)
        die("__syncthreads in a header: the simulated device sees it in .cu files only");
    fibers[fiber_current].cycles = thread.cycles;
    swapcontext(&fibers[fiber_current].context, &fiber_home);
}

static void fiber_make(int i) {
    struct fiber *fiber = &fibers[i];
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber_stacks + (size_t)i * FIBER_STACK;
    fiber->context.uc_stack.ss_size = FIBER_STACK;
    fiber->context.uc_link = &fiber_home;
    makecontext(&fiber->context, fiber_main, 0);
    fiber->index = (uint3){(unsigned)i % blockDim.x, (unsigned)i / blockDim.x % blockDim.y,
                           (unsigned)i / blockDim.x / blockDim.y};
    fiber->done = false;
}

void sim_block_with_barriers(void (*thread_body)(const void *, const void *),
                             const void *function, const void *args) {
    int count = (int)(blockDim.x * blockDim.y * blockDim.z), left = count;
    if (fibers == NULL) {
        fibers = calloc(FIBERS_MAX, sizeof *fibers);
        fiber_stacks = malloc((size_t)FIBERS_MAX * FIBER_STACK);
    }
    fiber_thread = thread_body, fiber_function = function, fiber_args = args;
    for (int i = 0; i < count; i++)
        fiber_make(i);
    int64_t barrier = 0;
    while (left > 0) {
        int64_t latest = barrier;
        for (int i = 0; i < count; i++) {
            if (fibers[i].done)
                continue;
            fiber_current = i;
            threadIdx = fibers[i].index;
            memset(&thread, 0, sizeof thread);
            thread.index = RUNS_MAX;   // every thread steps by itself: no notes, no jumps
            thread.cycles = barrier;
            body.noting = false;
            swapcontext(&fiber_home, &fibers[i].context);
            left -= fibers[i].done;
            if (fibers[i].cycles > latest)
                latest = fibers[i].cycles;
        }
        barrier = latest;  // the block goes on when its last thread has come
    }
    fiber_current = -1;
}

// ---- Faults -------------------------------------------------------------------------------
static sigjmp_buf escape;

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    char text[200];
    if (sim.in_kernel && number != SIGFPE) {
        if (allocation_open(info->si_addr))
            return;  // device memory is closed to the host, and opened where a kernel needs it
        siglongjmp(escape, 1);
    }
    const char *what = "";
    if (number == SIGFPE && sim.in_kernel)
        what = "sim: a kernel divided an integer by zero, which hardware lets pass\n";
    else if (allocation_at(info->si_addr) != NULL)
        what = "sim: the host dereferenced a pointer to device memory: copy it with cudaMemcpy\n";
    snprintf(text, sizeof text, "%s", what);
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        _exit(EXIT_FAILURE);
    signal(number, SIG_DFL);  // and die of it as usual, when the instruction runs again
}

void install_signal_handlers(void) {
    static char stack[64 << 10];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaltstack(&alternate, NULL);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGFPE, &action, NULL);
}

// ---- Bodies ------------------------------------------------------------------------------
// Bytes that a body changed ahead of time: the memory as it was and as it left it.
struct after {
    int count;
    struct {
        char *base;
        size_t bytes;
        char *before, *after;
    } part[SIM_ARGS_MAX];
};

static struct {
    uint64_t key;
    int64_t cycles;
    bool known;
} cache[CACHE];

static void run_body(struct op *op) {
    const struct sim_launch *launch = op->launch;
    sim.in_kernel = true;
    body.op = op;
    body.runs = 0;
    body.noting = true;
    body.most_cycles = 0;
    body.read_clock = false;
    body.ghz = clock_ghz(op->device, op->start);
    sim_clock_reads = 0;
    memset(&thread, 0, sizeof thread);
    thread.index = -1;
    gridDim = launch->grid;
    blockDim = launch->block;
    if (sigsetjmp(escape, 1) == 0) {
        for (unsigned z = 0; z < gridDim.z; z++)
            for (unsigned y = 0; y < gridDim.y; y++)
                for (unsigned x = 0; x < gridDim.x; x++) {
                    blockIdx = (uint3){x, y, z};
                    launch->run_block(launch->function, launch->args);
                }
    } else
        op->fault = cudaErrorIllegalAddress;
    sim.in_kernel = false;
    fiber_current = -1;
    op->ran = true;
}

static uint64_t launch_key(const struct op *op) {
    const struct sim_launch *l = op->launch;
    const uint64_t part[] = {(uintptr_t)l->function, l->grid.x, l->grid.y, l->grid.z,
                             l->block.x, l->block.y, l->block.z, l->shared};
    uint64_t key = l->args_hash;
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
        key = (key ^ part[i]) * 1099511628211u;
    return key ^ key >> 29;
}

// A pointer to memory that no device can reach. (A NULL or stale one faults when it is used.)
static bool pageable(const void *pointer) {
    return pointer != NULL && allocation_at(pointer) == NULL;
}

static struct after *snapshot(const struct op *op) {
    struct after *after = NULL;
    for (int i = 0; i < op->launch->accesses; i++) {
        struct allocation *a = allocation_at(op->launch->access[i].pointer);
        if (a == NULL || !op->launch->access[i].writes)
            continue;
        bool twice = false;
        for (int k = 0; after != NULL && k < after->count; k++)
            twice |= after->part[k].base == a->base;
        if (twice)
            continue;
        if (after == NULL)
            after = calloc(1, sizeof *after);
        int k = after->count++;
        after->part[k].base = a->base;
        after->part[k].bytes = a->bytes;
        after->part[k].before = malloc(a->bytes);
        allocation_open(a->base);
        memcpy(after->part[k].before, a->base, a->bytes);
    }
    return after;
}

static void take_back(struct after *after) {
    for (int k = 0; k < after->count; k++) {
        size_t bytes = after->part[k].bytes;
        after->part[k].after = malloc(bytes);
        memcpy(after->part[k].after, after->part[k].base, bytes);
        memcpy(after->part[k].base, after->part[k].before, bytes);
    }
}

static void put_in_place(struct after *after) {
    for (int k = 0; k < after->count; k++) {
        char *base = after->part[k].base;
        allocation_open(base);
        // Only what the body changed: the rest may have been written by others since.
        for (size_t i = 0; allocation_at(base) != NULL && i < after->part[k].bytes; i++)
            if (after->part[k].after[i] != after->part[k].before[i])
                base[i] = after->part[k].after[i];
        free(after->part[k].before);
        free(after->part[k].after);
    }
    after->count = 0;
}

void kernel_begin(struct op *op) {
    const struct sim_launch *launch = op->launch;
    struct kernel *kernel = op->kernel;
    double bytes = 0.0;
    bool writes = false;
    for (int i = 0; i < launch->accesses; i++) {
        const struct allocation *a = allocation_at(launch->access[i].pointer);
        if (a != NULL)
            bytes += (double)(a->base + a->bytes - (char *)(uintptr_t)launch->access[i].pointer);
        writes |= a != NULL && launch->access[i].writes;
        if (pageable(launch->access[i].pointer)) {
            if (op->fault == cudaSuccess)
                fprintf(stderr, "sim: %s (%s:%d): its pointer argument number %d is pageable "
                        "host memory, which the device cannot reach\n", op->name,
                        op->site.file, op->site.line, i + 1);
            op->fault = cudaErrorIllegalAddress;
        }
    }
    op->demand = 0.0;
    op->block_us = 0.0;
    if (op->fault != cudaSuccess)
        return;
    uint64_t key = launch_key(op);
    size_t place = key % CACHE;
    int64_t cycles = 0;
    bool plain = kernel->plain;
    if (writes && !plain && !kernel->unsteady && cache[place].known && cache[place].key == key)
        cycles = cache[place].cycles;
    else if (!plain || !writes) {
        op->after = snapshot(op);
        run_body(op);
        cycles = body.most_cycles;
        kernel->plain = plain = !body.read_clock;
        if (op->after != NULL) {
            take_back(op->after);
            cache[place].key = key;
            cache[place].known = true;
            cache[place].cycles = cycles;
        }
    }
    if (cycles > 0 || !plain)
        op->block_us = (double)cycles / (1e3 * clock_ghz(op->device, op->start));
    else if (bytes > 0.0) {
        op->block_us = bytes / (1e3 * param.memory_gbps);
        op->demand = 1.0;
    }
}

void kernel_effects(struct op *op) {
    const struct sim_launch *launch = op->launch;
    struct allocation *small[SIM_ARGS_MAX];
    char *copies[SIM_ARGS_MAX];
    bool wrote[SIM_ARGS_MAX];
    for (int i = 0; i < launch->accesses; i++) {
        small[i] = launch->access[i].writes ? allocation_at(launch->access[i].pointer) : NULL;
        wrote[i] = launch->access[i].writes;
        copies[i] = NULL;
        if (small[i] == NULL || small[i]->bytes > SMALL_BYTES || op->fault != cudaSuccess)
            continue;
        allocation_open(small[i]->base);
        copies[i] = malloc(small[i]->bytes);
        memcpy(copies[i], small[i]->base, small[i]->bytes);
    }
    if (op->fault == cudaSuccess) {
        if (op->after != NULL)
            put_in_place(op->after);
        else if (!op->ran) {
            run_body(op);
            double us = (double)body.most_cycles / (1e3 * clock_ghz(op->device, op->start));
            // Data decide how long it takes: from now on it runs at its start.
            if (fabs(us - op->block_us) > 0.01 && op->demand == 0.0)
                op->kernel->unsteady = true;
            op->kernel->plain &= !body.read_clock;
        }
    }
    for (int i = 0; i < launch->accesses; i++) {
        if (copies[i] != NULL) {
            wrote[i] = memcmp(copies[i], small[i]->base, small[i]->bytes) != 0;
            free(copies[i]);
        }
        order_access(op, launch->access[i].pointer, 1, wrote[i]);
    }
    if (op->fault != cudaSuccess)
        sticky_error(op->fault);
}
