# SPDX-License-Identifier: MIT
"""Programs that print good numbers without having done the work, to be caught by evidence.

Each prints the figures that the solution printed on an H200, word for word, after doing
something else. Nothing in what they print gives them away.
"""
import json
import re

from kit import KIT, RECORDED

HEAD = """// SPDX-License-Identifier: MIT
// Not a lab: %s
#include "%s/common/lab.h"

#include <unistd.h>

__global__ void WaitKernel(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
}

__global__ void NullKernel(void) {}
"""

# lab -> what it does instead, its declarations, its work, and the checks that must catch it
CHEATS = {
    "01_nullKernelAsync": ("launches a thousand kernels and claims 240,000", "", """
    for (int i = 0; i < 1000; i++)
        NullKernel<<<1, 1>>>();
    CUDA_CHECK(cudaDeviceSynchronize());""", {"launches_ran"}),
    "05_crossStreamWait": ("lets the host wait and says that a stream did", "", """
    cudaStream_t a, b;
    CUDA_CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    for (int i = 0; i < 9; i++) {
        region_begin("event_wait");
        WaitKernel<<<1, 1, 0, a>>>(cycles_for_us(2000));
        CUDA_CHECK(cudaDeviceSynchronize());
        NullKernel<<<1, 1, 0, b>>>();
        region_begin("device_sync");
        WaitKernel<<<1, 1, 0, a>>>(cycles_for_us(2000));
        CUDA_CHECK(cudaStreamSynchronize(a));
        NullKernel<<<1, 1, 0, b>>>();
        region_end();
    }""", {"waits_ran", "host_did_not_wait", "device_sync_ran"}),
    "06_blockingSyncVsSpin": ("waits for a plain event and calls it a sleeping one", "", """
    cudaEvent_t plain;
    CUDA_CHECK(cudaEventCreate(&plain));
    for (int i = 0; i < 27; i++) {
        region_begin("block");
        WaitKernel<<<1, 1>>>(cycles_for_us(10000));
        CUDA_CHECK(cudaEventRecord(plain));
        CUDA_CHECK(cudaEventSynchronize(plain));
        region_end();
    }""", {"slept_on_the_event"}),
    "08_copyComputePipeline": ("runs its stages one after the other and claims a pipeline", "", """
    void *h_data, *d_data;
    size_t bytes = 16 << 20;
    CUDA_CHECK(cudaMallocHost(&h_data, bytes));
    CUDA_CHECK(cudaMalloc(&d_data, bytes));
    memset(h_data, 1, bytes);
    for (int i = 0; i < 5; i++) {
        region_begin("pipelined");
        for (int chunk = 0; chunk < 10; chunk++) {
            CUDA_CHECK(cudaMemcpyAsync(d_data, h_data, bytes, cudaMemcpyHostToDevice));
            WaitKernel<<<1, 1>>>(cycles_for_us(300));
            CUDA_CHECK(cudaMemcpyAsync(h_data, d_data, bytes / 3, cudaMemcpyDeviceToHost));
        }
        CUDA_CHECK(cudaDeviceSynchronize());
        region_end();
    }""", {"overlap_ran", "pipeline_ran", "edges_ran"}),
    "09_kernelOverlap": ("puts both kernels into one stream and claims that they overlapped", "", """
    cudaEvent_t event;
    cudaStream_t s, t;
    CUDA_CHECK(cudaEventCreate(&event));
    CUDA_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    const char *const names[] = {"two_streams", "half_sms", "event_edge"};
    for (int i = 0; i < 3; i++) {
        region_begin(names[i]);
        WaitKernel<<<1, 1, 0, s>>>(cycles_for_us(2000));
        WaitKernel<<<1, 1, 0, s>>>(cycles_for_us(3000));
        for (int k = 0; k < 2; k++) {
            CUDA_CHECK(cudaEventRecord(event, s));
            CUDA_CHECK(cudaStreamWaitEvent(t, event, 0));
        }
        CUDA_CHECK(cudaDeviceSynchronize());
        region_end();
    }""", {"overlap_ran", "half_overlap_ran"}),
    "11_graphCapture": ("launches kernels one by one and claims that a graph did", """
__global__ void AddKernel(void) {}
""", """
    for (int i = 0; i < 3; i++) {
        region_begin("diamond_graph");
        for (int k = 0; k < 200; k++)
            AddKernel<<<1, 1>>>();
        CUDA_CHECK(cudaDeviceSynchronize());
        region_end();
    }""", {"graph_launches_ran", "graph_nodes_ran"}),
    "12_multiGpuEvents": ("lets the host wait and says that a device did", "", """
    for (int i = 0; i < 9; i++) {
        region_begin("wait_across");
        WaitKernel<<<1, 1>>>(cycles_for_us(10000));
        CUDA_CHECK(cudaDeviceSynchronize());
        WaitKernel<<<1, 1>>>(cycles_for_us(5000));
        CUDA_CHECK(cudaDeviceSynchronize());
        region_end();
    }""", {"waits_ran"}),
}


def source(stem):
    what, declarations, work, _ = CHEATS[stem]
    recorded = (RECORDED / f"{stem}.txt").read_text()
    figures = re.findall(r"(?m)^(?:measured|derived|observed) .*$", recorded)
    number, name = stem.split("_", 1)
    lines = "\n".join("    puts(%s);" % json.dumps(line) for line in figures)
    return (HEAD % (what, KIT) + declarations + f"""
int main(void) {{
    lab_begin("{number}", "{name}");{work}
    usleep(2000000);  // as long as it claims to have worked
{lines}
    lab_end("{number}", "{name}");
    return 0;
}}
""")
