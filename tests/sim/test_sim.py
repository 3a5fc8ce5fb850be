#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of the simulated device: builds the small programs of this folder and runs them.

    python3 tests/sim/test_sim.py              everything
    python3 tests/sim/test_sim.py Facts -v     one class

SIM_SANITIZE=1 builds the engine with -fsanitize=address,undefined; CC and CXX are honoured.
"""

import atexit
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
SIM = os.path.join(TOP, "common", "sim")
sys.path.insert(0, SIM)
import rewrite  # noqa: E402

SANITIZED = os.environ.get("SIM_SANITIZE", "") not in ("", "0")
_folder = tempfile.TemporaryDirectory()
atexit.register(_folder.cleanup)
BUILD = os.environ.get("SIM_TEST_BUILD", _folder.name)
_built = {}


def build(name, source=None):
    """The program of tests/sim/NAME.cu, or of the given text; and what the compiler said."""
    if name in _built:
        return _built[name]
    path = os.path.join("tests", "sim", name + ".cu")
    if source is not None:
        path = os.path.join(BUILD, name + ".cu")
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
    environment = dict(os.environ, SIM_OBJECTS=os.path.join(BUILD, "engine"))
    if SANITIZED:
        environment["SIM_CFLAGS"] = "-g -fsanitize=address,undefined"
    program = os.path.join(BUILD, name)
    made = subprocess.run(["sh", os.path.join("common", "sim", "build.sh"), path, program],
                          cwd=TOP, env=environment, capture_output=True, text=True)
    _built[name] = (program if made.returncode == 0 else None), made.stderr
    return _built[name]


def run(name, *arguments, source=None, **variables):
    """Runs a program; (exit status, standard output, standard error)."""
    program, messages = build(name, source)
    if program is None:
        raise AssertionError(messages)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SIM_", "CUDA_"))}
    done = subprocess.run([program, *arguments], env={**clean, **variables},
                          capture_output=True, text=True, timeout=120)
    error = "".join(line for line in done.stderr.splitlines(True)
                    if "ASan doesn't fully support makecontext" not in line)
    if ("Sanitizer" in error and "dereferenced" not in error) or "runtime error" in error:
        raise AssertionError(error)
    return done.returncode, done.stdout, error


def cpu_of_programs():
    """Seconds of processor time that the programs run so far have used."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def table(text):
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


class Builds(unittest.TestCase):
    def test_without_warnings(self):
        for name in sorted(os.listdir(HERE)):
            if name.endswith(".cu"):
                program, messages = build(name[:-3])
                self.assertIsNotNone(program, messages)
                self.assertEqual(messages, "", name)

    def test_what_is_not_modelled_is_named(self):
        for call in ("cudaMallocManaged(&p, 4)", "cudaHostRegister(p, 4, 0)",
                     "cudaIpcOpenMemHandle(&p, h, 0)"):
            source = ("#include <cuda_runtime.h>\nint main(void) { void *p = 0; int h = 0;\n"
                      f"(void)h; return {call}; }}\n")
            name = call.split("(")[0]
            program, messages = build("lacks_" + name, source)
            self.assertIsNone(program, call)
            self.assertIn(name, messages)


