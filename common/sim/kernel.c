// SPDX-License-Identifier: MIT
// Running kernels' bodies. A body runs on the CPU, thread by thread; the time that it takes
// comes from the clock readings it makes or, without any, from the bytes that it touches.
//
// Its length must be known at its start, but what it writes must become visible at its
// simulated end. So it runs at its start and is watched: its writes are taken back, and put in
// place at the end.
#define _GNU_SOURCE
#include "sim.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    READ_CYCLES = 30,        // between two readings of the clock in a tight loop
    FINENESS = 1024,         // a wait overshoots by at most one part in this,
    FIBER_FINENESS = 128,    // where there are barriers, in this: see __syncthreads
    RUNS_MAX = 64,
    KINDS = 4096,
};

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
_Alignas(256) char sim_dynamic_shared[256 << 10];
char sim_args[SIM_ARGS_BYTES];

// ---- The clock inside a kernel
// A loop that waits on the clock may run for 1e8 cycles, in every thread of a full grid, so the
// clock cannot tick by tick. Readings from one place in the code in a row are such a loop: each
// is later than the last by 1/FINENESS of the time spent in the loop so far. The first thread
// of a launch notes its loops; a thread that comes to the same loop at the same time is taken
// to its last two readings at once, since it leaves by the same one.
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

static uint64_t block_number(void) {
    return blockIdx.x + (uint64_t)gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z);
}

unsigned sim_smid(void) { return (unsigned)(block_number() % (unsigned)param.sms); }

static int64_t sm_offset(void) {
    // Different SMs' clocks do not agree: spread them by a fixed pattern. Blocks that share an
    // SM read its clock one after the other; lab 13 saw 31 cycles between them.
    return (int64_t)(sim_smid() * 2654435761u >> 12) +
           (int64_t)(block_number() / (unsigned)param.sms) * 31;
}

