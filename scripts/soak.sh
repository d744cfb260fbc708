#!/usr/bin/env bash
# Long checks that continuous integration has no time for. The last line is "N passed, N failed"; the exit code is 0 when nothing failed.
#
#   scripts/soak.sh MODE [NAME...]
#
#   fuzz   every fuzz target (tests/fuzz), or those named, for FP8TRAIN_SOAK_FUZZ_SECONDS each (600), as many at a time as there are
#          cores. What it learns stays in build/fuzz/corpus, what it finds in build/fuzz/findings, logs in build/soak-logs
#
# Environment:
#   FP8TRAIN_JOBS                parallel compilers and targets; default: the number of cores
#   FP8TRAIN_SOAK_FUZZ_SECONDS   time for each fuzz target
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() { sed -n '2,12s/^# \{0,1\}//p' scripts/soak.sh; }

jobs=${FP8TRAIN_JOBS:-$(nproc)}
logs=$PWD/build/soak-logs
seconds=${FP8TRAIN_SOAK_FUZZ_SECONDS:-600}
export logs seconds

# fuzz_names: the targets of tests/fuzz, without fuzz_.
fuzz_names() { sed -n 's/^fuzz_target(\([a-z_0-9]*\) .*/\1/p' tests/fuzz/CMakeLists.txt; }

# fuzz_one NAME: "fuzz passed NAME" or "fuzz FAILED NAME" with the end of its log.
fuzz_one() {
  local name=$1
  mkdir -p "build/fuzz/corpus/fuzz_$name" build/fuzz/findings
  if "build/fuzz/bin/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/fuzz_$name-" "build/fuzz/corpus/fuzz_$name" \
    $(if [ -d "tests/fuzz/corpus/$name" ]; then echo "tests/fuzz/corpus/$name"; fi) >"$logs/fuzz-$name.log" 2>&1; then
    echo "fuzz passed $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/fuzz-$name.log") inputs"
  else
    echo "fuzz FAILED $name"
    tail -n 30 "$logs/fuzz-$name.log"
  fi
}
export -f fuzz_one

soak_fuzz() {
  local names=("$@") name
  [ ${#names[@]} != 0 ] || mapfile -t names < <(fuzz_names)
  for name in "${names[@]}"; do
    fuzz_names | grep -qx "$name" || { echo "soak.sh: no fuzz target '$name'; there are: $(fuzz_names | xargs)" >&2; exit 2; }
  done
  bash scripts/build.sh --preset fuzz --cuda off --jobs "$jobs" $(printf -- '--target fuzz_%s ' "${names[@]}") >"$logs/build.log" 2>&1 ||
    { tail -n 30 "$logs/build.log"; return 1; }
  printf '%s\n' "${names[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz_one {}' | tee "$logs/results"
}

mode=${1:-}
[ $# = 0 ] || shift
case $mode in
  fuzz) mkdir -p "$logs"; : >"$logs/results"; soak_fuzz "$@" || echo "soak FAILED" >>"$logs/results" ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
failed=$(grep -c ' FAILED' "$logs/results")
echo "$(grep -c ' passed ' "$logs/results") passed, $failed failed"
[ "$failed" = 0 ]
