#!/usr/bin/env bash
# Configures and builds fp8train: build/bin/fp8train.
#
#   scripts/build.sh [--preset NAME] [--target TARGET]... [--all] [--cuda FORM] [--[no-]unity]
#       [--jobs N]
#
#   --preset NAME   release (default), debug, asan, tsan or fuzz; all but release build under
#                   build/NAME
#   --target T      build T instead of the program; may be given several times
#   --all           build everything, tests included
#   --cuda FORM     the backend for GPUs: on, off, or auto: on where nvcc is found, the default of a
#                   new build folder
#   --no-unity      compile every source by itself: a clean build takes twice as long, a build after
#                   a change is shorter. --unity, several sources at a time, is the default
#   --jobs N        default: the number of cores, fewer where memory is short
#
# A build folder keeps what --cuda and --unity said last. ccache is used where it is installed.
# Missing packages: scripts/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,18s/^# \{0,1\}//p' scripts/build.sh; }
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
    --no-unity) settings+=(-DFP8TRAIN_UNITY=OFF); shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown option '$1'" 2 ;;
  esac
done
case $preset in release) directory=build ;; *) directory=build/$preset ;; esac
command -v cmake >/dev/null && command -v ninja >/dev/null ||
  die "cmake and ninja are needed: run scripts/setup.sh"

[ -e "$directory/CMakeCache.txt" ] || settings=(-DFP8TRAIN_UNITY=ON "${settings[@]}")
mkdir -p "$directory"
configure_log=$directory/configure.log
if ! cmake --preset "$preset" "${settings[@]}" >"$configure_log" 2>&1; then
  tail -n 40 "$configure_log" >&2
  die "configuring failed (all of it: $configure_log). Missing packages: scripts/setup.sh"
fi
if [ $all = 0 ] && [ ${#targets[@]} = 0 ]; then targets=(fp8train); fi
arguments=(--build "$directory" -j "$jobs")
[ $all = 1 ] || arguments+=(--target "${targets[@]}")
start=$SECONDS
cmake "${arguments[@]}"
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
