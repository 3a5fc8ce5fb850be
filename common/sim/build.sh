#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds one .cu file for the simulated device: common/sim/build.sh FILE.cu PROGRAM
# Run from the kit's top directory. CC, CXX, SIM_CFLAGS (as -g -fsanitize=...) are honoured.
# shellcheck disable=SC2086  # flags and compilers may be several words
set -eu
[ $# -eq 2 ] || { echo "usage: common/sim/build.sh FILE.cu PROGRAM" >&2; exit 2; }
source=$1 program=$2
sim=$(dirname "$0")
objects=${SIM_OBJECTS:-build/sim/engine}
mkdir -p "$objects" "$(dirname "$program")"
flags="-O2 ${SIM_CFLAGS:-}"
set --  # the objects
for c in "$sim"/*.c; do
    object=$objects/$(basename "$c" .c).o
    set -- "$@" "$object"
    if [ ! -e "$object" ] || [ -n "$(find "$sim" -newer "$object" \( -name '*.[ch]' -o -name '*.ini' \))" ]; then
        ${CC:-cc} -std=c11 $flags -Wall -Wextra -Wpedantic -ffp-contract=off \
            -DSIM_INI_FILE="\"$sim/h200.ini\"" -c "$c" -o "$object"
    fi
done
python3 "$sim/rewrite.py" "$source" >"$program.cpp"
# The compiler's calls before each load and store go to the engine: watch.c says why.
${CXX:-c++} -std=c++17 -O2 -g -fsanitize=thread -Wall \
    -iquote "$(dirname "$source")" -I"$sim/include" -c "$program.cpp" -o "$program.o"
${CXX:-c++} $flags "$program.o" "$@" -lm -o "$program"
