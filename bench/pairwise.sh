#!/usr/bin/env bash
# Compares two commits pairwise: criterion benches, push and pull on loopback, one epoch of training, in turns; ratios HEAD / BASE with their spread.
#   bench/pairwise.sh BASE [HEAD] [--only criterion,loopback,training] [--pairs N] [--realtime]        --help lists the rest
# Builds both in release the first time, some minutes each; trees and builds are kept in target/pairwise. It prints and decides nothing.
exec python3 "$(dirname "$0")/measure/pairwise.py" "$@"
