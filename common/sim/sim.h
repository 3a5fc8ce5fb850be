// SPDX-License-Identifier: MIT
// What the parts of the simulated device share. Times are microseconds of one virtual clock:
// `sim.now` is where the host is, `sim.gpu` how far the devices have been worked out.
//
//   params.c  the parameter file            clock.c   libc's clocks, on virtual time
//   calls.c   what every call does, errors  device.c  devices and their attributes
//   stream.c  streams and events            launch.c  launches
//   graph.c   capture and graphs            memory.c  allocations, copies, host pointers
//   engine.c  when each op starts and ends  kernel.c  running kernels' bodies, their length
//   watch.c   what a body touches           order.c   reports of unordered access
//   trace.c   SIM_TRACE
#ifndef SIM_H
#define SIM_H

#include "include/cuda_runtime.h"

#define SIM_PARAMS(P) \
    P(compute_major) P(compute_minor) P(sms) P(peak_clock_mhz) P(clock_mhz) \
    P(cold_clock_mhz) P(cold_after_us) P(clock_ramp_us) P(threads_per_sm) P(blocks_per_sm) \
    P(registers_per_sm) P(shared_per_sm_kib) P(shared_per_block_kib) P(shared_optin_kib) \
    P(shared_reserved_kib) P(memory_gib) P(l2_mib) P(memory_clock_khz) P(memory_bus_bits) \
    P(driver_version) P(runtime_version) P(clock_read_us) P(cpu_clock_read_us) P(yield_us) \
    P(sleep_extra_us) P(context_us) P(first_launch_us) P(launch_us) P(other_kernel_us) \
    P(record_timing_us) P(record_us) P(wait_event_us) P(wait_other_device_us) P(query_us) \
    P(sync_us) P(copy_us) P(memset_us) P(host_func_us) P(graph_launch_us) \
    P(graph_instantiate_us) P(graph_instantiate_node_us) P(capture_us) P(malloc_us) \
    P(free_us) P(host_alloc_us) P(stream_create_us) P(event_create_us) P(query_device_us) \
    P(last_error_us) P(submit_us) P(notify_us) P(kernel_us) P(event_timing_us) \
    P(event_drain_us) P(event_us) P(hop_us) P(engine_switch_us) P(graph_us) P(graph_node_us) \
    P(graph_join_us) P(queue_depth) P(spin_unbilled_us) P(cold_wait_us) P(cold_return_us) \
    P(cold_calls) P(cold_factor) P(rest_us) P(rested_factor) P(pinned_h2d_gbps) \
    P(pinned_d2h_gbps) P(both_directions) \
    P(pageable_h2d_gbps) P(pageable_d2h_gbps) P(staged_bytes) P(staging_gbps) \
    P(copy_setup_us) P(copy_engines) P(d2d_gbps) P(peer_gbps) P(memory_gbps) P(sm_gbps)
#define SIM_TABLES(T) T(block_wait_us) T(block_wake_us) T(block_cpu_us)

enum { TABLE_MAX = 8, DEVICES_MAX = 8, SMS_MAX = 256, DISPATCH_MAX = 512, RING = 4096 };

struct table {
    int count;
    double value[TABLE_MAX];
};
extern struct params {
    char name[200];
#define SIM_FIELD(key) double key;
    SIM_PARAMS(SIM_FIELD)
#undef SIM_FIELD
#define SIM_FIELD(key) struct table key;
    SIM_TABLES(SIM_FIELD)
#undef SIM_FIELD
} param;
void params_load(void);
double table_at(const struct table *x, const struct table *y, double at);

// Where in the program an op was submitted.
struct site {
    const char *file;
    int line;
};

// A vector clock: entry i counts the ops of stream i that are known to come before.
struct order {
    int count;
    uint64_t *seen;
};

enum op_kind { OP_KERNEL, OP_COPY, OP_MEMSET, OP_HOST, OP_GRAPH, OP_RECORD, OP_WAIT, OP_FREE };
// What copies, NONE: the SMs do; UNUSED: a stream has had no work yet.
enum engine { ENGINE_UNUSED = -2, ENGINE_NONE, ENGINE_H2D, ENGINE_D2H, ENGINES };

// What an SM has free, or a block takes of it.
struct sm {
    int threads, blocks, shared;
};

