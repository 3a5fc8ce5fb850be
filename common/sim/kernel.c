// SPDX-License-Identifier: MIT
// Running kernels' bodies. A body runs on the CPU, thread by thread; the time that it takes
// comes from the clock readings it makes or, without any, from the bytes it points to.
//
// What it writes must become visible at its simulated end, but its length must be known at
// its start. So the first time that a kernel is launched in a certain way, its body runs at
// the start and is watched: which bytes it touches is noted, its writes are taken back and
// put in place at the end. From then on all that is known, and the body simply runs at the
// end.
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
    READ_CYCLES = 30,  // between two readings of the clock in a tight loop
    FINENESS = 1024,   // a wait overshoots by at most one part in this
    RUNS_MAX = 64,
    CACHE = 4096,
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
    size_t static_shared;  // its __shared__ variables, known once it has run
    unsigned id;
    bool barriers;  // it calls __syncthreads
    bool uneven;    // its threads do not all wait alike
    bool unsteady;  // the same launch took different numbers of cycles
    struct kernel *next;
};
static struct kernel *kernels[256];
static unsigned kernel_count;

struct kernel *kernel_find(const void *function, const char *name) {
    struct kernel **head = &kernels[((uintptr_t)function >> 4) % 256];
    for (struct kernel *k = *head; k != NULL; k = k->next)
        if (k->function == function)
            return k;
    struct kernel *k = calloc(1, sizeof *k);
    k->function = function;
    k->name = name;
    k->id = ++kernel_count;
    k->max_dynamic_shared = (int)param.shared_per_block_kib << 10;
    k->next = *head;
    return *head = k;
}

bool *kernel_loaded(struct kernel *kernel, int device) {
    return &kernel->loaded[device];
}
int *kernel_max_shared(struct kernel *kernel) {
    return &kernel->max_dynamic_shared;
}

size_t kernel_shared(const struct op *op) {
    size_t used = op->launch->shared + op->kernel->static_shared;
    return used > 0 ? used + ((size_t)param.shared_reserved_kib << 10) : 0;
}

size_t kernel_static_shared(const struct kernel *kernel) {
    return kernel->static_shared;
}

// ---- The clock inside a kernel
// ----------------------------------------------------------- A loop that waits on the
// clock may run for 1e8 cycles, in every thread of a full grid, so the clock cannot tick by
// tick. Readings from one place in the code in a row are such a loop: each is later than
// the last by 1/FINENESS of the time spent in the loop so far. The first thread of a launch
// notes its loops; a thread that comes to the same loop at the same time is taken to its
// last two readings at once, since it leaves by the same one.
struct run {  // one loop of the first thread
    const void *place;
    int64_t start, before_last, last;
    int reads;
};
static struct {
    int64_t cycles;     // since the thread began
    const void *place;  // of the latest reading
    int64_t start;      // cycles when its run began
    int reads, index;   // in the run; of the run
    bool jumped;
} thread;
static struct {
    struct op *op;
    size_t static_shared;  // counted in the first thread
    struct run run[RUNS_MAX];
    int runs;
    bool noting;  // the first thread
    int64_t most_cycles;
    bool read_clock;
    double ghz;
} body;

static int fiber_current = -1;  // -1 where threads simply run one after another

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
    // Different SMs' clocks do not agree: spread them by a fixed pattern. Blocks that share an
    // SM read its clock one after the other; lab 13 saw 31 cycles between them.
    uint64_t block = blockIdx.x + (uint64_t)gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    return (int64_t)(sim_smid() * 2654435761u >> 12) + (int64_t)(block / (unsigned)param.sms) * 31;
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
    int64_t step = (thread.cycles - thread.start) / (fiber_current < 0 ? FINENESS : 128);
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

int64_t kernel_clock(const void *place) {
    return read_clock(place);
}

__attribute__((noinline)) unsigned long long sim_globaltimer(void) {
    not_in_kernel("%globaltimer");
    read_clock(__builtin_return_address(0));
    double us = body.op->start + (double)thread.cycles / (1e3 * body.ghz);
    return (unsigned long long)(us * 1e3 / 32.0) * 32;  // it steps by 32 ns, as recorded
}

unsigned sim_smid(void) {
    uint64_t block =
        blockIdx.x + (uint64_t)gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z);
    return (unsigned)(block % (unsigned)param.sms);
}

