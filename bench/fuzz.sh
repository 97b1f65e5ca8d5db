#!/usr/bin/env bash
# Fuzzing: every reader of bytes of others, a minute each.
#   bench/fuzz.sh [SECONDS] [TARGET...]      by default 60 seconds, all targets
#   KEEP=1 bench/fuzz.sh ...                 adds the inputs that reach something new to bench/fuzz/corpus, the smallest ones
# Needs cargo-fuzz (`cargo install cargo-fuzz`) and a C++ compiler; with a nightly toolchain where there is one, else with the
# stable one told to take nightly's flags. Found faults lie in out/fuzz/TARGET/ and are to be kept in bench/fuzz/corpus/TARGET/
# once they are mended: every `cargo test` replays what is there.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
case $seconds in '' | *[!0-9]*) echo "fuzz.sh: $seconds: write how many seconds each target gets" >&2; exit 2 ;; esac
shift || true

if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz.sh: cargo-fuzz is not installed: cargo install cargo-fuzz (the kept inputs are replayed by cargo test -p slackline-fuzz)" >&2
    exit 3
fi
if ! command -v c++ >/dev/null; then
    echo "fuzz.sh: no C++ compiler, which libFuzzer is built with: apt-get install g++" >&2
    exit 3
fi
if cargo +nightly --version >/dev/null 2>&1; then
    toolchain=+nightly
else
    echo "fuzz.sh: no nightly toolchain; the stable one is told to take nightly's flags" >&2
    toolchain=
    export RUSTC_BOOTSTRAP=1
fi

programs=bench/fuzz/targets
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/fuzz}
# No address sanitizer: the code forbids unsafe, and panics, overflow, memory and time are watched without it.
fuzz() { cargo $toolchain fuzz "$1" --fuzz-dir "$programs" --sanitizer none "${@:2}"; }
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd $programs/fuzz_targets && printf '%s\n' *.rs | sed 's/\.rs$//')

fuzz build
failed=()
for target in "${targets[@]}"; do
    found=out/fuzz/$target
    seeds=bench/fuzz/corpus/$target
    mkdir -p "$found/corpus" "$seeds"
    printf '\n== %s, %s s\n' "$target" "$seconds"
    # From nothing to what a frame or a small file has; 2 GiB and 10 s are faults.
    if ! fuzz run "$target" "$found/corpus" "$seeds" -- -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -verbosity=1 -artifact_prefix="$found/" >"$found/log" 2>&1; then
        failed+=("$target")
        grep -aE -m5 'panicked|ERROR|Test unit written|SUMMARY' "$found/log" || tail -20 "$found/log"
    fi
    grep -aE 'stat::number_of_executed_units|stat::peak_rss_mb' "$found/log" || true
    grep -aE 'cov: ' "$found/log" | tail -1 || true
    if [ -n "${KEEP:-}" ]; then
        fuzz run "$target" "$seeds" "$found/corpus" -- -merge=1 -max_len=512 -verbosity=0 >>"$found/log" 2>&1 || true
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    printf '\nfaults in: %s\n' "${failed[*]}" >&2
    exit 1
fi
printf '\nno fault\n'
