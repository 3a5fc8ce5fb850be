// SPDX-License-Identifier: MIT
// Every clock that a program may read is the virtual one, and sleeping takes no real time.
#include "check.h"
#include <chrono>
#include <sched.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <thread>
#include <unistd.h>

__global__ void Read(long long *out) {
    out[0] = clock64();
    out[1] = (long long)clock();
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    out[2] = (long long)t;
    unsigned sm;
    asm("mov.u32 %0, %smid;" : "=r"(sm));
    out[3] = sm;
}

int main(void) {
    double wall = now_us(), cpu = cpu_us();
    auto steady = std::chrono::steady_clock::now();
    auto system = std::chrono::system_clock::now();
    struct timeval day, day2;
    time_t seconds = time(NULL);
    gettimeofday(&day, NULL);
    clock_t ticks = clock();
    sleep(100);
    usleep(500000);
    struct timespec half = {0, 500000000};
    nanosleep(&half, NULL);
    std::this_thread::sleep_for(std::chrono::seconds(9));
    double slept = cpu_us() - cpu;
    printf("slept %.1f s, CPU %.1f s\n", (now_us() - wall) / 1e6, slept / 1e6);
    sim_host_work(2e9);
    gettimeofday(&day2, NULL);
    printf(
        "steady %.1f\n",
        std::chrono::duration<double>(std::chrono::steady_clock::now() - steady).count());
    printf(
        "system %.1f\n",
        std::chrono::duration<double>(std::chrono::system_clock::now() - system).count());
    printf("time %ld\n", (long)(time(NULL) - seconds));
    printf("day %.1f\n", (double)(day2.tv_sec - day.tv_sec) +
                             1e-6 * (double)(day2.tv_usec - day.tv_usec));
    printf("worked CPU %.1f s\n", (cpu_us() - cpu) / 1e6);
    printf("clock %.1f\n", (double)(clock() - ticks) / CLOCKS_PER_SEC);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("rusage %ld\n", (long)usage.ru_utime.tv_sec);
    wall = now_us();
    for (int i = 0; i < 1000; i++)
        now_us();
    printf("clock read %.0f ns\n", 1e3 * (now_us() - wall) / 1001);
    sched_yield();
    long long *d, h[4];
    CHECK(cudaMalloc(&d, sizeof h));
    Read<<<3, 1>>>(d);
    CHECK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    printf("device clock moves %d\n", h[1] > h[0]);
    printf("globaltimer step %lld\n", h[2] % 32);
    printf("smid %lld\n", h[3]);
    return 0;
}
