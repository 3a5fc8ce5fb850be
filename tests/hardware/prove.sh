#!/bin/sh
# SPDX-License-Identifier: MIT
# What of the grader's proof needs a GPU: all mutants, each solution again and again, and under load.
#
#     tests/hardware/prove.sh                    some thirteen minutes on an H200 with 16 cores
#     ROUNDS=30 SECONDS_FOR_ROUNDS=600 tests/hardware/prove.sh repeats
#
# Any of: mutants repeats load. ARCH, NVCC and CUDA_HOME as for make. Lab 12 needs two GPUs.
# Exit 0 if no mutant slipped that is not listed and no solution was accused.
set -u
cd "$(dirname "$0")/../.." || exit
[ $# -gt 0 ] || set -- mutants repeats load
failed=0
begun=$(date +%s)
for part in "$@"; do
    echo "== $part"
    case $part in
    mutants) python3 tests/mutants.py --backend cuda --arch "${ARCH:-native}" || failed=1 ;;
    repeats | load)
        python3 tests/honest.py "$part" --arch "${ARCH:-native}" --rounds "${ROUNDS:-10}" \
            --seconds "${SECONDS_FOR_ROUNDS:-170}" || failed=1
        ;;
    *) echo "$0: mutants, repeats or load, not '$part'" >&2 && exit 2 ;;
    esac
    echo "== $part: $(($(date +%s) - begun)) s since the start"
done
exit $failed
