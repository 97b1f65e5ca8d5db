#!/usr/bin/env bash
# One way over a link with a rate, a delay and loss: bare QUIC, pushes and pulls of a model, and plain TCP, in turns in one go.
#
#   bench/link.sh [MBIT [DELAY_MS [MIB [LOSS...]]]]        by default: 1000 Mbit/s, 50 ms each way, 256 MiB, losses of 0, 0.03 and 0.1
#
# TCP is measured with CUBIC, the kernel's default on most machines, and with BBR where the kernel has it; on a link that loses packets with fewer bytes,
# since CUBIC needs 20 s for 2 MiB there. SETS="transport.congestion=cubic ..." sets keys of ours. Builds what it needs. Needs root, `ip` and
# /dev/net/tun; without them it says so and ends with status 77.
set -euo pipefail
cd "$(dirname "$0")/.."

mbit=${1:-1000} delay=${2:-50} mib=${3:-256}
shift $(($# > 3 ? 3 : $#))
losses=("${@:-0}")
[ $# -gt 0 ] || losses=(0 0.03 0.1)

cargo build --release --quiet --workspace --all-features --bin loopback --bin slackline-link
case ${CARGO_TARGET_DIR:-target} in /*) bin=$CARGO_TARGET_DIR/release ;; *) bin=$PWD/${CARGO_TARGET_DIR:-target}/release ;; esac

sets=()
for set in ${SETS:-}; do sets+=(--set "$set"); done

# One link; the command within learns its ends from the environment.
over() {
    local loss=$1
    shift
    "$bin/slackline-link" --mbit "$mbit" --delay-ms "$delay" --loss "$loss" -- "$@"
}

for loss in "${losses[@]}"; do
    printf '\n== %s Mbit/s, %s ms each way, loss %s\n' "$mbit" "$delay" "$loss"
    tcp=$([ "$loss" = 0 ] && echo "$mib" || echo 2)
    for control in cubic bbr; do
        grep -qw "$control" /proc/sys/net/ipv4/tcp_available_congestion_control || continue
        printf 'TCP with %s:\n' "$control"
        # shellcheck disable=SC2016
        over "$loss" env CONTROL="$control" bash -c '
            key=net.ipv4.tcp_congestion_control
            for end in "$LINK_0" "$LINK_1"; do
                if [ "$($end sysctl -n "$key")" != "$CONTROL" ] && ! $end sysctl -qw "$key=$CONTROL" 2>/dev/null; then
                    echo "it cannot be chosen here: left out"
                    exit 0
                fi
            done
            "$0" "$@" --server-via "$LINK_0" --worker-via "$LINK_1" --bind "$LINK_ADDRESS_0"' \
            "$bin/loopback" --raw --repeats 1 --mib 64 --rounds "$((mib / 64 > 0 ? mib / 64 : 1))" --tcp-mib "$tcp" "${sets[@]}"
    done
done