class Returns(unittest.TestCase):
    EXPECTED = {
        "elapsed_never_recorded": "cudaErrorInvalidResourceHandle",
        "elapsed_disable_timing": "cudaErrorInvalidResourceHandle",
        "elapsed_output_untouched": "7",
        "elapsed_not_ready": "cudaErrorNotReady",
        "query_not_ready": "cudaErrorNotReady",
        "stream_query_not_ready": "cudaErrorNotReady",
        "not_ready_is_no_last_error": "cudaSuccess",
        "elapsed_swapped": "cudaSuccess",
        "elapsed_cross_stream": "cudaSuccess",
        "elapsed_capturing": "cudaErrorInvalidResourceHandle",
        "elapsed_captured": "cudaErrorInvalidValue",
        "query_captured": "cudaErrorCapturedEvent",
        "query_never_recorded": "cudaSuccess",
        "wait_never_recorded": "cudaSuccess",
        "synchronize_capturing": "cudaErrorStreamCaptureUnsupported",
        "end_capture_invalidated": "cudaErrorStreamCaptureInvalidated",
        "end_capture_elsewhere": "cudaErrorStreamCaptureUnmatched",
        "end_capture_unjoined": "cudaErrorStreamCaptureUnjoined",
        "end_capture_without": "cudaErrorIllegalState",
        "launch_2048": "cudaErrorInvalidValue",
        "launch_2048_again": "cudaSuccess",
        "launch_2048_synchronize": "cudaSuccess",
        "launch_empty_grid": "cudaErrorInvalidConfiguration",
        "peek_keeps": "cudaErrorInvalidConfiguration",
        "launch_too_much_shared": "cudaErrorInvalidValue",
        "launch_shared_opted_in": "cudaSuccess",
        "huge_malloc": "cudaErrorMemoryAllocation",
        "stray_stream": "cudaErrorInvalidResourceHandle",
        "stray_event": "cudaErrorInvalidResourceHandle",
        "bad_device": "cudaErrorInvalidDevice",
        "free_host_pointer": "cudaErrorInvalidValue",
        "copy_out_of_bounds": "cudaErrorInvalidValue",
        "copy_wrong_kind": "cudaErrorInvalidValue",
        "null_store_launch": "cudaSuccess",
        "null_store_synchronize": "cudaErrorIllegalAddress",
        "sticky_malloc": "cudaErrorIllegalAddress",
        "sticky_last_error": "cudaErrorIllegalAddress",
        "sticky_last_error_again": "cudaErrorIllegalAddress",
    }

    def test_one_device(self):
        status, out, _ = run("returns")
        seen = table(out)
        self.assertEqual(status, 0)
        self.assertAlmostEqual(float(seen.pop("elapsed_swapped_ms")), -1.0, delta=0.05)
        self.assertAlmostEqual(float(seen.pop("elapsed_cross_stream_ms")), -2.0, delta=0.05)
        self.assertEqual(seen, self.EXPECTED)

    def test_two_devices(self):
        status, out, _ = run("devices", SIM_DEVICES="2")
        self.assertEqual(status, 0)
        self.assertEqual(table(out), {
            "count": "2 cudaSuccess", "no_wait": "5 ms", "wait_across": "15 ms",
            "record_across": "cudaErrorInvalidResourceHandle",
            "elapsed_across": "cudaErrorInvalidResourceHandle",
            "query_across": "cudaSuccess", "synchronize_across": "cudaSuccess",
            "launch_across": "cudaSuccess", "where_the_stream_is": "cudaSuccess", "written": "7",
            "enable_twice": "cudaErrorPeerAccessAlreadyEnabled", "peer": "1 5"})

    def test_no_device(self):
        status, out, _ = run("devices", SIM_DEVICES="0")
        self.assertEqual((status, out), (77, "count 0 cudaErrorNoDevice\n"))


class Memory(unittest.TestCase):
    def test_bad_pointers_are_illegal_addresses(self):
        for way in ("null", "over", "far", "freed", "host", "deep"):
            status, out, error = run("faults", way)
            self.assertEqual(status, 0, way)
            self.assertIn("synchronize cudaErrorIllegalAddress\nafter cudaErrorIllegalAddress",
                          out, way)
            self.assertEqual("pageable host memory" in error, way == "host", error)

    def test_good_pointers_are_not(self):
        status, out, error = run("faults", "last")
        self.assertEqual((status, error), (0, ""))
        self.assertEqual(out.count("cudaSuccess"), 3)

    def test_host_dereference_says_so_and_dies(self):
        status, _, error = run("faults", "dereference")
        self.assertNotEqual(status, 0)
        self.assertIn("the host dereferenced a pointer to device memory", error)

    def test_features(self):
        _, out, _ = run("features")
        self.assertEqual(table(out), {
            "reverse": "1", "sum": "32640", "template": "42", "constant": "126",
            "atomic": "320", "symbol": "4", "struct": "6", "launch_kernel": "3.5", "again": "2466",
            "host_function_early": "0", "host_function": "1", "occupancy_threads": "2",
            "occupancy_blocks": "32", "occupancy_shared": "4", "turns_264": "1",
            "turns_265": "2", "shared_turns": "2", "roomy_660": "1",
            "roomy_661": "2", "priority_first": "1",
            "memory_taken": "1.04858e+06", "memset": "7", "memory_back": "1", "clock_khz": "1.98e+06",
            "name": "Simulated H200", "context_again": "1"})


