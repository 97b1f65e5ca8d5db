#!/usr/bin/env bash
# Network namespaces joined by a bridge, each link with a rate, a delay and loss: real network conditions on one machine.
#
#   netns.sh check                                          what this machine can do, in one line
#   netns.sh up N [rate=R] [delay=D] [loss=L]               makes namespaces 0 to N-1 and leaves them; prints how to use them
#   netns.sh exec I CMD...                                  runs a command in namespace I
#   netns.sh down                                           removes all of them, and ends what still runs in them
#   netns.sh each N [rate=R] [delay=D] [loss=L] -- CMD...   up, CMD in every namespace at once (NETNS_INDEX tells which), down
#   netns.sh with N [rate=R] [delay=D] [loss=L] -- CMD...   up, CMD once outside, down
#
# R, D and L are as tc takes them: 100mbit, 5ms, 1%. The rate holds both ways on each link; delay and loss meet what leaves a namespace, so a
# message from one to another meets them once. Namespace I has the address 10.77.0.(I+1) on its interface eth0.
# Without root or the tools nothing is made: one line says so, and the status is 0 for check and 77 for the rest. A kernel without netem
# still gives a rate (tbf), without delay and loss; where only these were asked for, that is skipped in the same way.
set -euo pipefail

NAME=slackline-peer
BRIDGE=slackline-br
PROBE=slackline-pr
MOST=32
SKIPPED=77

say() { printf '%s\n' "$*"; }
fail() { say "netns.sh: $*" >&2; exit 2; }

remove_probe() { ip link del "${PROBE}0" 2>/dev/null || true; }

# What the machine has: sets `missing` (empty if namespaces can be made) and `shaper` (netem, tbf or none).
look() {
    missing='' shaper=none
    if [ "$(id -u)" -ne 0 ]; then missing='not root'; return; fi
    local tool
    for tool in ip tc; do
        command -v "$tool" >/dev/null || { missing="no $tool (apt-get install iproute2)"; return; }
    done
    if ! ip netns add "$PROBE" 2>/dev/null; then missing='no network namespaces here'; return; fi
    ip netns del "$PROBE"
    remove_probe
    if ! ip link add "${PROBE}0" type veth peer name "${PROBE}1" 2>/dev/null; then missing='no veth in this kernel'; return; fi
    if tc qdisc add dev "${PROBE}0" root netem delay 1ms 2>/dev/null; then
        shaper=netem
    elif tc qdisc add dev "${PROBE}0" root tbf rate 1gbit burst 64k latency 50ms 2>/dev/null; then
        shaper=tbf
    fi
    remove_probe
    if ip link add "${PROBE}0" type bridge 2>/dev/null; then remove_probe; else missing='no bridge in this kernel'; fi
}

# The one line of `check`, also said before anything is skipped.
verdict() {
    if [ -n "$missing" ]; then say "skipped: network namespaces: $missing"
    elif [ "$shaper" = netem ]; then say "network namespaces with netem: rate, delay and loss"
    elif [ "$shaper" = tbf ]; then say "network namespaces without netem (not in this kernel): a rate by tbf; delay and loss are left out"
    else say "network namespaces without netem and tbf (not in this kernel): rate, delay and loss are left out"
    fi
}

down() {
    local name left
    for name in $(ip netns list 2>/dev/null | awk -v start="$NAME-" 'index($1, start) == 1 { print $1 }'); do
        # Only what runs in our own namespace.
        left=$(ip netns pids "$name" 2>/dev/null || true)
        # shellcheck disable=SC2086
        [ -z "$left" ] || kill -KILL $left 2>/dev/null || true
        ip netns del "$name" 2>/dev/null || true
    done
    # Links end with their namespaces; one that was never moved into its own ends here.
    for name in $(ip -o link show 2>/dev/null | awk -F': ' '{ sub(/@.*/, "", $2); print $2 }' | grep -E '^slackline-v[0-9]+$' || true); do
        ip link del "$name" 2>/dev/null || true
    done
    ip link del "$BRIDGE" 2>/dev/null || true
}

# options WORD...: sets rate, delay, loss, and `command` from what follows `--`.
options() {
    rate='' delay='' loss='' command=()
    while [ $# -gt 0 ]; do
        case $1 in
            rate=?*) rate=${1#*=} ;;
            delay=?*) delay=${1#*=} ;;
            loss=?*) loss=${1#*=} ;;
            --) shift; command=("$@"); return ;;
            *) fail "$1 is no setting; there are rate=R, delay=D, loss=L" ;;
        esac
        shift
    done
}

