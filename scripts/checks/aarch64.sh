#!/usr/bin/env bash
# Builds the program for 64-bit Arm with the cross compiler, runs it and the tests of numbers and
# casts under qemu, and compares what they compute with the build for this machine, bit for bit.
#
#   scripts/checks/aarch64.sh [--jobs N]
#
# Needs build/bin/fp8train and build/bin/ops_test (scripts/build.sh), the packages
# g++-aarch64-linux-gnu, qemu-user-static and mmdebstrap, and a mirror of Debian, from which
# libraries for arm64 are unpacked once to build/aarch64-sysroot. If one of these is missing, the
# script says so and ends with 0. The build for Arm stays in build/aarch64.
#
# Equal in all bits: what ops_test notes of each operation (FP8TRAIN_BITS_FILE), and the files that
# `fp8train quantize` writes. A training does not have the same bits, because oneDNN adds products
# in another order: its losses have to agree, and the number of equal tensors is printed.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
sysroot=$root/build/aarch64-sysroot
build=$root/build/aarch64
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --jobs) jobs=$2; shift 2 ;;
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "aarch64.sh: unknown option '$1'" >&2; exit 2 ;;
  esac
done
skip() { echo "note: left out: $1"; exit 0; }
die() { echo "aarch64.sh: $1" >&2; exit 1; }

command -v aarch64-linux-gnu-g++ >/dev/null || skip "g++-aarch64-linux-gnu is not installed"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
  skip "qemu-user-static is not installed"
[ -x build/bin/fp8train ] && [ -x build/bin/ops_test ] ||
  die "first run scripts/build.sh --target fp8train --target ops_test"

# Packages of the release that this machine has, so that compiler and libraries fit together.
unpack_sysroot() {
  local codename packages
  codename=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") ||
    skip "libraries for arm64 are unpacked on Debian only"
  packages=$(scripts/setup.sh --dev --list | grep -E '^(lib|zlib|nlohmann|catch2)' |
    grep -vE 'openmpi|clang' | paste -sd,)
  if [ "$(cat "$sysroot/packages" 2>/dev/null)" = "$codename $packages" ]; then return; fi
  command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed"
  rm -rf "$sysroot"
  mmdebstrap --variant=extract --architectures=arm64 "--include=$packages,libc6-dev,libstdc++6" \
    "$codename" "$sysroot" >build/aarch64-sysroot.log 2>&1 || {
    tail -n 5 build/aarch64-sysroot.log
    rm -rf "$sysroot"
    skip "mmdebstrap could not unpack packages for arm64"
  }
  local link
  find "$sysroot" -type l -lname '/*' | while read -r link; do
    ln -sfnr "$sysroot$(readlink "$link")" "$link"
  done
  echo "$codename $packages" >"$sysroot/packages"
}
unpack_sysroot

# What is no kernel is compiled with -O1: half the time.
mkdir -p "$build"
cmake --preset aarch64 -DFP8TRAIN_UNITY=ON "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" \
  >"$build/configure.log" 2>&1 || { tail -n 40 "$build/configure.log"; die "configuring failed"; }
cmake --build "$build" -j "$jobs" --target fp8train numeric_test ops_test

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
arm() { "$qemu" -L "$sysroot" "$build/bin/$1" "${@:2}"; }
export OMP_NUM_THREADS=1 FP8TRAIN_CPU_GEMM=fp32

arm fp8train --version
aarch64-linux-gnu-strip -o "$work/stripped" "$build/bin/fp8train"
arm numeric_test
arm ops_test "*codes*,gemm of small integers*,gemm names*"

# The operations that give the same bits at every level.
tests="*at every level*,store keeps*,compressed tensors*,a norm that*,sum_of_squares*"
FP8TRAIN_BITS_FILE=$work/bits.native build/bin/ops_test "$tests" >"$work/log"
FP8TRAIN_BITS_FILE=$work/bits.arm arm ops_test "$tests"
comm -3 <(sort "$work/bits.arm") <(sort "$work/bits.native") >"$work/bits.other"
[ "$(wc -l <"$work/bits.arm")" -ge 200 ] || die "$tests finds few operations: fewer than 200 runs"
if [ -s "$work/bits.other" ]; then
  cat "$work/bits.other"
  die "operations have other bits on Arm (lines: test, number of the run, bytes, hash)"
fi
operations=$(awk '{ runs++; bytes += $(NF - 1) } END { print runs " runs, " bytes " bytes" }' \
  "$work/bits.arm")

# Trainings of three steps, and casts of their weights.
scripts/checks/compare_runs.py --text "$work/text.txt"
train() { # PLAN FOLDER COMMAND...
  "${@:3}" device=cpu model.preset=toy "data.train=$work/text.txt" data.seq_length=32 \
    training.max_steps=3 training.micro_batch_size=2 optimizer.lr=3e-3 checkpoint.interval=3 \
    logging.interval=1 "precision.plan=$1" "output_dir=$2" -q
}
for plan in te-delayed te-blockwise fp8-lm; do
  train "$plan" "$work/native-$plan" build/bin/fp8train
  train "$plan" "$work/arm-$plan" arm fp8train
done
scripts/checks/compare_runs.py "$work"

weights=$(find "$work/native-te-delayed/checkpoints" -name model.safetensors | head -n 1)
cast() { # OUT COMMAND...
  "${@:2}" quantize "$weights" --out "$1" --overwrite "${format[@]}" >/dev/null
}
files=0
while read -r -a format; do
  cast "$work/native.safetensors" build/bin/fp8train
  cast "$work/arm.safetensors" arm fp8train
  cmp "$work/native.safetensors" "$work/arm.safetensors" ||
    die "quantize ${format[*]} has other bits on Arm"
  files=$((files + 1))
done <<'FORMATS'
--format e4m3 --granularity tensor
--format e5m2 --granularity tensor --rounding stochastic --seed 5
--format e4m3 --granularity row
--format e4m3 --granularity 1x128 --scale pow2
--format e4m3 --granularity 128x128
--format e4m3 --granularity 1x32
--format int8 --granularity 1x128
FORMATS
echo "note: $(($(stat -c %s "$work/stripped") / 1000000)) MB; equal in all bits: $operations of" \
  "operations, $files files of quantize"
