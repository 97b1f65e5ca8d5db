#!/usr/bin/env bash
# What a byte costs as the model grows from 1 M to 1,000 M parameters, and the server's memory against its limit, with one worker and one server.
#   bench/growth.sh [--mib 4,40,400,4000] [--repeats N] [--realtime]        --help lists the rest
# The largest needs some 17 GiB of memory; where less is free it is left out, with a line that says so. It prints and decides nothing.
exec python3 "$(dirname "$0")/measure/growth.py" "$@"