# The words of a queue that shapes one end of a link; nothing if there is nothing to shape.
shape() {
    local rate=$1 delay=$2 loss=$3
    if [ "$shaper" = netem ] && [ -n "$rate$delay$loss" ]; then
        # The queue holds what is on its way, so it must be long.
        printf 'netem limit 100000'
        [ -z "$delay" ] || printf ' delay %s' "$delay"
        [ -z "$loss" ] || printf ' loss %s' "$loss"
        [ -z "$rate" ] || printf ' rate %s' "$rate"
    elif [ "$shaper" = tbf ] && [ -n "$rate" ]; then
        printf 'tbf rate %s burst 256k latency 50ms' "$rate"
    fi
}

join_one() {
    local index=$1 name=$NAME-$1 link=slackline-v$1 words
    ip netns add "$name"
    ip link add "$link" type veth peer name eth0 netns "$name"
    ip link set "$link" master "$BRIDGE" up
    ip -n "$name" addr add "10.77.0.$((index + 1))/24" dev eth0
    ip -n "$name" link set lo up
    ip -n "$name" link set eth0 up
    # shellcheck disable=SC2086
    { words=$(shape "$rate" "$delay" "$loss"); [ -z "$words" ] || tc -n "$name" qdisc add dev eth0 root $words; }
    # shellcheck disable=SC2086
    { words=$(shape "$rate" '' ''); [ -z "$words" ] || tc qdisc add dev "$link" root $words; }
}

up() {
    local count=$1 index
    [[ $count =~ ^[0-9]+$ ]] && [ "$count" -ge 1 ] && [ "$count" -le $MOST ] || fail "N is $count; it must be from 1 to $MOST"
    if ip link show "$BRIDGE" >/dev/null 2>&1; then fail "namespaces are up already; take them down first (netns.sh down)"; fi
    trap down EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    ip link add "$BRIDGE" type bridge
    ip link set "$BRIDGE" up
    for ((index = 0; index < count; index++)); do join_one "$index"; done
}

left_out() {
    if [ "$shaper" != netem ] && [ -n "$delay$loss" ]; then say "note: no netem in this kernel: delay and loss are left out"; fi
    if [ "$shaper" = none ] && [ -n "$rate" ]; then say "note: no tbf in this kernel: the rate is left out"; fi
}

# Where nothing of what was asked for can be had, to go on would measure something else.
nothing_is_left() {
    [ -n "$rate$delay$loss" ] || return 1
    [ "$shaper" = none ] || { [ "$shaper" = tbf ] && [ -z "$rate" ]; }
}

each() {
    local count=$1 index status=0 started=()
    for ((index = 0; index < count; index++)); do
        NETNS_INDEX=$index ip netns exec "$NAME-$index" "${command[@]}" &
        started+=($!)
    done
    for index in "${started[@]}"; do wait "$index" || status=$?; done
    return "$status"
}

# In the background, since bash answers a signal only between commands.
outside() {
    local child status=0
    "${command[@]}" &
    child=$!
    trap 'kill -TERM '"$child"' 2>/dev/null || true; exit 143' TERM HUP
    trap 'kill -INT '"$child"' 2>/dev/null || true; exit 130' INT
    wait "$child" || status=$?
    return "$status"
}

main() {
    [ $# -ge 1 ] || fail "say what: check, up, exec, down, each, with (the head of the script explains them)"
    local what=$1 count=${2:-}
    shift
    case $what in check | up | exec | down | each | with) ;; *) fail "no command $what; there are check, up, exec, down, each, with" ;; esac
    if [ "$what" = exec ]; then
        [ $# -ge 2 ] || fail "exec I CMD..."
        shift
        exec ip netns exec "$NAME-$count" "$@"
    fi
    look
    if [ "$what" = check ]; then verdict; return; fi
    if [ -n "$missing" ]; then verdict; exit $SKIPPED; fi
    if [ "$what" = down ]; then down; return; fi
    [ -n "$count" ] || fail "$what N ..."
    shift
    options "$@"
    if [ "$what" != up ] && [ ${#command[@]} -eq 0 ]; then fail "$what N [rate=R] [delay=D] [loss=L] -- CMD..."; fi
    if nothing_is_left; then say "skipped: none of rate, delay and loss can be had as asked: $(verdict)"; exit $SKIPPED; fi
    left_out
    up "$count"
    case $what in
        up)
            trap - EXIT INT TERM HUP
            say "$count namespaces are up: netns.sh exec I CMD...; addresses 10.77.0.1 to 10.77.0.$count; netns.sh down removes them"
            ;;
        each) each "$count" ;;
        with) outside ;;
    esac
}

main "$@"