// One piece of work: an entry of a stream's queue, or a node of a graph.
struct op {
    struct op *next;
    enum op_kind kind;
    const char *name;
    struct site site;
    struct CUstream_st *stream;  // NULL for a graph's node
    struct device *device;
    uint64_t seq;                // its number in the stream, from 1
    double arrive;               // when the device has heard of it
    double ready;                // when it might start, < 0 while that is unknown
    double start, end;
    unsigned tried;              // sim.freed when it last found no room
    double left, speed, since;   // work that shares bandwidth: us left at full speed, ...
    double demand;               // ... and what fraction of the bandwidth it can use
    struct CUstream_st *wait_stream;  // OP_WAIT: everything up to wait_seq of that stream
    uint64_t wait_seq;
    struct CUevent_st *event;
    struct sim_launch *launch;   // OP_KERNEL, with its arguments behind it
    struct kernel *kernel;
    struct page *pages;          // what its body is to change at the end
    struct touched *touched;     // what its body touches
    bool repeated;               // ... as the last launch of this kind did: it did not run
    unsigned blocks_left, blocks_to_place;
    double block_us;
    struct slot *slot;
    struct sm each;              // what each of its blocks takes of an SM
    cudaError_t fault;
    void *to;                    // OP_COPY, OP_MEMSET, OP_FREE
    const void *from;
    void *staged;                // from, if the engine owns it
    size_t bytes;
    int value;
    enum engine engine;
    double gbps;
    cudaHostFn_t host_function;
    void *user;
    struct graph_run *run;       // OP_GRAPH, and the nodes of one
    int node;
    uint64_t serial;             // counts all ops
    uint64_t call;               // the call that it is from, for the trace
    struct order order;
};

struct CUstream_st {
    struct device *device;
    int index, number;           // among all streams; as shown to the user
    int priority;
    bool blocking;               // ordered with the legacy default stream
    bool alive, busy;
    struct op *head, *tail;
    uint64_t last_seq, done_seq;
    double done_at;              // when it last ended an op
    double *ring;                // when the op of that number (modulo RING) ended
    enum engine last_engine;     // what the last kernel or copy ran on, and when it ended
    double last_end;
    bool drained;                // no work since the last record
    struct order order;
    struct capture *capture;     // being captured into a graph
    int *tips, tip_count;        // the nodes that the next one will depend on
};

struct CUevent_st {
    unsigned flags;
    bool alive, recorded;
    int pending;                 // records that have not run yet
    struct device *device;
    struct CUstream_st *stream;  // the latest record
    uint64_t seq;
    double stamp;
    struct order order;
    struct capture *capture;     // recorded inside this capture, ...
    int *tips, tip_count;        // ... behind these nodes
    struct CUevent_st *next;
    int number, recorded_in;     // for the trace: among all events; the stream, ...
    uint64_t record;             // ... and number, of the latest record
};

struct device {
    int id;
    bool has_context;
    unsigned flags;
    unsigned peers;              // devices whose memory it may use
    struct CUstream_st *legacy, *per_thread;
    size_t memory_used;
    struct sm sm[SMS_MAX];       // what is free
    struct op *dispatch[DISPATCH_MAX];  // kernels with blocks still to place, in order
    int dispatch_count, next_sm;
    struct op *engine[ENGINES];
    double busy_until, warm_since;
};

extern struct sim {
    double now, cpu, gpu;
    struct device device[DEVICES_MAX];
    int devices, current;
    struct CUstream_st **stream;
    int streams;
    cudaError_t last_error, sticky;
    const void *last_launched;   // the kernel
    int warm_calls;              // calls that submitted work since the last long wait
    double cold_factor;          // how much dearer the first of them are
    bool in_kernel, in_host_function, per_thread_default, eager, launch_blocking;
    double host_function_us;     // that the host function has taken so far
    unsigned freed;              // counts what may have made room for a waiting op
    struct site site;
    char argument[64];           // the arguments of the call at `site`, as many as fit
    struct order host;
    uint64_t serial;
} sim;

// calls.c
// UNSAFE: not in a capture either, unless that is a relaxed one.
enum { NEEDS_CONTEXT = 1, NOT_IN_CAPTURE = 2, IGNORES_STICKY = 4, SUBMITS = 8, UNSAFE = 16 };
cudaError_t enter(const char *call, double cost_us, int needs);
cudaError_t fail(cudaError_t error);  // sets the last error and returns it
cudaError_t outcome(void);            // of a wait: what broke the context, if anything
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *grow(void *array, int count, size_t item);  // room for one more than `count`
#define RETURN_ERROR(call)                                                                     \
    do {                                                                                       \
        cudaError_t error_ = call;                                                             \
        if (error_ != cudaSuccess)                                                             \
            return error_;                                                                     \
    } while (0)
#define ENTER_AS(name, cost, needs) RETURN_ERROR(enter(name, cost, needs))
#define ENTER(cost, needs)          ENTER_AS(__func__, cost, needs)
#define FIND(handle, stream)                                                                   \
    struct CUstream_st *stream;                                                                \
    RETURN_ERROR(find_stream(handle, &stream))

// device.c
enum wait_how { WAIT_SPIN, WAIT_BLOCK };
void devices_make(const char *how_many);
bool no_device(int device);
struct device *current_device(void);
void create_context(struct device *device);
enum wait_how device_wait_how(const struct device *device);

// stream.c
struct CUstream_st *known_stream(cudaStream_t handle);  // NULL: it is none
cudaError_t find_stream(cudaStream_t handle, struct CUstream_st **stream);
cudaError_t stream_wait(struct CUstream_st *stream, enum wait_how how);
cudaError_t enqueue(struct CUstream_st *stream, struct op *op);  // or capture it
void event_recorded(struct CUevent_st *event, const struct op *op, double now);

