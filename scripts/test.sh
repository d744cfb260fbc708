#!/usr/bin/env bash
# Sets up, builds and checks everything. The last line is "N passed, N failed"; the exit code is 0
# when nothing failed.
#
#   scripts/test.sh           all stages: set-up, format, layers, release build and tests,
#                             installation, sizes of kernels, sanitizers, fuzzing with clang-tidy
#   scripts/test.sh --quick   release build and its tests only
#   scripts/test.sh --no-setup ...   installs nothing
#
# What is counted: every test program that ctest runs (in each build), every fuzz target, and each
# other stage once.
# The tests under a throw-away Slurm of several nodes are a stage of their own, which starts again
# where the MPI of Debian 12 has crashed at its start, and says so where no Slurm can be started.
# At the end: a table of the stages with their times. Logs of all stages: build/test-logs.
#
# Environment:
#   FP8TRAIN_JOBS            parallel compilers; default as in scripts/build.sh
#   FP8TRAIN_CUDA_ARCHITECTURES  GPUs that kernels are compiled for where there is nvcc, 90a-real:
#                                one takes a third of the time of all
#   FP8TRAIN_FUZZ_SECONDS    time for each fuzz target, 12 (scripts/soak.sh fuzz takes 600)
#   FP8TRAIN_TIDY_SECONDS    time for fuzzing and clang-tidy together, 60. Files changed since the
#                            branch left main come first and always; then the others, from a
#                            position that the commit decides, until the time is over. 0: only
#                            changed files; all: every file, whatever it takes
#   FP8TRAIN_TEST_PART       what a run has in addition to the other stages. AddressSanitizer: 0 for
#                            the modules that compute, 1 for training, 2 for the other modules.
#                            3: ThreadSanitizer. 4: fuzzing. 5: Debian 13. 6: Ubuntu 24.04. 7: the
#                            build for Arm, under qemu. By default the commit's hash decides, and
#                            the date where the sources are no clone
#   FP8TRAIN_TEST_ROTATION   the part of their longest lists of cases that some tests run: a
#                            number, by default that of the commits;
#                            all: every case, and every part
#   FP8TRAIN_SKIP            stages to leave out, by name, separated by spaces
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD

quick=0
setup=1
for argument in "$@"; do
  case $argument in
    --quick) quick=1 ;;
    --no-setup) setup=0 ;;
    -h | --help) sed -n '2,33s/^# \{0,1\}//p' scripts/test.sh; exit 0 ;;
    *) echo "test.sh: unknown option '$argument'" >&2; exit 2 ;;
  esac
done

logs=$root/build/test-logs
mkdir -p "$logs"
cores=$(nproc)
jobs=(${FP8TRAIN_JOBS:+--jobs "$FP8TRAIN_JOBS"})
passed=0
failed=0
failures=()
table=() # NAME SECONDS CPU-SECONDS of each stage

export FP8TRAIN_CUDA_ARCHITECTURES=${FP8TRAIN_CUDA_ARCHITECTURES:-90a-real}

# A run has one of eight parts of the work on sanitizers and other systems, and a part of the
# longest lists of cases (tests/support/share.sh): others after each commit.
today=$(($(date +%s) / 86400))
rotation=${FP8TRAIN_TEST_ROTATION:-$(git rev-list --count HEAD 2>/dev/null || echo $today)}
export FP8TRAIN_TEST_ROTATION=$rotation
# Not by the number of commits, whose steps from test to test may all be even.
if commit=$(git rev-parse HEAD 2>/dev/null); then hash=$((16#${commit::6})); else hash=$today; fi
part=${FP8TRAIN_TEST_PART:-$((hash % 8))}
case $part in
  [0-7]) ;;
  *) echo "test.sh: FP8TRAIN_TEST_PART is 0 to 7, not '$part'" >&2; exit 2 ;;
esac
in_part() { [ "$rotation" = all ] || [ "$part" = "$1" ]; }

# Test programs share the cores: threads that wait must not spin.
export OMP_WAIT_POLICY=passive

