#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Gradescope runs this once, when it makes the autograder's image.
set -eu
apt-get update
apt-get install -y python3
