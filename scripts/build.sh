#!/usr/bin/env bash
# Configures and builds fp8train: build/bin/fp8train.
#
#   scripts/build.sh [--preset NAME] [--target TARGET]... [--all] [--cuda FORM] [--[no-]unity]
#       [--werror] [--jobs N] [-DNAME=VALUE]...
#
#   --preset NAME   release (default), debug, asan, tsan or fuzz; all but release build under
#                   build/NAME
#   --target T      build T instead of the program; may be given several times
#   --all           build everything, tests included (they need Catch2: scripts/setup.sh --dev)
#   --cuda FORM     the backend for GPUs: on, off, or auto: on where nvcc is found, the default of a
#                   new build folder
#   --no-unity      compile every source by itself: a clean build takes twice as long, a build after
#                   a change is shorter. --unity, several sources at a time, is the default
#   --werror        warnings of the compiler are errors, as in scripts/test.sh
#   --jobs N        default: the number of cores, fewer where memory is short
#   -DNAME=VALUE    a setting of CMake, such as -DFP8TRAIN_CUDNN_FRONTEND=FOLDER
#
# A build folder keeps what --cuda, --unity and --werror said last, and settings of CMake. ccache is
# used where it is installed. Missing packages: scripts/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,21s/^# \{0,1\}//p' scripts/build.sh; }
die() { echo "build.sh: $1" >&2; exit "${2:-1}"; }

default_jobs() {
  local cores memory
  cores=$(nproc)
  # 1.5 GB a job
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1500000)}' /proc/meminfo 2>/dev/null || true)
  [ -n "$memory" ] || memory=$cores
  [ "$memory" -ge 1 ] || memory=1
  if [ "$memory" -lt "$cores" ]; then echo "$memory"; else echo "$cores"; fi
}

preset=release
targets=()
all=0
settings=()
jobs=$(default_jobs)
while [ $# -gt 0 ]; do
  case $1 in
    --preset | --target | --jobs | --cuda)
      [ $# -ge 2 ] || die "$1 needs a value" 2
      case $1 in
        --preset) preset=$2 ;;
        --target) targets+=("$2") ;;
        --jobs) jobs=$2 ;;
        --cuda)
          case $2 in
            auto | on | off) settings+=("-DFP8TRAIN_CUDA=${2^^}") ;;
            *) die "--cuda is auto, on or off, not '$2'" 2 ;;
          esac ;;
      esac
      shift 2 ;;
    --all) all=1; shift ;;
    --unity) settings+=(-DFP8TRAIN_UNITY=ON); shift ;;
    -D?*) settings+=("$1"); shift ;;
    --werror) settings+=(-DFP8TRAIN_WERROR=ON); shift ;;
    --no-unity) settings+=(-DFP8TRAIN_UNITY=OFF); shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown option '$1'" 2 ;;
  esac
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs is a number of compilers, not '$jobs'" 2
case $preset in release) directory=build ;; *) directory=build/$preset ;; esac
for tool in cmake ninja; do
  command -v $tool >/dev/null || die "$tool is not installed: run scripts/setup.sh"
done

# Says why CMake ended, from the error that it printed.
blame() {
  local error
  error=$(sed -n '/^CMake Error/,$p' "$1" | tr -s ' \n' ' ')  # CMake wraps lines
  tail -n 40 "$1" >&2
  echo "build.sh: configuring failed (all of it: $1)" >&2
  if grep -qE 'or higher is required|is compatible with requested|required is at least|is needed' \
    <<<"$error"; then
    die "the error names a program or library whose version is not supported"
  elif grep -qiE 'could not find|not found|no .* could be found' <<<"$error"; then
    die "the error names what is missing: run scripts/setup.sh"
  fi
  die "the error is none of a missing package"
}

[ -e "$directory/CMakeCache.txt" ] || settings=(-DFP8TRAIN_UNITY=ON "${settings[@]}")
mkdir -p "$directory"
configure_log=$directory/configure.log
cmake --preset "$preset" "${settings[@]}" >"$configure_log" 2>&1 || blame "$configure_log"
if grep -q 'Tests: none' "$configure_log" && [[ $all = 1 || " ${targets[*]}" == *_test* ]]; then
  die "tests need Catch2, version 2 or 3: run scripts/setup.sh --dev"
fi
if [ $all = 0 ] && [ ${#targets[@]} = 0 ]; then targets=(fp8train); fi
arguments=(--build "$directory" -j "$jobs")
[ $all = 1 ] || arguments+=(--target "${targets[@]}")
start=$SECONDS
cmake "${arguments[@]}" ||
  die "compiling failed: the compiler's first error above says where. No package is missing;
\"Killed\" means that memory was short (--jobs 1)"
echo "build: preset $preset, $((SECONDS - start)) s"
[ ! -x "$directory/bin/fp8train" ] || echo "build: $directory/bin/fp8train"
if grep -q 'cuDNN attention: OFF' "$configure_log"; then
  echo "build: attention without cuDNN, about three times as slow: its headers were not found." \
    "scripts/setup.sh --dev fetches them to build/cudnn; then build again"
fi
if [ "$preset" = release ] && grep -q '^FP8TRAIN_CUDA:[A-Z]*=OFF' build/CMakeCache.txt &&
  [ -x "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)" ]; then
  echo "build: without the backend for GPUs; scripts/build.sh --cuda auto builds it"
fi
