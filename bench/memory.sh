#!/usr/bin/env bash
# Memory of the servers: at most their state, 64 MiB a worker and a tenth of both, for models far larger than that; and as much after a million pushes as after
# a hundred thousand. Takes about a quarter of an hour, and 3 GiB. Fails where that does not hold.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p slackline-bench --bin loopback
loopback=target/release/loopback
$loopback --mib 64,256,512 --workers 1,2,4 --servers 1,2 --rounds 3 --repeats 1 --within-limit
$loopback --mib 256 --workers 1,2,4 --servers 1 --rounds 3 --repeats 1 --within-limit --set optimizer.kind=momentum --set optimizer.momentum=0.0
$loopback --mib 1 --workers 2 --servers 1 --pushes 1000000 --set cluster.shards_per_server=64