# Seconds of processor time of the processes that have ended, from what bash's `times` wrote:
# minutes and seconds, of user and system.
cpu_of() {
  awk 'NR == 2 { split($0, t, /[ms ]+/); printf "%d", t[1] * 60 + t[2] + t[3] * 60 + t[4] }' "$1"
}

# stage NAME FUNCTION: runs it with its output in a log. A stage that counts its own tests
# leaves two numbers in $counts.
stage() {
  local name=$1 start=$SECONDS cpu log=$logs/$1.log status ok=1 bad=0
  times >"$logs/times"
  cpu=$(cpu_of "$logs/times")
  case " ${FP8TRAIN_SKIP:-} " in *" $name "*) printf '%-14s left out\n' "$name"; return 1 ;; esac
  printf '%-14s ' "$name"
  counts=$logs/$name.counts
  rm -f "$counts"
  "$2" >"$log" 2>&1
  status=$?
  if [ -s "$counts" ]; then
    read -r ok bad <"$counts"
    if [ $status != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
  elif [ $status != 0 ]; then
    ok=0 bad=1
  fi
  passed=$((passed + ok))
  failed=$((failed + bad))
  times >"$logs/times"
  cpu=$(($(cpu_of "$logs/times") - cpu))
  table+=("$(printf '%-14s %6d s %8d s' "$name" $((SECONDS - start)) $cpu)")
  if [ "$bad" = 0 ]; then
    printf 'ok      %4d s' $((SECONDS - start))
    [ ! -s "$counts" ] || printf '   %d passed' "$ok"
    local note
    note=$(sed -n 's/^note: //p' "$log" | tail -n 1)
    [ -z "$note" ] || printf '   %s' "$note"
    printf '\n'
    return 0
  fi
  failures+=("$name")
  printf 'FAILED  %4d s   %s\n' $((SECONDS - start)) "$log"
  tail -n "${FP8TRAIN_TAIL:-60}" "$log" | sed 's/^/    /'
  return 1
}

note() { echo "note: $*"; }
# part_stage PART NAME FUNCTION: a stage of one part of the runs.
part_stage() {
  if in_part "$1"; then
    stage "$2" "$3"
  else
    printf '%-14s in part %s (FP8TRAIN_TEST_PART)\n' "$2" "$1"
  fi
}

