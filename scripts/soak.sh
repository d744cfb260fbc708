#!/usr/bin/env bash
# Long checks that continuous integration has no time for. The last line is "N passed, N failed";
# the exit code is 0 when nothing failed.
#
#   scripts/soak.sh MODE [NAME...]
#
#   fuzz   every fuzz target (tests/fuzz), or those named, for FP8TRAIN_SOAK_FUZZ_SECONDS each
#          (600), as many at a time as there are cores. What it learns stays in build/fuzz/corpus,
#          what it finds in build/fuzz/findings, logs in build/soak-logs
#   faults every call of a run on a file killed, stopped, failed and cut short; 10,000 damaged
#          checkpoints; every bound of every key
#   slurm  a run of four ranks under a throw-away Slurm, killed, stopped, signalled, its disk filled
#          and its checkpoints damaged at random for FP8TRAIN_SOAK_MINUTES (20)
#          (scripts/soak/slurm_run.sh)
#   steps  20,000 steps, whose memory must not grow by more than 50 KiB in 1,000 steps
#   all    all of these
#
# Environment:
#   FP8TRAIN_JOBS                parallel compilers and targets; default: the number of cores
#   FP8TRAIN_SOAK_FUZZ_SECONDS   time for each fuzz target
#   FP8TRAIN_SOAK_MINUTES        time for the disturbed run
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() { sed -n '2,21s/^# \{0,1\}//p' scripts/soak.sh; }

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
  if "build/fuzz/bin/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/fuzz_$name-" "build/fuzz/corpus/fuzz_$name" \
    $(if [ -d "tests/fuzz/corpus/$name" ]; then echo "tests/fuzz/corpus/$name"; fi) \
    >"$logs/fuzz-$name.log" 2>&1; then
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/fuzz-$name.log")
    echo "fuzz passed $name: $inputs inputs"
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
    fuzz_names | grep -qx "$name" ||
      { echo "soak.sh: no fuzz target '$name'; there are: $(fuzz_names | xargs)" >&2; exit 2; }
  done
  bash scripts/build.sh --preset fuzz --cuda off --jobs "$jobs" \
    $(printf -- '--target fuzz_%s ' "${names[@]}") >"$logs/build.log" 2>&1 ||
    { tail -n 30 "$logs/build.log"; return 1; }
  printf '%s\n' "${names[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz_one {}' | tee -a "$logs/results"
}

# one NAME COMMAND...: "NAME passed" or "NAME FAILED" with the end of its log.
one() {
  local name=$1
  shift
  if "$@" >"$logs/$name.log" 2>&1; then
    echo "soak passed $name: $(grep -v '^ *$' "$logs/$name.log" | tail -n 1)"
  else
    echo "soak FAILED $name"
    tail -n 40 "$logs/$name.log"
  fi | tee -a "$logs/results"
}

build() {
  local targets=("$@")
  bash scripts/build.sh --jobs "$jobs" $(printf -- '--target %s ' "${targets[@]}") \
    >"$logs/build.log" 2>&1 || { tail -n 30 "$logs/build.log"; return 1; }
}

soak_faults() {
  build fp8train run_file_faults_test io_test run_limits_test || return 1
  export FP8TRAIN_TEST_ROTATION=all
  one file-faults build/bin/run_file_faults_test
  one damaged-checkpoints build/bin/io_test "no damaged checkpoint is loaded\, whatever the damage"
  one limits build/bin/run_limits_test
}

soak_slurm() {
  build fp8train || return 1
  one slurm bash scripts/soak/slurm_run.sh build/bin/fp8train "${FP8TRAIN_SOAK_MINUTES:-20}"
}

soak_steps() {
  build fp8train || return 1
  one steps python3 scripts/soak/memory_of_steps.py build/bin/fp8train
}

mode=${1:-}
[ $# = 0 ] || shift
case $mode in
  fuzz | faults | slurm | steps)
    mkdir -p "$logs"
    : >"$logs/results"
    "soak_$mode" "$@" || echo "soak FAILED" >>"$logs/results" ;;
  all)
    mkdir -p "$logs"
    : >"$logs/results"
    for mode in faults steps slurm fuzz; do
      "soak_$mode" || echo "soak FAILED" >>"$logs/results"
    done
    ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
failed=$(grep -c ' FAILED' "$logs/results")
echo "$(grep -c ' passed ' "$logs/results") passed, $failed failed"
[ "$failed" = 0 ]
