#!/usr/bin/env bash
# The questions of configs/experiments/bandwidth.toml and priority.toml over real links: a server and two workers in network namespaces of their own, and the same
# configuration in virtual time beside each. Prints samples a second of both.
#
#   bench/bandwidth.sh [MBIT,... [DELAY_MS,... [LOSS,... [WAY,...]]]]      by default: 10,100,1000  1,50  0,0.03  plain,bf16,top-k,local
#
# The ways whole, layers and front are those of priority.toml, bsp on a network of five layers in eight shards.
# A delay is one way. A gradient takes 20 ms (the threads wait until it has), so that computing is not what the machine is short of. ITERATIONS=400
# iterations a cell; SETS="transport.congestion=cubic ..." sets keys of both. Builds what it needs. Needs root, `ip` and /dev/net/tun; without them it says so and ends with status 77.
set -euo pipefail
cd "$(dirname "$0")/.."

IFS=, read -r -a mbits <<<"${1:-10,100,1000}"
IFS=, read -r -a delays <<<"${2:-1,50}"
IFS=, read -r -a losses <<<"${3:-0,0.03}"
IFS=, read -r -a ways <<<"${4:-plain,bf16,top-k,local}"
iterations=${ITERATIONS:-400}
workers=2 batch=32

cargo build --release --quiet --workspace --all-features --bin slackline --bin slackline-link
case ${CARGO_TARGET_DIR:-target} in /*) bin=$CARGO_TARGET_DIR/release ;; *) bin=$PWD/${CARGO_TARGET_DIR:-target}/release ;; esac
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$bin/slackline" keys init "$out/keys" >/dev/null

# The keys of a way, in the words of the sweep.
way_of() {
    local layered='consistency.policy="bsp" model.widths=[512,512,512,512] cluster.shards_per_server=8 optimizer.rate=0.01'
    local bounded='consistency.policy="ssp" consistency.staleness=4 optimizer.rate=0.01'
    case $1 in
        plain) echo "$bounded" ;;
        bf16) echo "$bounded codec.push=\"bf16\" codec.pull=\"bf16\"" ;;
        top-k) echo "$bounded codec.push=\"top-k\" codec.pull=\"int8\"" ;;
        local) echo 'consistency.policy="bsp" local.mode="difference" local.outer="average" local.steps=16 optimizer.rate=0.1' ;;
        whole) echo "$layered" ;;
        layers) echo "$layered train.overlap=true" ;;
        front) echo "$layered train.overlap=true transport.order=\"front-first\"" ;;
        *) echo "no way $1: plain, bf16, top-k, local, whole, layers or front" >&2; exit 2 ;;
    esac
}

# Configuration of one cell: its way, then its link.
cell() {
    local way=$1 mbit=$2 delay=$3 loss=$4
    local sets=() of_way key
    of_way=$(way_of "$way")
    for key in 'model.kind="mlp"' 'model.widths=[128]' $of_way workers=$workers servers=1 "train.batch=$batch" train.epochs=1 "data.limit=$((iterations * workers * batch))" \
        'data.dataset="fashion-mnist"' 'stragglers.kind="permanent"' stragglers.factor=1 stragglers.compute_s=0.02 \
        stragglers.jitter=0.1 ${SETS:-} "transport.bandwidth_mbit=$mbit" "transport.round_trip_ms=$((2 * delay))" evaluate.every_epochs=0; do
        sets+=(--set "$key")
    done
    printf '%s\n' "${sets[@]}" >"$out/sets"
}

figure() { sed -n 's/^ *"samples_per_s": *\([0-9.]*\).*/\1/p' "$1/summary.json" | head -1; }

# Within the link: the server at end 0, a worker at each other end.
cat >"$out/daemons" <<'EOF'
set -euo pipefail
bin=$1 out=$2
mapfile -t sets <"$out/sets"
sets+=(--set "cluster.addresses=[\"$LINK_ADDRESS_0:4400\"]" --set "cluster.keys=\"$out/keys\"")
$LINK_0 "$bin/slackline" server configs/experiments/fashion-law.toml --index 0 --out "$out/real" "${sets[@]}" >"$out/server.log" 2>&1 &
server=$!
$LINK_1 "$bin/slackline" worker configs/experiments/fashion-law.toml "${sets[@]}" >"$out/worker1.log" 2>&1 &
$LINK_2 "$bin/slackline" worker configs/experiments/fashion-law.toml "${sets[@]}" >"$out/worker2.log" 2>&1 &
wait "$server" || { tail -n 3 "$out/server.log" "$out/worker1.log"; exit 1; }
wait
EOF

printf '%-8s %8s %8s %8s %12s %12s %8s\n' way Mbit/s 'one way' loss 'real/s' 'virtual/s' ratio
for mbit in "${mbits[@]}"; do
    for delay in "${delays[@]}"; do
        for loss in "${losses[@]}"; do
            for way in "${ways[@]}"; do
                cell "$way" "$mbit" "$delay" "$loss"
                rm -rf "$out/real" "$out/virtual"
                "$bin/slackline-link" --ends $((workers + 1)) --mbit "$mbit" --delay-ms "$delay" --loss "$loss" -- bash "$out/daemons" "$bin" "$out" ||
                    exit $?
                mapfile -t sets <"$out/sets"
                "$bin/slackline" sim configs/experiments/fashion-law.toml --timing-only --out "$out/virtual" "${sets[@]}" \
                    --set "simulation.bandwidth_mbps=$mbit" --set "simulation.latency_s=$(awk "BEGIN { print $delay / 1000 }")" --set "simulation.loss=$loss" >/dev/null
                real=$(figure "$out/real") virtual=$(figure "$out/virtual")
                printf '%-8s %8s %5s ms %8s %12.0f %12.0f %8s\n' "$way" "$mbit" "$delay" "$loss" "$real" "$virtual" "$(awk "BEGIN { printf \"%.2f\", $real / $virtual }")"
            done
        done
    done
done
