# SPDX-License-Identifier: MIT
# The one entry to the kit: make help.

DIR     ?= labs
LAB     ?=
SLURM   ?=
ARCH    ?= $(if $(SLURM),all-major,native)
MACHINE ?=
AGAIN   ?=
V       ?= 0

PYTHON  ?= python3
Q       := $(if $(filter 1,$(V)),,@)

# SLURM holds options of srun, for a machine without a GPU in a cluster that has some: labs are
# built here, for every GPU that nvcc knows, and run there.
srun := $(if $(SLURM),srun $(SLURM))
ifneq ($(SLURM),)
ifeq ($(shell command -v srun),)
$(error no srun on this machine: leave SLURM out, or use one from which a cluster's jobs start)
endif
endif

# What runs the labs: cuda where a GPU is visible, else the simulated device; gpu.py says which
# and why. BACKEND=cuda insists on hardware.
ifndef BACKEND
ifneq ($(SLURM),)
BACKEND := cuda
else ifneq ($(filter build run grade record watch timeline,$(MAKECMDGOALS)),)
BACKEND := $(shell $(PYTHON) grading/gpu.py)
else
BACKEND := cuda
endif
endif
ifeq ($(filter cuda sim,$(BACKEND)),)
$(error BACKEND is cuda or sim, not '$(BACKEND)')
endif

# nvcc: NVCC, CUDA_HOME, PATH, the usual place, in this order.
NVCC ?= $(firstword $(wildcard $(addsuffix /bin/nvcc,$(CUDA_HOME))) \
          $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
NVCCFLAGS ?= -O2
WARNINGS  := -Xcompiler -Wall,-Wextra

# Everything built lies in build/BACKEND/DIR/; a path as DIR is named as grading/runner.py
# names it.
kit    := $(patsubst %/,%,$(dir $(realpath $(firstword $(MAKEFILE_LIST)))))
name   := $(or $(subst /,_,$(patsubst /%,%,$(patsubst %/,%,$(patsubst $(kit)/%,%,$(realpath $(DIR))/)))),kit)
out    := build/$(BACKEND)/$(name)
number := $(if $(filter 1 2 3 4 5 6 7 8 9,$(LAB)),0$(LAB),$(LAB))
labs   := $(sort $(wildcard $(DIR)/$(or $(number),[0-9][0-9])_*.cu))
programs := $(patsubst $(DIR)/%.cu,$(out)/%,$(labs))
# Lab 04 starts a second program, itself with -G, to see what that does to a kernel.
debugged := $(patsubst $(DIR)/%.cu,$(out)/%.debug,$(filter %/04_timingPitfalls.cu,$(labs)))

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help build run grade record compare plot watch hint doctor timeline trace starters \
        starters-check test proof fuzz bench bench-class fidelity compile-commands clean \
        check-nvcc FORCE

help:
	@echo 'make grade             build, run and grade; says what each figure means'
	@echo 'make watch LAB=01      the same at each save of the lab, verdict first'
	@echo 'make hint LAB=01       the next hint, one at a time; AGAIN=1 starts over'
	@echo 'make compare           prediction, other machines and yours, side by side'
	@echo 'make plot LAB=02       a picture, here and in results/ (needs gnuplot)'
	@echo 'make timeline LAB=08   what really ran, when, and what waited for what'
	@echo 'make doctor            what this machine lacks, and what to do about it'
	@echo 'make run               build and run; outputs go to results/ too'
	@echo 'make build             only compile'
	@echo 'make record MACHINE=my-gpu   keep outputs in worksheets/recorded/my-gpu/'
	@echo 'make clean             remove build/ and results/'
	@echo
	@echo 'For who changes the kit:'
	@echo 'make test              everything that needs no GPU'
	@echo 'make proof             how often the grader is right (ten minutes)'
	@echo 'make fuzz              100,000 broken inputs for whatever reads one'
	@echo 'make bench             what an error check adds to a launch (needs a GPU)'
	@echo 'make bench-class       what grading a class of 300 costs'
	@echo 'make starters          make labs/ from solutions/; starters-check compares'
	@echo 'make fidelity          the simulated device beside two recorded H200s'
	@echo 'make compile-commands  what clangd needs to understand the sources'
	@echo
	@echo 'LAB=01          one lab; all without it'
	@echo 'REGION=NAME     of timeline: one region of the lab; all without it'
	@echo 'DIR=solutions   default: labs; or a path'
	@echo 'BACKEND=sim     the simulated device; cuda insists on a GPU. Without it: the GPU'
	@echo '                if there is one'
	@echo 'ARCH=sm_90      the GPU to build for; default: native, the one that is here'
	@echo 'NVCC=PATH       compiler to use              V=1   show commands'
	@echo 'SLURM=--gres=gpu:1   run, grade and record on a node of a cluster, with srun'

build: $(if $(filter cuda,$(BACKEND)),check-nvcc $(debugged)) $(programs)
	$(if $(labs),,$(error no lab $(LAB) in DIR=$(DIR): a lab is a file NN_name.cu))

check-nvcc:
	$(if $(NVCC),,$(error no nvcc found: install the CUDA Toolkit, say NVCC=/path/to/nvcc, \
	    or BACKEND=sim for the simulated device))

ifeq ($(BACKEND),cuda)
command := $(NVCC) $(NVCCFLAGS) -arch=$(ARCH) $(WARNINGS)
else
# A .cu file becomes C++ (rewrite.py turns launches into calls). -fsanitize=thread makes the
# compiler announce each load and store, which the engine watches; its library is not linked.
sim     := common/sim
command := $(CXX) -std=c++17 -O2 -g -fsanitize=thread -Wall -I$(sim)/include \
           -iquote $(DIR)
engine  := $(patsubst $(sim)/%.c,build/sim/engine/%.o,$(wildcard $(sim)/*.c))
endif

# The stamp holds the compiler and its flags: when they change, so does it, and all is rebuilt.
$(out)/command: FORCE
	@mkdir -p $(@D); echo '$(command)' | cmp -s - $@ || echo '$(command)' > $@

# The dependencies that the compiler writes track the headers. A failed build leaves its log
# and no program, so that nobody runs an old one.
ifeq ($(BACKEND),cuda)
$(out)/%: $(DIR)/%.cu $(out)/command
	@echo 'nvcc $(DIR)/$*.cu'
	$(Q)rm -f $@; $(command) -MD -MF $@.d -o $@ $< > $@.log 2>&1 || { cat $@.log >&2; exit 1; }
	@grep -v 'Cannot find valid GPU' $@.log >&2 || true
else
$(out)/%: $(DIR)/%.cu $(out)/command $(sim)/rewrite.py $(engine)
	@echo 'simulated: $(DIR)/$*.cu'
	$(Q)rm -f $@; { $(PYTHON) $(sim)/rewrite.py $< > $@.cpp && \
	    $(command) -MMD -MF $@.d -MT $@ -c -o $@.o $@.cpp && \
	    $(CXX) -o $@ $@.o $(engine) -lm; } > $@.log 2>&1 || { cat $@.log >&2; exit 1; }
	@cat $@.log >&2

build/sim/engine/%.o: $(sim)/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -O2 -Wall -Wextra -Wpedantic -ffp-contract=off -MMD -MP \
	    -DSIM_INI_FILE='"$(sim)/h200.ini"' -c -o $@ $<
build/sim/engine/params.o: $(sim)/h200.ini
-include $(wildcard build/sim/engine/*.d)
endif

$(out)/%.debug: $(DIR)/%.cu $(out)/command
	@echo 'nvcc -G $(DIR)/$*.cu'
	$(Q)rm -f $@; $(command) -G -MD -MF $@.d -o $@ $< > $@.log 2>&1 || { cat $@.log >&2; exit 1; }

-include $(wildcard $(out)/*.d)

run:
	-@$(PYTHON) grading/progress.py building $(MAKE) -s -k build BACKEND=$(BACKEND)
	@$(srun) $(PYTHON) grading/runner.py --dir '$(DIR)' --backend $(BACKEND) $(if $(LAB),--lab $(LAB))

grade:
	@$(srun) $(PYTHON) grading/grade.py run --dir '$(DIR)' --backend $(BACKEND) $(if $(LAB),--lab $(LAB))

record: DIR := $(if $(filter command line,$(origin DIR)),$(DIR),solutions)
record:
	$(if $(filter-out .%,$(MACHINE)),,$(error which machine? make record MACHINE=nvidia-h200))
	@$(MAKE) -s build DIR='$(DIR)' BACKEND=$(BACKEND)
	@$(srun) $(PYTHON) grading/runner.py --dir '$(DIR)' --backend $(BACKEND) $(if $(LAB),--lab $(LAB)) \
	    --out 'worksheets/recorded/$(MACHINE)'

# What really ran. On hardware by way of CUPTI, which comes with the CUDA Toolkit.
timeline:
	-@$(MAKE) -s -k build BACKEND=$(BACKEND) $(if $(filter cuda,$(BACKEND)),trace)
	@$(PYTHON) grading/timeline.py --dir '$(DIR)' --backend $(BACKEND) $(if $(LAB),--lab $(LAB)) \
	    $(if $(REGION),--region '$(REGION)')

tracer    := build/trace/liblabtrace.so
toolkit    = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
cupti_h    = $(firstword $(wildcard $(addprefix $(toolkit)/,include/cupti.h \
                 extras/CUPTI/include/cupti.h)))
cupti_lib  = $(firstword $(wildcard $(addprefix $(toolkit)/,lib64/libcupti.so \
                 extras/CUPTI/lib64/libcupti.so lib/libcupti.so lib/x86_64-linux-gnu/libcupti.so)))

trace: check-nvcc $(tracer)

$(tracer): grading/trace/labtrace.c common/sim/trace_log.h
	$(if $(and $(cupti_h),$(cupti_lib)),,$(error no CUPTI in '$(toolkit)': install the CUDA \
	    Toolkit's package cuda-cupti-dev))
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -O2 -Wall -Wextra -shared -fPIC -fvisibility=hidden -I$(toolkit)/include \
	    -I$(dir $(cupti_h)) -o $@ $< -L$(dir $(cupti_lib)) -lcupti -lpthread -ldl \
	    -Wl,-rpath,$(dir $(cupti_lib))

compare plot:
	@$(PYTHON) grading/$@.py --dir '$(DIR)' $(if $(LAB),--lab $(LAB))

watch hint:
	$(if $(LAB),,$(error which lab? make $@ LAB=01))
	@$(PYTHON) grading/$@.py --dir '$(DIR)' --lab $(LAB) $(if $(filter watch,$@),--backend \
	    $(BACKEND)) $(if $(filter-out 0,$(AGAIN)),--again)

doctor:
	@$(PYTHON) grading/doctor.py

# The simulated device beside two recorded H200s; writes the table of common/sim/README.md.
fidelity:
	@SIM_DEVICES=2 $(MAKE) -s record MACHINE=simulated-h200 BACKEND=sim DIR=solutions LAB= \
	    >/dev/null
	@$(PYTHON) common/sim/fidelity.py

compile-commands:
	@$(PYTHON) common/compile_commands.py $(toolkit)

starters:
	@$(PYTHON) solutions/make_starters.py

starters-check:
	@$(PYTHON) solutions/make_starters.py --check

test:
	@$(PYTHON) tests/run.py

proof fuzz:
	@$(PYTHON) tests/$@.py --cases 100000

bench: check-nvcc
	@mkdir -p build/cuda
	$(Q)$(command) -o build/cuda/check_cost tests/check_cost.cu
	@build/cuda/check_cost

bench-class:
	@$(PYTHON) tests/bench_class.py

clean:
	rm -rf build results