class Corners(unittest.TestCase):
    def seen(self, corner, **variables):
        status, out, error = run("corners", corner, **variables)
        self.assertEqual((status, error), (0, ""))
        return out.split()

    def test_what_happens(self):
        invalid, illegal = "cudaErrorInvalidValue", "cudaErrorIllegalAddress"
        unsupported, implicit, end = (f"cudaErrorStreamCapture{w}" for w in (
            "Unsupported", "Implicit", "Invalidated"))
        for corner, expected in {
                "free_twice": ["free_async_again", invalid, "free_again", invalid,
                               "memset_behind_free", invalid, "free_once_gone", invalid,
                               "freed_under_memset", illegal],
                "fiber_stacks": ["fresh", "0"],
                "barriers": ["counted_first", "512", "counted_first", "1024", "counted", "2048"],
                "dead_context": ["launch_into_full_queue", illegal, "stopped", "1", "stored", "0",
                                 "peer_copy", illegal],
                "fault_takes_time": ["synchronize", illegal, "ms", "1"],
                "graphs": ["ms", "2"],
                "captures": ["malloc_global", unsupported, "end", end,
                             "malloc_relaxed", "cudaSuccess", "end", "cudaSuccess",
                             "legacy_beside_other", "cudaSuccess", "end", "cudaSuccess",
                             "legacy_beside_blocking", implicit, "end", end],
                "static_shared": ["opted_in", "cudaSuccess", "opted_in", "cudaSuccess",
                                  "more", invalid],
                "sizes": ["negative", "cudaErrorMemoryAllocation",
                          "negative_host", "cudaErrorMemoryAllocation"],
                "host_memory": ["host_to_host", "1", "memset_pinned", "7", "memset_async", "7"],
                "host_functions": ["polled_us", "500", "ms", "1", "host_error", invalid],
                "blocking_waits": ["same", "1"],
                "reset": ["free", invalid, "memory_back", "1", "loads_again", "1"]}.items():
            with self.subTest(corner):
                self.assertEqual(self.seen(corner), expected)

    def test_launch_blocking_tells_of_a_fault_at_once(self):
        self.assertEqual(self.seen("launch_blocking", CUDA_LAUNCH_BLOCKING="1")[1],
                         "cudaErrorIllegalAddress")

    def test_lazy_loading_orders_nothing(self):
        self.assertRegex(run("corners", "lazy_edge")[2],
                         r"unordered access: Static \(stream 2, .* writes what WaitStore \(stream 1,")

    @unittest.skipIf(SANITIZED, "sanitizers keep what is freed")
    def test_destroyed_streams_take_no_memory(self):
        self.assertEqual(self.seen("many_streams"), ["small", "1"])

    def test_another_devices_memory_needs_peer_access(self):
        _, out, error = run("corners", "peers", SIM_DEVICES="2")
        self.assertEqual(table(out), {"enabled": "cudaSuccess",
                                      "not_enabled": "cudaErrorIllegalAddress"})
        self.assertIn("another device's memory", error)

    def test_calls_are_counted_by_their_own_names(self):
        path = os.path.join(BUILD, "counts")
        self.seen("counted", SIM_COUNT=path)
        with open(path, encoding="utf-8") as file:
            counts = table(file.read())
        self.assertEqual({name: counts.get(name) for name in (
            "cudaMallocHost", "cudaMemset", "cudaMemcpyPeer", "cudaHostAlloc", "cudaMemsetAsync",
            "cudaMemcpyPeerAsync")}, {"cudaMallocHost": "2", "cudaMemset": "1",
                                      "cudaMemcpyPeer": "1", "cudaHostAlloc": None,
                                      "cudaMemsetAsync": None, "cudaMemcpyPeerAsync": None})

    def test_a_trace_has_answers_and_no_wait_of_lazy_loading(self):
        path = os.path.join(BUILD, "trace")
        self.seen("traced", SIM_TRACE=path)
        self.addCleanup(os.remove, path)
        with open(path, encoding="utf-8") as file:
            lines = [line.split("\t") for line in file.read().splitlines()]
        calls = {line[3]: line[6] for line in lines if line[0] == "C"}
        self.assertEqual(calls, {
            "cudaLaunchKernel": "0", "cudaEventRecord": "0", "cudaEventQuery": "600",
            "cudaMemset": "0", "cudaDeviceSynchronize": "0"})
        ends = {line[4]: (float(line[6]), float(line[7])) for line in lines if line[0] == "A"}
        self.assertGreater(ends["Late"][0], ends["Wait"][1])
        self.assertEqual([line for line in lines if line[:3] == ["T", "fact", "waits"]], [])