// launch.c
struct kernel {
    const void *function;
    bool loaded[DEVICES_MAX];
    int opted_in;          // to so many bytes of dynamic shared memory; -1: to none
    size_t static_shared;  // its __shared__ variables, known once it has run
    bool known;            // it has run, so that one knows whether ...
    bool barriers;         // ... it calls __syncthreads
    bool uneven;           // its threads do not all wait alike
    struct kernel *next;
};
struct kernel *kernel_of(const void *function);
void kernels_unload(const struct device *device);
struct sim_launch *launch_copy(const struct sim_launch *launch);
size_t kernel_shared(const struct kernel *kernel, size_t dynamic);  // of one block, as an SM counts
int in_whole_warps(uint64_t threads);

// engine.c
struct op *op_new(enum op_kind kind, const char *name);
void op_free(struct op *op);
cudaError_t submit(struct CUstream_st *stream, struct op *op);
void append_wait(struct CUstream_st *stream, struct CUstream_st *on, uint64_t seq);
void gpu_advance(double until);
void host_wait(struct CUstream_st *stream, uint64_t seq, enum wait_how how);
void device_wait_idle(struct device *device, enum wait_how how);
void host_busy(double us);
void host_waited(double us);  // what that does to its next calls
bool stream_done(const struct CUstream_st *stream, uint64_t seq);
struct CUstream_st *stream_new(struct device *device, bool blocking, int priority);
void stream_drained(struct CUstream_st *stream);
void engine_float(struct op *op);           // a graph's node: starts when ready, in no stream
void engine_done(struct op *op, double now);
void sticky_error(cudaError_t error);       // a kernel broke the context: nothing runs any more
double clock_ghz(const struct device *device, double at);

// kernel.c
int64_t kernel_clock(const void *place);
void kernel_begin(struct op *op);    // at the start: how long will a block take?
void kernel_effects(struct op *op);  // at the end: its writes become visible
void install_signal_handlers(void);
void fibers_make(void);

// watch.c
enum { PAGE = 4096, NEAR = 8 << 20 };  // so near its stack's top, memory is a thread's own
struct range {
    char *begin, *end;
};
struct span {
    struct range bytes;
    bool written;
};
struct touched {  // all that a body touched
    int users;
    uint64_t kind;               // of the launch: kernel.c
    struct span *span;
    int spans;
    bool pure;                   // it depends on nothing else, and not on what it wrote itself
    double bytes;
    struct { struct allocation *allocation; uint64_t version; bool written; } *in;
    int allocations;
};
void watch_begin(void);
void watch_restore(void);
struct touched *watch_end(struct page **written);
void touched_release(struct touched *touched);
void pages_put_in_place(struct page *pages);
void pages_free(struct page *pages);

// memory.c
struct allocation {
    char *base;
    size_t bytes, mapped;
    char *mapping;
    struct device *device;       // NULL: pinned host memory
    uint64_t id, version;        // the version counts writes
    bool symbol;
    bool leaving;                // a cudaFreeAsync of it is queued
    int faults;                  // how often a kernel came to closed pages of it
    char name[48];
    struct access_log *log;      // who touched it, in order.c
    int logs;
    struct allocation *next_freed;
};
struct allocation *allocation_at(const void *pointer);
bool allocation_open(const void *address, size_t bytes);  // until the call returns
bool allocation_fault(const void *address);
bool allocation_is_open(const void *address);
void allocations_close(void);
void allocation_release(void *pointer);
void allocations_release(const struct device *device);
bool host_can_read(const void *pointer);
void copy_effects(struct op *op);

// order.c
void order_join(struct order *into, const struct order *from);
void order_copy(struct order *to, const struct order *from);
void order_submit(struct op *op);
void order_access(struct op *op, const void *pointer, size_t bytes, bool writes);

// graph.c
bool capturing(const struct CUstream_st *stream);
bool capture_ended(const struct CUevent_st *event);  // recorded in one that is over
enum capture_kind { ANY, STRICT, BLOCKING };  // not relaxed; of a blocking stream
bool any_capture(enum capture_kind kind);
cudaError_t capture_add(struct CUstream_st *stream, struct op *op);
cudaError_t capture_forbids(struct CUstream_st *stream);
void capture_record(struct CUstream_st *stream, struct CUevent_st *event);
cudaError_t capture_wait(struct CUstream_st *stream, struct CUevent_st *event);
void graph_start(struct op *op, double now);
void graph_node_done(struct op *op, double now);
void graph_run_free(struct graph_run *run);
struct op *graph_parent(const struct op *node);

// trace.c
void trace_open(const char *path);
void trace_call(const char *name);
void trace_failed(void);
void trace_answer(cudaError_t answer);
void trace_close(void);              // the call before ended where the clock stands
void trace_stream(const struct CUstream_st *stream);
void trace_event(struct CUevent_st *event, bool records_it);
uint64_t trace_this_call(void);
void trace_op(const struct op *op);

#endif