finish() {
  echo
  printf '%-14s %8s %10s\n' stage time processor
  printf '%s\n' "${table[@]}"
  [ ${#failures[@]} = 0 ] || echo "failed stages: ${failures[*]}"
  echo "time: $SECONDS s on $cores cores"
  echo "$passed passed, $failed failed"
  [ $failed = 0 ] && exit 0
  exit 1
}

# ctest over a build directory; leaves the counts.
run_ctest() {
  local directory=$1 status output=$counts.output
  shift
  "${personality[@]}" ctest --test-dir "$directory" --output-on-failure --no-tests=error \
    --timeout 900 "$@" 2>&1 | tee "$output"
  status=${PIPESTATUS[0]}
  sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests\{0,1\} failed out of \([0-9]*\)$/\1 \2/p' \
    "$output" |
    awk '{print $2 - $1, $1}' >"$counts"
  rm -f "$output"
  return "$status"
}

sources() {
  find lib apps tests -type f \
    \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | sort
}

# Targets of a build directory whose program is bin/PATTERN.
programs() {
  ninja -C "$1" -t targets all | sed -n 's/^\(bin\/[^:]*\): .*/\1/p' | grep -E "^bin/$2\$"
}

setup_stage() { bash scripts/setup.sh $([ $quick = 1 ] || echo --dev); }
format_stage() { sources | xargs clang-format --dry-run -Werror; }
layers_stage() {
  local check
  for check in layers methods words links sizes; do
    python3 "scripts/checks/$check.py" --self-test && python3 "scripts/checks/$check.py" "$root" ||
      return 1
  done
}
scripts_stage() {
  local script
  for script in scripts/*.sh scripts/checks/*.sh packaging/*.sh slurm/*.sbatch tests/run/*.sh \
    .ci/run; do
    bash -n "$script" || return 1
  done
  python3 - scripts <<'PY'
import ast, pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    ast.parse(path.read_text(), str(path))
PY
}
build_stage() { bash scripts/build.sh "${jobs[@]}" --all --unity --cuda auto --werror; }
release_stage() {
  personality=()
  run_ctest build -j $((2 * cores)) -LE slurm  # many wait for processes that they have started
}
slurm_stage() {
  personality=()
  run_ctest build -L slurm
  local status=$?
  ! grep -q '[*][*][*]Skipped' "$logs/slurm.log" || note "no Slurm can be started here"
  return $status
}

# The machine code of kernels against the committed table: what has grown by more
# than a tenth, or spills.
kernels_stage() {
  if ! grep -q '\.cu\.o"' build/compile_commands.json ||
    [[ $FP8TRAIN_CUDA_ARCHITECTURES != *90* ]]; then
    note "no code for compute capability 9.0 is built"
    return
  fi
  python3 scripts/kernel_resources.py --self-test &&
    python3 scripts/kernel_resources.py --check lib/ops/support/kernel_table.json
}

small_enough() {
  local bytes
  bytes=$(stat -c %s "$1")
  note "the stripped program has $((bytes / 1000000)) MB"
  [ "$bytes" -lt 25000000 ]
}

install_stage() {
  local prefix
  prefix=$(mktemp -d)
  cmake --install build --prefix "$prefix" && "$prefix/bin/fp8train" --version &&
    [ -s "$prefix/share/doc/fp8train/README.md" ] &&
    strip "$prefix/bin/fp8train" && small_enough "$prefix/bin/fp8train"
  local status=$?
  rm -rf "$prefix"
  return $status
}

# build_unit_tests PRESET PATTERN [GREP-OPTION]: of the unit tests, the programs whose name is
# PATTERN, or with -v the others. Not run_*_test, which start the program: it trains too slowly in
# this build; nor mpi_comm_test, which mpirun starts.
build_unit_tests() {
  local preset=$1
  cmake --preset "$preset" -DFP8TRAIN_WERROR=ON || return 1
  mapfile -t unit_tests < <(programs "build/$preset" '[A-Za-z0-9_]*_test' |
    grep -vE '^bin/(run|mpi)_' | grep -E ${3:+"$3"} "^bin/$2_test\$")
  [ ${#unit_tests[@]} != 0 ] || { echo "no unit tests in build/$preset"; return 1; }
  bash scripts/build.sh "${jobs[@]}" --preset "$preset" \
    $(printf -- '--target %s ' "${unit_tests[@]}")
}

# run_built_unit_tests PRESET: those whose programs build_unit_tests has built.
run_built_unit_tests() {
  local names
  names=$(ctest --test-dir "build/$1" -L unit --show-only=json-v1 | python3 -c '
import json, pathlib, sys
built = set(sys.argv[1:])
tests = json.load(sys.stdin)["tests"]
def programs(test):
    return {"bin/" + pathlib.Path(part).name for part in test.get("command", [])}
print("|".join(test["name"] for test in tests if built & programs(test)))
' "${unit_tests[@]}")
  run_ctest "build/$1" -L unit -R "^($names)\$" -j "$cores"
}

# LeakSanitizer stops the world with ptrace, which some containers forbid.
leaks_can_be_found() {
  local probe=$logs/leak-probe
  echo 'int main() {}' >"$probe.cpp"
  g++ -fsanitize=address -o "$probe" "$probe.cpp" &&
    ASAN_OPTIONS=detect_leaks=1 "$probe" >/dev/null 2>&1
}

asan_stage() {
  local training='(train|chat_training)'
  local others='(comm|nccl_comm|config|data|dialects|io|io_export|parallel|precision|wizard)'
  local built pattern invert=
  if [ "$rotation" = all ]; then
    built=all pattern='[A-Za-z0-9_]*'
  elif in_part 0; then
    built="modules that compute" pattern="(${training}|${others})" invert=-v
  elif in_part 1; then
    built=training pattern=$training
  else
    built=${others//[()]/} pattern=$others
  fi
  build_unit_tests asan "$pattern" $invert || return 1
  note "${built//|/ }"
  local leaks=1
  leaks_can_be_found || { leaks=0; note "leaks not checked: LeakSanitizer does not work here"; }
  personality=()
  ASAN_OPTIONS=detect_leaks=$leaks:detect_stack_use_after_return=1:strict_string_checks=1 \
    LSAN_OPTIONS=suppressions=$root/scripts/sanitizers/lsan.supp:print_suppressions=0 \
    UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 run_built_unit_tests asan
}

# Built without OpenMP, because libgomp's barriers are invisible to ThreadSanitizer; the one thread
# of oneDNN's own OpenMP as well. Kernels with much address space randomization need `setarch -R`
# for GCC 12's ThreadSanitizer.
#
# Every run has the programs whose code starts threads; of the others, which have one thread here, a
# third, another one after each commit.
tsan_stage() {
  local programs='base|comm|data|device|io|parallel|train' others
  others=(config dialects model nn numeric ops optim precision tensor wizard)
  local i
  for i in "${!others[@]}"; do
    if [ "$rotation" = all ] || [ $((i % 3)) = $((rotation % 3)) ]; then
      programs+="|${others[$i]}"
    fi
  done
  build_unit_tests tsan "($programs)" || return 1
  note "programs: ${programs//|/ }"
  personality=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then personality=(setarch "$(uname -m)" -R); fi
  OMP_NUM_THREADS=1 TSAN_OPTIONS=ignore_noninstrumented_modules=1:second_deadlock_stack=1 \
    run_built_unit_tests tsan
}

# The program for 64-bit Arm: what it computes under qemu, against the build for this machine.
aarch64_stage() { bash scripts/checks/aarch64.sh "${jobs[@]}"; }

fuzz_build_stage() {
  local targets
  cmake --preset fuzz || return 1
  mapfile -t targets < <(programs build/fuzz '[A-Za-z0-9_]*fuzz[A-Za-z0-9_]*')
  [ ${#targets[@]} != 0 ] || { echo "no fuzz targets in build/fuzz"; return 1; }
  bash scripts/build.sh "${jobs[@]}" --preset fuzz $(printf -- '--target %s ' "${targets[@]}")
}

# fuzz_one FOLDER PROGRAM: runs it for FP8TRAIN_FUZZ_SECONDS. Seeds, where there are any:
# tests/fuzz/corpus/NAME. What a target found stays in build/fuzz/findings.
fuzz_one() {
  local program=$2 name
  name=$(basename "$program")
  mkdir -p "build/fuzz/corpus/$name" build/fuzz/findings
  local folders=("build/fuzz/corpus/$name")
  local seeds=tests/fuzz/corpus/${name#fuzz_}
  [ ! -d "$seeds" ] || folders+=("$seeds")
  if "$program" -max_total_time="${FP8TRAIN_FUZZ_SECONDS:-12}" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/$name-" "${folders[@]}" >"$1/fuzz-$name.log" 2>&1; then
    echo "fuzz passed $name"
  else
    echo "fuzz FAILED $name"
    tail -n 40 "$1/fuzz-$name.log"
  fi
}

# Files as clang compiles them, one by one (a configuration without FP8TRAIN_UNITY, which knows no
# GCC-only flag), those changed on this branch first.
tidy_files() {
  local base known changed count offset
  known=$(sed -n 's/^ *"file": "\(.*\)".*/\1/p' build/tidy/compile_commands.json |
    sed "s|^$root/||" | grep -E '^(lib|apps)/' | sort -u)
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [ -z "$base" ] || [ "$base" = "$commit" ]; then
    base=$(git rev-parse -q --verify HEAD~1 2>/dev/null || true)
  fi
  changed=
  if [ -n "$base" ]; then
    changed=$({ git diff --name-only "$base"; git ls-files -o --exclude-standard; } | sort -u |
      grep -Fxf - <(echo "$known") || true)
  fi
  [ -z "$changed" ] || sed 's/^/changed /' <<<"$changed"
  count=$(wc -l <<<"$known")
  offset=$((hash % count))
  { tail -n +$((offset + 1)) <<<"$known"; head -n "$offset" <<<"$known"; } |
    grep -Fxvf <(echo "$changed") | sed 's/^/other /'
}

tidy_one() {
  local kind=$1 file=$2 output
  if [ "$kind" = other ] && [ "$(date +%s)" -ge "$tidy_deadline" ]; then
    echo "tidy left $file"
    return
  fi
  if output=$(clang-tidy -p build/tidy --quiet "$file" 2>&1); then
    echo "tidy passed $file"
  else
    echo "tidy FAILED $file"
    grep -vE '^[0-9]+ warnings? generated|^Suppressed|^Use -header-filter' <<<"$output"
  fi
}

fuzz_or_tidy() {
  if [ "$1" = fuzz ]; then fuzz_one "$logs" "$2"; else tidy_one "$1" "$2"; fi
}

# Fuzz targets and clang-tidy in one queue, so that no core waits for the last target.
fuzz_and_tidy_stage() {
  local output=$logs/fuzz-and-tidy.results seconds=${FP8TRAIN_TIDY_SECONDS:-60}
  local checked tidy_ok=1 good bad
  [ "$seconds" != all ] || seconds=1000000
  cmake --preset fuzz -B build/tidy -DFP8TRAIN_UNITY=OFF || return 1
  export tidy_deadline=$(($(date +%s) + seconds)) logs
  export -f fuzz_one tidy_one fuzz_or_tidy
  { ! in_part 4 || find build/fuzz/bin -maxdepth 1 -type f -executable -name '*fuzz*' | sort |
    sed 's/^/fuzz /'; tidy_files; } |
    xargs -P "$cores" -L 1 bash -c 'fuzz_or_tidy "$@"' queue | tee "$output" | grep -v '^tidy left '
  checked=$(grep -cE '^tidy (passed|FAILED) ' "$output")
  note "clang-tidy: $checked of $((checked + $(grep -c '^tidy left ' "$output"))) files"
  # Once more, at the end, where the log's tail shows it.
  grep -E '^[a-z]* FAILED |: error: ' "$output"
  if [ "$checked" = 0 ] || grep -q '^tidy FAILED ' "$output"; then tidy_ok=0; fi
  good=$(($(grep -c '^fuzz passed ' "$output") + tidy_ok))
  bad=$(($(grep -c '^fuzz FAILED ' "$output") + 1 - tidy_ok))
  echo "$good $bad" >"$counts"
  [ "$bad" = 0 ]
}

# build_in_release RELEASE: the program as a new user of that release builds and starts it.
build_in_release() {
  local status
  bash scripts/checks/other_systems.sh "${jobs[@]}" "$1" 2>&1 | tee "$logs/$1.output"
  status=${PIPESTATUS[0]}
  if [ "$status" != 77 ]; then return "$status"; fi
  note "not tried: $(sed -n 's/^other_systems.sh: //p' "$logs/$1.output" | tail -n 1)"
}
debian_13_stage() { build_in_release trixie; }
ubuntu_24_04_stage() { build_in_release noble; }

if [ $setup = 1 ]; then stage setup setup_stage || finish; fi
if [ $quick = 0 ]; then
  stage format format_stage
  stage scripts scripts_stage
  stage layers layers_stage
fi
if stage build build_stage; then
  stage tests release_stage
  [ $quick = 1 ] || stage slurm slurm_stage
  [ $quick = 1 ] || stage install install_stage
  [ $quick = 1 ] || stage kernels kernels_stage
fi
if [ $quick = 0 ]; then
  # Each part builds the libraries once more, for one sanitizer: a cold run stays under
  # 20 minutes on two cores.
  if in_part 0 || in_part 1 || in_part 2; then
    stage asan asan_stage
  else
    printf '%-14s in parts 0 to 2 (FP8TRAIN_TEST_PART)\n' asan
  fi
  part_stage 3 tsan tsan_stage
  part_stage 4 fuzz-build fuzz_build_stage
  part_stage 5 debian-13 debian_13_stage
  part_stage 6 ubuntu-24.04 ubuntu_24_04_stage
  part_stage 7 aarch64 aarch64_stage
  stage fuzz-and-tidy fuzz_and_tidy_stage
fi
finish