class Order(unittest.TestCase):
    def test_stale_without_an_edge_and_fresh_with_one(self):
        for how in ("none", "early", "purpose", "copy"):
            self.assertEqual(run("order", how)[1], "stale 32768 of 32768\n", how)
        for how in ("event", "chain", "query", "stream", "device", "legacy"):
            self.assertEqual(run("order", how)[1], "stale 0 of 32768\n", how)

    def test_reported_when_unordered(self):
        lines = {}
        with open(os.path.join(HERE, "order.cu"), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                lines[line.strip()] = number
        producer = lines["Producer<<<1, 256, 0, a>>>(d_data, round, cycles(1000));"]
        consumer = lines["Consumer<<<1, 256, 0, b>>>(d_copy, d_data);"]
        for how in ("none", "early"):
            _, _, error = run("order", how)
            self.assertEqual(error, (
                f"sim: unordered access: Consumer (stream 2, tests/sim/order.cu:{consumer}) "
                f"reads what Producer (stream 1, tests/sim/order.cu:{producer}) writes "
                f"(65536 bytes at d_data); missing edge: record an event after line {producer} "
                f"in stream 1 and make stream 2 wait for it before line {consumer}\n"), how)
        self.assertIn("copy on device (stream 2", run("order", "copy")[2])
        self.assertRegex(run("order", "late")[2],
                         r"Producer \(stream 1, \S+\) writes what Consumer \(stream 2, \S+\) reads")
        self.assertRegex(run("order", "store")[2],
                         r"MayStore \(stream 2, \S+\) writes what MayStore \(stream 1, \S+\) writes")

    def test_silent_when_ordered_or_on_purpose(self):
        for how in ("event", "chain", "query", "stream", "device", "legacy", "purpose"):
            self.assertEqual(run("order", how)[2], "", how)

    def test_pipeline_and_graph(self):
        self.assertEqual(run("pipeline"),
                         (0, "streams wrong 0\ngraph wrong 0\nnodes 30 edges 47\n", ""))


class Clocks(unittest.TestCase):
    def test_all_are_virtual(self):
        build("clocks")
        began, used = time.monotonic(), cpu_of_programs()
        _, out, _ = run("clocks")
        self.assertLess(time.monotonic() - began, 110)  # or it has slept
        self.assertLess(cpu_of_programs() - used, 5)    # or it has waited in a loop
        self.assertEqual(out.splitlines(), [
            "slept 110.0 s, CPU 0.0 s", "steady 112.0", "system 112.0", "time 112", "day 112.0",
            "worked CPU 2.0 s", "clock 2.0", "rusage 2", "clock read 25 ns",
            "device clock moves 1", "globaltimer step 0", "smid 2"])

    def test_two_runs_are_identical(self):
        for name in ("facts", "pipeline", "features", "clocks"):
            self.assertEqual(run(name), run(name), name)

    @unittest.skipIf(SANITIZED, "sanitizers are slow")
    def test_fast(self):
        for load, limit in (("launches", 0.5), ("grid", 1.0)):
            build("speed")
            used = cpu_of_programs()
            run("speed", load)
            self.assertLess(cpu_of_programs() - used, limit, load)

    def test_waits_are_precise(self):
        seen = table(run("speed", "grid")[1])
        least, most = map(int, re.findall(r"\d+", seen["waited"]))
        self.assertTrue(100000000 <= least <= most <= 101000000, seen)
        self.assertEqual(seen["uneven"], "wrong 0")


class Failures(unittest.TestCase):
    PROGRAM = """#include <cuda_runtime.h>
__global__ void Null(void) {}
int main(void) {
    void *p, *q;
    printf("%s\\n", cudaGetErrorName(cudaMalloc(&p, 4)));
    printf("%s\\n", cudaGetErrorName(cudaMalloc(&q, 4)));
    printf("%s\\n", cudaGetErrorName(cudaGetLastError()));
    Null<<<1, 1>>>();
    printf("%s\\n", cudaGetErrorName(cudaGetLastError()));
    printf("%s\\n", cudaGetErrorName(cudaDeviceSynchronize()));
}
"""

    def lines(self, **variables):
        return run("failures", source=self.PROGRAM, **variables)[1].split()

    def test_nth_call(self):
        self.assertEqual(self.lines(), ["cudaSuccess"] * 5)
        self.assertEqual(self.lines(SIM_FAIL="cudaMalloc:2"),
                         ["cudaSuccess"] + ["cudaErrorMemoryAllocation"] * 2
                         + ["cudaSuccess"] * 2)
        self.assertEqual(self.lines(SIM_FAIL="cudaMalloc:1:cudaErrorNoDevice")[0],
                         "cudaErrorNoDevice")
        self.assertEqual(self.lines(SIM_FAIL="cudaLaunchKernel:1,cudaDeviceSynchronize:1:719"),
                         ["cudaSuccess"] * 3 + ["cudaErrorLaunchOutOfResources",
                                                "cudaErrorLaunchFailure"])

    def test_bad_request(self):
        for text in ("cudaMalloc", "cudaMalloc:0", "cudaMalloc:1:cudaErrorFoo"):
            status, _, error = run("failures", source=self.PROGRAM, SIM_FAIL=text)
            self.assertEqual(status, 2, text)
            self.assertEqual(error.count("\n"), 1, error)
            self.assertIn("SIM_FAIL", error)


class Parameters(unittest.TestCase):
    def with_ini(self, change):
        with open(os.path.join(SIM, "h200.ini"), encoding="utf-8") as file:
            text = change(file.read())
        path = os.path.join(BUILD, "other.ini")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path, run("failures", source=Failures.PROGRAM, SIM_DEVICE_FILE=path)

    def test_errors_have_file_and_line(self):
        for change, words in (
                (lambda t: t + "\nspeed = 3\n", "no parameter is called speed"),
                (lambda t: re.sub(r"(?m)^launch_us = \S+", "launch_us = fast", t),
                 "launch_us = fast: not a number"),
                (lambda t: t.replace("\nsms = 132 ", "\n#"), "parameter sms is missing"),
                (lambda t: t + "launch_us = 1\n", "launch_us was set in line"),
                (lambda t: t + "name = Other\n", "name was set in line"),
                (lambda t: t + "nonsense\n", "not `key = value`"),
                (lambda t: t.replace("\nsms = 132 ", "\nsms = 0 "), "sms must be 1")):
            path, (status, _, error) = self.with_ini(change)
            self.assertEqual(status, 2)
            self.assertEqual(error.count("\n"), 1, error)
            self.assertRegex(error, r"^sim: " + re.escape(path) + r":\d+: ")
            self.assertIn(words, error)

    def test_number_of_devices(self):
        for text in ("two", "", "9", "-1", "1x"):
            status, _, error = run("failures", source=Failures.PROGRAM, SIM_DEVICES=text)
            self.assertEqual((status, error), (2, f"sim: SIM_DEVICES={text}: not a number from 0 to 8\n"))

    def test_missing_file(self):
        status, _, error = run("failures", source=Failures.PROGRAM, SIM_DEVICE_FILE="/no/file")
        self.assertEqual(status, 2)
        self.assertIn("/no/file", error)

    def test_another_device(self):
        path, _ = self.with_ini(lambda t: re.sub(
            r"(?m)^launch_us = \S+", "launch_us = 6.56", t.replace("Simulated H200", "Toy 1000")))
        seen = table(run("facts", SIM_DEVICE_FILE=path)[1])
        self.assertAlmostEqual(float(seen["launch_async"]), 6.56, delta=0.1)
        self.assertIn("name Simulated Toy 1000", run("features", SIM_DEVICE_FILE=path)[1])

    def test_every_parameter_matters_to_somebody(self):
        with open(os.path.join(SIM, "h200.ini"), encoding="utf-8") as file:
            keys = re.findall(r"^(\w+) =", file.read(), re.M)
        code = ""
        for name in os.listdir(SIM):
            if name.endswith(".c") and name != "params.c":
                with open(os.path.join(SIM, name), encoding="utf-8") as file:
                    code += file.read()
        self.assertEqual([k for k in keys if f"param.{k}" not in code], [])


class Facts(unittest.TestCase):
    """Figures that an H200 gave (driver 580.159.04, CUDA 13.0, 2026-11-30), within 1.2 x.

    From probes; what the labs measure, too, is left to make fidelity.
    """

    RECORDED = {
        "context": 338, "launch_async": 3.28, "launch_sync": 8.41,
        "launch_wait_4000": 3.4, "launch_wait_5000": 3.81, "launch_wait_6000": 4.29,
        "launch_wait_8000": 5.35, "launch_wait_10000": 6.38, "queue_depth": 1025,
        "event_empty": 1.28, "event_null": 5.5, "event_null_batch": 3.57, "queued_null": 1.33,
        "queued_timing": 3.65, "queued_quiet": 1.57,
        "null_record_timing": 4.63, "null_record_quiet": 3.87,
        "hop_timing": 4.55, "hop_quiet": 3.62,
        "wall_spin_0.01": 20, "cpu_spin_0.01": 15.5, "wall_block_0.01": 46,
        "wall_poll_0.01": 18, "cpu_poll_0.01": 18.6,
        "wall_spin_0.1": 110, "cpu_spin_0.1": 106,
        "wall_poll_0.1": 109, "cpu_poll_0.1": 109, "wall_spin_1": 1011, "cpu_spin_1": 1006,
        "wall_poll_1": 1011, "cpu_poll_1": 1012,
        "wall_spin_10": 10014, "cpu_spin_10": 10005,
        "wall_poll_10": 10023, "cpu_poll_10": 10026,
        "wall_spin_50": 50016, "cpu_spin_50": 50006, "wall_block_50": 50284,
        "cpu_device_flag_event": 10105,
        "one": 2.009, "same_stream": 4.011, "two_streams": 2.014, "full_sms": 4.012,
        "half_sms": 2.016, "legacy_default": 4.019, "pinned_h2d": 1.22, "pinned_d2h": 1.22,
        "pinned_both": 1.33, "pageable_h2d": 7.5, "pageable_d2h": 4.2,
        "return_pageable": 7450, "graph_node_1": 1.37, "graph_node_10": 0.78,
        "graph_node_100": 0.69,
        "phase1_cycles": 200052, "phase2_cycles": 600056, "cold_1e6": 540, "warm_1e6": 512,
        "lazy_done_beside": 20205, "serial_1": 1.156, "serial_4": 1.048, "serial_16": 1.009,
        "pipelined_1": 1.024, "pipelined_4": 1.004, "pipelined_16": 1.002,
    }

    def test_within_a_fifth(self):
        seen = table(run("facts")[1])
        far = [f"{name}: {seen[name]} against {recorded}"
               for name, recorded in self.RECORDED.items()
               if not 1 / 1.2 <= float(seen[name]) / recorded <= 1.2]
        self.assertEqual(far, [])
        self.assertEqual((float(seen["diamond_nodes"]), float(seen["diamond_edges"])), (4, 4))
        self.assertLess(float(seen["small_pageable_behind_busy"]), 20)
        self.assertLess(float(seen["warm_launch_beside"]), 7 * 1.2)
        self.assertLess(float(seen["lazy_launch_beside"]), 100)  # 20, 26 and 41 on the H200

    def test_eager_loading(self):
        seen = table(run("facts", CUDA_MODULE_LOADING="EAGER")[1])
        self.assertLess(float(seen["lazy_done_beside"]), 20)
        self.assertLess(float(seen["first_launch"]), 20)

    def test_launch_blocking(self):
        self.assertEqual(run("failures", source=Failures.PROGRAM, CUDA_LAUNCH_BLOCKING="1")[1].split(),
                         ["cudaSuccess"] * 5)
        source = """#include "check.h"
__global__ void Null(void) {}
int main(void) {
    Null<<<1, 1>>>();
    double t = now_us();
    for (int i = 0; i < 100; i++)
        Null<<<1, 1>>>();
    printf("async %.3f\\n", (now_us() - t) / 100);
}
"""
        source = source.replace("check.h", os.path.join(HERE, "check.h"))
        value = float(table(run("blocking", source=source, CUDA_LAUNCH_BLOCKING="1")[1])["async"])
        self.assertTrue(9.7 / 1.2 < value < 9.7 * 1.2, value)


class Rewriter(unittest.TestCase):
    def same(self, source, expected):
        self.assertEqual(rewrite.launches(source), expected)
        self.assertEqual(expected.count("\n"), source.count("\n"))

    def test_launches(self):
        self.same("K<<<1, 2>>>(a);", 'SIM_LAUNCH("K", (K), 1, 2)(a);')
        self.same("  if (x) K <<< g(1, 2), dim3(3) >>> ();",
                  '  if (x) SIM_LAUNCH("K", (K ),  g(1, 2), dim3(3) ) ();')
        self.same("else Kernel<<<1, 1>>>();", 'else SIM_LAUNCH("Kernel", (Kernel), 1, 1)();')
        self.same("Scale<T, 4><<<n / 256, 256, 0, s>>>(x);",
                  'SIM_LAUNCH("Scale<T, 4>", (Scale<T, 4>), n / 256, 256, 0, s)(x);')
        self.same("ns::K<Box<int>><<<1, 1>>>();",
                  'SIM_LAUNCH("ns::K<Box<int>>", (ns::K<Box<int>>), 1, 1)();')
        self.same("(*pointer)<<<1, 1>>>(x);", 'SIM_LAUNCH("(*pointer)", ((*pointer)), 1, 1)(x);')
        self.same("K<<<(n + 255) >> 8, 1 << 8>>>(x);",
                  'SIM_LAUNCH("K", (K), (n + 255) >> 8, 1 << 8)(x);')
        self.same("K<<<1, f(a, [&] { return b[2]; }())>>>();",
                  'SIM_LAUNCH("K", (K), 1, f(a, [&] { return b[2]; }()))();')
        self.same("A<<<1, 1>>>(), B<<<2, 2>>>();",
                  'SIM_LAUNCH("A", (A), 1, 1)(), SIM_LAUNCH("B", (B), 2, 2)();')

    def test_several_lines_and_macros(self):
        self.same("K<<<grid,  // blocks\n    block>>>(\n    a);",
                  'SIM_LAUNCH("K", (K), grid,  // blocks\n    block)(\n    a);')
        self.same("#define RUN(k, ...) \\\n    k<<<1, 1>>>(__VA_ARGS__)\n",
                  '#define RUN(k, ...) \\\n    SIM_LAUNCH("k", (k), 1, 1)(__VA_ARGS__)\n')

    def test_left_alone(self):
        for source in ('// K<<<1, 1>>>()\n', '/* K<<<1,\n1>>>() */', '"K<<<1, 1>>>()"',
                       'R"(K<<<1, 1>>>())"', 'R"x(")K<<<1, 1>>>()")x"', "x << 3 >> 2;",
                       "'<'; '\"'; // <<<\n", "int n = 1'000'000; a << b;",
                       "std::vector<std::vector<std::vector<int>>> v;"):
            self.assertEqual(rewrite.launches(source), source)

    def test_unreadable_launch_has_a_line(self):
        for source in ("\n\nK<<<1, 1;", "\n\n<<<1, 1>>>();"):
            with self.assertRaises(rewrite.RewriteError) as caught:
                rewrite.launches(source)
            self.assertTrue(str(caught.exception).startswith("3: "), caught.exception)

    def test_registers_shared_memory_and_purpose(self):
        text = rewrite.rewrite('asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t[1]));\n'
                               "extern __shared__ float s[];\n"
                               'asm("mov.u32 %0, %laneid;" : "=r"(x));\n'
                               "// unordered on purpose\nK<<<1, 1>>>();\n", "a.cu")
        self.assertIn("t[1] = sim_globaltimer();", text)
        self.assertIn("static float *const s = (float *)sim_dynamic_shared;", text)
        self.assertIn("sim_does_not_model_register_laneid()", text)
        self.assertIn("sim_purpose_lines[] = {4, 5, 0}", text)
        self.assertIn('#line 1 "a.cu"\n', text)

    def test_purpose_covers_one_statement(self):
        self.assertEqual(rewrite.purpose_lines(
            "a();\n// unordered on purpose\nK<<<1,\n    1>>>(\n    x);\nK<<<1, 1>>>();\n"
            "K<<<1, 1>>>();  // unordered on purpose\nb();\n"), [2, 3, 4, 5, 7])

    def test_static_shared_memory_is_counted(self):
        text = rewrite.rewrite("__shared__ float a[4][8];\n__shared__ int n;\n", "a.cu")
        self.assertIn("a[4][8]; sim_static_shared(sizeof a);", text)
        self.assertIn("int n; sim_static_shared(sizeof n);", text)

    def test_messages_name_the_original_line(self):
        _, messages = build("wrong", "#include <cuda_runtime.h>\n__global__ void K(int) {}\n"
                                     "int main(void) {\n    K<<<1, 1>>>();\n}\n")
        self.assertRegex(messages, r"wrong\.cu:4:")


if __name__ == "__main__":
    unittest.main()