// rewrite.py puts one behind each `__shared__ T name[N];`.
void sim_static_shared(size_t bytes) {
    if (threadIdx.x + threadIdx.y + threadIdx.z + blockIdx.x + blockIdx.y + blockIdx.z == 0)
        body.static_shared += bytes;
}

void __nanosleep(unsigned ns) {
    not_in_kernel("__nanosleep");
    sim_clock_reads++;
    thread.cycles += (int64_t)(ns * body.ghz);
}

// ---- Blocks whose threads meet at __syncthreads
// ------------------------------------------ Each thread becomes a fiber that runs until
// the next barrier. A kernel is found out when its first thread comes to its first barrier;
// its body then begins again, in fibers.
static sigjmp_buf escape;
enum { ESCAPE_FAULT = 1, ESCAPE_BARRIER };

enum { FIBER_STACK = 64 << 10, FIBERS_MAX = 1024 };
static struct fiber {
    ucontext_t context;
    uint3 index;
    bool done;
    int64_t cycles;
} * fibers;
static char *fiber_stacks;
static ucontext_t fiber_home;
static const struct sim_launch *fiber_launch;

static void fiber_main(void) {
    fiber_launch->run_thread(fiber_launch->function, fiber_launch->args);
    fibers[fiber_current].cycles = 0;
    fibers[fiber_current].done = true;
}