static int64_t read_clock(const void *place) {
    body.read_clock = true;
    if (place != thread.place) {
        run_ended();
        thread.place = place;
        thread.start = thread.cycles;
        thread.reads = 0;
        thread.index++;
    }
    thread.reads++;
    bool barriers = body.op->kernel->barriers;
    int64_t step = (thread.cycles - thread.start) / (barriers ? FIBER_FINENESS : FINENESS);
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

static void thread_begin(int64_t cycles, int index) {
    memset(&thread, 0, sizeof thread);
    thread.cycles = cycles;
    thread.index = index;
}

static void thread_end(void) {
    if (thread.cycles == 0)
        return;  // it has not read the clock
    run_ended();
    if (thread.cycles > body.most_cycles)
        body.most_cycles = thread.cycles;
    body.noting = false;
    thread_begin(0, -1);
}

static void device_only(const char *what) {
    if (!sim.in_kernel)
        die("%s was called by the host: it is a device function", what);
}

__attribute__((noinline)) long long clock64(void) {
    device_only("clock64");
    return read_clock(__builtin_return_address(0));
}

int64_t kernel_clock(const void *place) { return read_clock(place); }

__attribute__((noinline)) unsigned long long sim_globaltimer(void) {
    device_only("%globaltimer");
    read_clock(__builtin_return_address(0));
    double us = body.op->start + (double)thread.cycles / (1e3 * body.ghz);
    return (unsigned long long)(us * 1e3 / 32.0) * 32;  // it steps by 32 ns, as recorded
}

// rewrite.py puts one behind each `__shared__ T name[N];`.
void sim_static_shared(size_t bytes) {
    if (threadIdx.x + threadIdx.y + threadIdx.z + blockIdx.x + blockIdx.y + blockIdx.z == 0)
        body.static_shared += bytes;
}

void __nanosleep(unsigned ns) {
    device_only("__nanosleep");
    body.read_clock = true;
    thread.cycles += (int64_t)(ns * body.ghz);
}

// ---- Blocks whose threads meet at __syncthreads
// Each thread becomes a fiber that runs until the next barrier. So do those of the first block
// that a kernel ever runs, which shows whether it has barriers; if only later blocks have, its
// body begins again, in fibers.
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

static void fiber_main(void) {
    body.op->launch->run_thread(body.op->launch->function, sim_args);
    thread_end();
    fibers[fiber_current].cycles = 0;
    fibers[fiber_current].done = true;
}

void __syncthreads(void) {
    device_only("__syncthreads");
    body.op->kernel->barriers = true;
    if (fiber_current < 0)
        siglongjmp(escape, ESCAPE_BARRIER);
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

// Made at the start, so as not to lie where something has been freed, and with room on either
// side, lest an allocation pass for a thread's own variables. The room below is of use: threads
// without barriers, which end one by one, may need more than their own stacks.
void fibers_make(void) {
    size_t stacks = (size_t)FIBERS_MAX * FIBER_STACK;
    char *room = mmap(NULL, stacks + 2 * NEAR, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED ||
        mprotect(room + PAGE, NEAR - PAGE + stacks, PROT_READ | PROT_WRITE) != 0)
        die("no memory for the stacks of a block's threads");
    fibers = calloc(FIBERS_MAX, sizeof *fibers);
    fiber_stacks = room + NEAR;
}

static void block_in_fibers(void) {
    int count = (int)(blockDim.x * blockDim.y * blockDim.z), left = count;
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
            if (body.op->kernel->barriers) {
                thread_begin(barrier, RUNS_MAX);  // steps by itself: no notes, no jumps
                body.noting = false;
            }
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
static void on_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    char text[200];
    if (sim.in_kernel && number != SIGFPE) {
        if (!allocation_is_open(info->si_addr) && allocation_fault(info->si_addr))
            return;  // device memory is closed to the host, and opened where a kernel needs it
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
static void block_without_barriers(const struct sim_launch *launch) {
    for (unsigned z = 0; z < blockDim.z; z++)
        for (unsigned y = 0; y < blockDim.y; y++)
            for (unsigned x = 0; x < blockDim.x; x++) {
                threadIdx = (uint3){x, y, z};
                launch->run_thread(launch->function, sim_args);
                thread_end();
            }
}

static void run_blocks(const struct sim_launch *launch, struct kernel *kernel) {
    memcpy(sim_args, launch->args, launch->args_bytes);
    body.runs = 0;
    body.noting = true;
    body.most_cycles = 0;
    body.read_clock = false;
    body.static_shared = 0;
    thread_begin(0, -1);
    for (unsigned z = 0; z < gridDim.z; z++)
        for (unsigned y = 0; y < gridDim.y; y++)
            for (unsigned x = 0; x < gridDim.x; x++) {
                blockIdx = (uint3){x, y, z};
                if (kernel->barriers || !kernel->known)
                    block_in_fibers();
                else
                    block_without_barriers(launch);
                kernel->known = true;
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
        thread_end();  // it lasts until then
        break;
    case ESCAPE_BARRIER:
        watch_restore();
        // fall through
    default:
        run_blocks(op->launch, op->kernel);
    }
    sim.in_kernel = false;
    fiber_current = -1;
    if (op->fault == cudaSuccess)
        op->kernel->static_shared = body.static_shared;
}

// Out of a device's reach are pageable host memory and, without peer access, another device's
// memory. (NULL or a stale pointer faults when used.)
static bool reachable(const struct op *op) {
    for (int i = 0; i < op->launch->pointers; i++) {
        const void *pointer = op->launch->pointer[i];
        const struct allocation *a = allocation_at(pointer);
        bool peers = a != NULL && a->device != NULL && a->device != op->device && !a->symbol;
        if (peers ? op->device->peers >> a->device->id & 1
                  : pointer == NULL || a != NULL || !host_can_read(pointer))
            continue;
        const char *what = peers ? "another device's memory" : "pageable host memory";
        fprintf(stderr,
                "sim: %s (%s:%d): its pointer argument number %d is %s, "
                "which the device cannot reach\n",
                op->name, op->site.file, op->site.line, i + 1, what);
        return false;
    }
    return true;
}

// What the last launch of each kind touched. A body that depends only on what it read, and did
// not read what it wrote, need not run again as long as nobody has written to any of that.
static struct touched *last_of_kind[KINDS];

// Launches of one kernel with the same shape and arguments are of a kind.
static uint64_t kind_of(const struct sim_launch *l) {
    const dim3 grid = l->grid, block = l->block;
    const uint64_t part[] = {(uintptr_t)l->function, grid.x,  grid.y,  grid.z, l->shared,
                             block.x,                block.y, block.z};
    uint64_t kind = l->args_hash;
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
        kind = (kind ^ part[i]) * 1099511628211u;
    return kind ^ kind >> 29;
}

static bool unchanged(const struct touched *t) {
    for (int i = 0; i < t->allocations; i++)
        if (t->in[i].version != t->in[i].allocation->version)
            return false;
    return true;
}

static void run_watched(struct op *op, uint64_t kind) {
    struct touched **last = &last_of_kind[kind % KINDS];
    run_body(op, true);
    op->touched = watch_end(&op->pages);
    op->touched->kind = kind;
    op->touched->pure &= !body.read_clock;
    op->touched->users++;
    touched_release(*last);
    *last = op->touched;
}

// Sets how long a block takes, or how long the whole takes at full bandwidth (demand > 0).
void kernel_begin(struct op *op) {
    op->demand = op->block_us = 0.0;
    body.read_clock = false;
    if (!reachable(op))
        op->fault = cudaErrorIllegalAddress;
    else if (!op->launch->touches)
        run_body(op, false);
    else {
        uint64_t kind = kind_of(op->launch);
        struct touched *last = last_of_kind[kind % KINDS];
        op->repeated = last != NULL && last->kind == kind && last->pure && unchanged(last);
        if (op->repeated) {
            op->touched = last;
            last->users++;
        } else
            run_watched(op, kind);
    }
    if (body.read_clock)
        op->block_us = (double)body.most_cycles / (1e3 * body.ghz);
    else if (op->touched != NULL) {
        op->block_us = op->touched->bytes / (1e3 * param.memory_gbps);
        op->demand = op->touched->bytes > 0.0 ? 1.0 : 0.0;
    }
}

void kernel_effects(struct op *op) {
    struct touched *t = op->touched;
    bool same = t != NULL && unchanged(t);
    if (op->fault == cudaSuccess && op->repeated && !same)
        run_body(op, false);
    if (op->fault == cudaSuccess)
        pages_put_in_place(op->pages);
    else
        pages_free(op->pages);
    op->pages = NULL;
    for (int i = 0; t != NULL && i < t->spans; i++) {
        const struct range *bytes = &t->span[i].bytes;
        order_access(op, bytes->begin, (size_t)(bytes->end - bytes->begin), t->span[i].written);
    }
    for (int i = 0; t != NULL && i < t->allocations; i++) {
        struct allocation *a = t->in[i].allocation;
        a->version += t->in[i].written;
        // Where somebody has written to it meanwhile, the next launch must run.
        t->in[i].version = same ? a->version : UINT64_MAX;
    }
    if (op->fault != cudaSuccess)
        sticky_error(op->fault);
}
