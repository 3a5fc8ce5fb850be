# SPDX-License-Identifier: MIT
# The one entry to the kit: make help.

DIR     ?= labs
LAB     ?=
ARCH    ?= native
BACKEND ?= cuda
MACHINE ?=
V       ?= 0

PYTHON  ?= python3
Q       := $(if $(filter 1,$(V)),,@)

# nvcc: NVCC, CUDA_HOME, PATH, the usual place, in this order.
NVCC ?= $(firstword $(wildcard $(addsuffix /bin/nvcc,$(CUDA_HOME))) \
          $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
NVCCFLAGS ?= -O2
WARNINGS  := -Xcompiler -Wall,-Wextra

# Everything built lies in build/BACKEND/DIR/; a path as DIR is named as grading/runner.py
# names it.
kit    := $(patsubst %/,%,$(dir $(realpath $(firstword $(MAKEFILE_LIST)))))
name   := $(subst /,_,$(patsubst /%,%,$(patsubst $(kit)/%,%,$(realpath $(DIR)))))
out    := build/$(BACKEND)/$(name)
number := $(if $(filter 1 2 3 4 5 6 7 8 9,$(LAB)),0$(LAB),$(LAB))
labs   := $(sort $(wildcard $(DIR)/$(or $(number),[0-9][0-9])_*.cu))
programs := $(patsubst $(DIR)/%.cu,$(out)/%,$(labs))
# Lab 04 starts a second program, itself with -G, to see what that does to a kernel.
debugged := $(patsubst $(DIR)/%.cu,$(out)/%.debug,$(filter %/04_timingPitfalls.cu,$(labs)))

.DELETE_ON_ERROR:
.PHONY: help build run grade record starters starters-check test bench clean check-nvcc FORCE

help:
	@echo 'make grade [DIR=solutions]   build, run and grade; the report says what each figure means'
	@echo 'make run [LAB=01]            build and run; outputs go to results/ too'
	@echo 'make build                   only compile'
	@echo 'make record MACHINE=my-gpu   keep the outputs in worksheets/recorded/my-gpu/'
	@echo 'make test                    everything that needs no GPU'
	@echo 'make bench                   what an error check adds to a launch (needs a GPU)'
	@echo 'make starters                labs/ from solutions/; starters-check only compares'
	@echo 'make clean                   remove build/ and results/'
	@echo
	@echo 'LAB=NN       one lab (all without it)      DIR=labs       labs, solutions or a path'
	@echo 'ARCH=native  the GPU to build for: sm_NN   NVCC=PATH      the compiler to use'
	@echo 'V=1          show the commands             BACKEND=cuda   what runs the labs'

build: $(if $(filter cuda,$(BACKEND)),check-nvcc $(debugged)) $(programs)
	$(if $(labs),,$(error no lab $(LAB) in DIR=$(DIR): a lab is a file NN_name.cu))

check-nvcc:
	$(if $(filter cuda,$(BACKEND)),,$(error BACKEND is cuda, not '$(BACKEND)'))
	$(if $(NVCC),,$(error no nvcc found: install the CUDA Toolkit, or say NVCC=/path/to/nvcc))

# The stamp holds the compiler and its flags: when they change, so does it, and all is rebuilt.
command := $(NVCC) $(NVCCFLAGS) -arch=$(ARCH) $(WARNINGS)
$(out)/command: FORCE
	@mkdir -p $(@D); echo '$(command)' | cmp -s - $@ || echo '$(command)' > $@

# The dependencies that nvcc writes (-MD) track the headers. A failed build leaves its log and
# no program, so that nobody runs an old one.
$(out)/%: $(DIR)/%.cu $(out)/command
	@echo 'nvcc $(DIR)/$*.cu'
	$(Q)rm -f $@; $(command) -MD -MF $@.d -o $@ $< > $@.log 2>&1 || { cat $@.log >&2; exit 1; }
	@grep -v 'Cannot find valid GPU' $@.log >&2 || true

$(out)/%.debug: $(DIR)/%.cu $(out)/command
	@echo 'nvcc -G $(DIR)/$*.cu'
	$(Q)rm -f $@; $(command) -G -MD -MF $@.d -o $@ $< > $@.log 2>&1 || { cat $@.log >&2; exit 1; }

-include $(wildcard $(out)/*.d)

run:
	-@$(MAKE) -s -k build
	@$(PYTHON) grading/runner.py --dir '$(DIR)' --backend $(BACKEND) $(if $(LAB),--lab $(LAB))

grade:
	@$(PYTHON) grading/grade.py run --dir '$(DIR)' --backend $(BACKEND) $(if $(LAB),--lab $(LAB))

record: DIR := $(if $(filter command line,$(origin DIR)),$(DIR),solutions)
record:
	$(if $(filter-out .%,$(MACHINE)),,$(error which machine? make record MACHINE=nvidia-h200))
	@$(MAKE) -s build DIR='$(DIR)'
	@$(PYTHON) grading/runner.py --dir '$(DIR)' --backend $(BACKEND) $(if $(LAB),--lab $(LAB)) \
	    --out 'worksheets/recorded/$(MACHINE)'

starters:
	@$(PYTHON) solutions/make_starters.py

starters-check:
	@$(PYTHON) solutions/make_starters.py --check

test:
	@$(PYTHON) tests/run.py

bench: check-nvcc
	@mkdir -p build/cuda
	$(Q)$(command) -o build/cuda/check_cost tests/check_cost.cu
	@build/cuda/check_cost

clean:
	rm -rf build results