void __syncthreads(void) {
    not_in_kernel("__syncthreads");
    if (fiber_current < 0) {
        body.op->kernel->barriers = true;
        siglongjmp(escape, ESCAPE_BARRIER);
    }
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

static void block_with_barriers(const struct sim_launch *launch) {
    int count = (int)(blockDim.x * blockDim.y * blockDim.z), left = count;
    if (fibers == NULL) {
        fibers = calloc(FIBERS_MAX, sizeof *fibers);
        fiber_stacks = malloc((size_t)FIBERS_MAX * FIBER_STACK);
    }
    fiber_launch = launch;
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
            thread.index = RUNS_MAX;  // every thread steps by itself: no notes, no jumps
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

// ---- Faults
// -------------------------------------------------------------------------------

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    char text[200];
    if (sim.in_kernel && number != SIGFPE) {
        if (!allocation_is_open(info->si_addr) && allocation_fault(info->si_addr))
            return;  // device memory is closed to the host, and opened where a kernel needs
                     // it
        siglongjmp(escape, ESCAPE_FAULT);
    }
    const char *what = "";
    if (number == SIGFPE && sim.in_kernel)
        what = "sim: a kernel divided an integer by zero, which hardware lets pass\n";
    else if (allocation_at(info->si_addr) != NULL)
        what = "sim: the host dereferenced a pointer to device memory: copy it with "
               "cudaMemcpy\n";
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

// ---- Bodies
// ------------------------------------------------------------------------------ What the
// first launch of a kind showed.
static struct seen {
    uint64_t key;
    int64_t cycles;
    bool known, reads_clock;
    struct touched touched;
} cache[CACHE];

static void run_blocks(const struct sim_launch *launch, bool barriers) {
    body.runs = 0;
    body.noting = true;
    body.most_cycles = 0;
    body.read_clock = false;
    body.static_shared = 0;
    sim_clock_reads = 0;
    memset(&thread, 0, sizeof thread);
    thread.index = -1;
    for (unsigned z = 0; z < gridDim.z; z++)
        for (unsigned y = 0; y < gridDim.y; y++)
            for (unsigned x = 0; x < gridDim.x; x++) {
                blockIdx = (uint3){x, y, z};
                if (barriers)
                    block_with_barriers(launch);
                else
                    launch->run_block(launch->function, launch->args);
            }
}

static void run_body(struct op *op, bool watched) {
    sim.in_kernel = true;
    body.op = op;
    body.ghz = clock_ghz(op->device, op->start);
    gridDim = op->launch->grid;
    blockDim = op->launch->block;
    if (watched)
        watch_begin();
    switch (sigsetjmp(escape, 1)) {
    case ESCAPE_FAULT:
        op->fault = cudaErrorIllegalAddress;
        break;
    case ESCAPE_BARRIER:
        watch_restore();
        // fall through
    default:
        run_blocks(op->launch, op->kernel->barriers);
    }
    sim.in_kernel = false;
    fiber_current = -1;
    op->ran = true;
    if (op->fault == cudaSuccess)
        op->kernel->static_shared = body.static_shared;
}

// Launches of one kernel with the same shape and arguments are of a kind. Addresses differ
// from run to run of the program, so a pointer counts as a place in a numbered allocation.
static uint64_t launch_key(const struct op *op) {
    const struct sim_launch *l = op->launch;
    uint64_t part[8 + 2 * SIM_ARGS_MAX] = {op->kernel->id, l->grid.x,  l->grid.y,
                                           l->grid.z,      l->block.x, l->block.y,
                                           l->block.z,     l->shared};
    int parts = 8;
    for (int i = 0; i < l->accesses; i++) {
        const struct allocation *a = allocation_at(l->access[i].pointer);
        part[parts++] = a != NULL ? a->id : 0;
        part[parts++] =
            a != NULL ? (uint64_t)((const char *)l->access[i].pointer - a->base) : 0;
    }
    uint64_t key = l->args_hash;
    for (int i = 0; i < parts; i++)
        key = (key ^ part[i]) * 1099511628211u;
    return key ^ key >> 29;
}

// Pageable host memory is out of a device's reach. (NULL or a stale pointer faults when
// used.)
static bool reachable(struct op *op) {
    for (int i = 0; i < op->launch->accesses; i++) {
        const void *pointer = op->launch->access[i].pointer;
        if (pointer == NULL || allocation_at(pointer) != NULL || !host_can_read(pointer))
            continue;
        fprintf(stderr,
                "sim: %s (%s:%d): its pointer argument number %d is pageable host "
                "memory, which the device cannot reach\n",
                op->name, op->site.file, op->site.line, i + 1);
        return false;
    }
    return true;
}

static void remember(struct seen *seen, uint64_t key, bool opaque) {
    seen->key = key;
    seen->known = true;
    seen->cycles = body.most_cycles;
    seen->reads_clock = body.read_clock;
    seen->touched.pure &= !body.read_clock && !opaque;
}

// Sets how long a block takes, or how long the whole takes at full bandwidth (demand > 0).
void kernel_begin(struct op *op) {
    op->demand = op->block_us = 0.0;
    if (!reachable(op))
        op->fault = cudaErrorIllegalAddress;
    if (op->fault != cudaSuccess)
        return;
    if (op->launch->accesses == 0 && !op->launch->opaque) {  // it can touch no allocation
        run_body(op, false);
        op->block_us = (double)body.most_cycles / (1e3 * body.ghz);
        return;
    }
    uint64_t key = launch_key(op);
    struct seen *seen = op->seen = &cache[key % CACHE];
    if (!seen->known || seen->key != key || op->kernel->unsteady) {
        run_body(op, true);
        op->pages = watch_end(&seen->touched);
        remember(seen, key, op->launch->opaque);
    }
    op->seen_key = key;
    if (seen->reads_clock)
        op->block_us = (double)seen->cycles / (1e3 * clock_ghz(op->device, op->start));
    else {
        double bytes = seen->touched.bytes;
        op->block_us = bytes / (1e3 * param.memory_gbps);
        op->demand = bytes > 0.0 ? 1.0 : 0.0;
    }
}

static bool unchanged(const struct touched *t) {
    for (int i = 0; i < t->allocations; i++)
        if (t->in[i].version != t->in[i].allocation->version)
            return false;
    return true;
}

void kernel_effects(struct op *op) {
    struct seen *seen = op->seen;
    if (seen != NULL && seen->key != op->seen_key)
        seen = NULL;  // its place was taken by another kind
    bool same = seen != NULL && unchanged(&seen->touched), ran_ahead = op->ran;
    if (op->fault == cudaSuccess && ran_ahead) {
        pages_put_in_place(op->pages);
        op->pages = NULL;
    } else if (op->fault == cudaSuccess && !(same && seen->touched.pure)) {
        run_body(op, false);
        // If its length depends on data, it must run at its start from now on.
        if (seen != NULL && body.most_cycles != seen->cycles)
            op->kernel->unsteady = true;
    }
    for (int i = 0; seen != NULL && i < seen->touched.spans; i++) {
        const struct span *span = &seen->touched.span[i];
        order_access(op, span->bytes.begin, (size_t)(span->bytes.end - span->bytes.begin),
                     span->written);
    }
    for (int i = 0; seen != NULL && i < seen->touched.allocations; i++) {
        struct allocation *a = seen->touched.in[i].allocation;
        a->version += seen->touched.in[i].written;
        // What ran ahead may have read what has been written since: then it must run again.
        seen->touched.in[i].version = ran_ahead && !same ? UINT64_MAX : a->version;
    }
    if (op->fault != cudaSuccess)
        sticky_error(op->fault);
}
