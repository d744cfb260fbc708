#!/usr/bin/env bash
# Packs the built program with the small shared libraries it needs, so that it runs on another x86-64 Linux (glibc 2.36 or newer).
# CUDA's libraries are not packed: the program loads them where they are installed.
#
#   scripts/bundle.sh [--build DIR] [--out DIR] [--tests]
#
#   --build DIR   the build to pack (build)
#   --out DIR     where the folder and its archive go (build/bundle)
#   --tests       also the programs that scripts/gpu_check.sh runs
#
# Result: DIR/fp8train/{bin,lib,share} and DIR/fp8train.tar.gz.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build
out=build/bundle
tests=0
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --tests) tests=1; shift ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "bundle.sh: unknown option '$1'" >&2; exit 2 ;;
  esac
done
[ -x "$build/bin/fp8train" ] || { echo "bundle.sh: $build/bin/fp8train is missing; run scripts/build.sh first" >&2; exit 1; }

target=$out/fp8train
rm -rf "$target"
cmake --install "$build" --prefix "$target" >/dev/null
if [ $tests = 1 ]; then
  for program in cuda_ops_test train_test; do
    [ ! -x "$build/bin/$program" ] || cp "$build/bin/$program" "$target/bin/"
  done
fi

# Everything that the program is linked with, but for the C library and what belongs to a driver.
mkdir -p "$target/lib"
ldd "$target"/bin/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
  case $(basename "$library") in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux* | libcuda.so.*) ;;
    *) cp -L "$library" "$target/lib/" ;;
  esac
done
strip --strip-unneeded "$target"/lib/* "$target"/bin/* 2>/dev/null || true
tar -C "$out" -czf "$out/fp8train.tar.gz" fp8train
echo "bundle: $target ($(du -sh "$target" | cut -f1)), $out/fp8train.tar.gz ($(du -sh "$out/fp8train.tar.gz" | cut -f1))"
