#!/usr/bin/env bash
# Packs the built program with the small shared libraries it needs, so that it runs on another
# Linux of the same architecture whose glibc is as new.
# CUDA's libraries are not packed: the program loads them where they are installed. NCCL, which
# machines with CUDA may lack, is on request.
#
#   scripts/bundle.sh [--build DIR] [--out DIR] [--tests] [--gpu-check] [--wheel FILE]
#                     [--no-torchao] [--nccl]
#
#   --build DIR   the build to pack (build)
#   --out DIR     where the folder and its archive go (build/bundle)
#   --tests       also the programs that scripts/gpu_check.sh runs
#   --gpu-check   also these scripts and torchao, whose float8 training they measure, in an archive
#                 that is smaller: fp8train.tar.xz. The build must have attention in cuDNN
#   --wheel FILE  torchao from this file; else pip fetches it to build/wheels
#   --no-torchao  without torchao
#   --nccl        also libnccl.so.2 (200 MB), from LD_LIBRARY_PATH, the system or the CUDA toolkit
#
# Result: DIR/fp8train/{bin,lib,share} and DIR/fp8train.tar.gz (or .tar.xz: `tar -xJf`, or
# `python3 -m tarfile -e` where there is no xz).
set -euo pipefail
cd "$(dirname "$0")/.."

build=build
out=build/bundle
tests=0
scripts=0
nccl=0
torchao=1
wheel=
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --tests) tests=1; shift ;;
    --gpu-check) scripts=1; shift ;;
    --wheel) wheel=$2; shift 2 ;;
    --no-torchao) torchao=0; shift ;;
    --nccl) nccl=1; shift ;;
    -h | --help) sed -n '2,20s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "bundle.sh: unknown option '$1'" >&2; exit 2 ;;
  esac
done
[ -x "$build/bin/fp8train" ] ||
  { echo "bundle.sh: $build/bin/fp8train is missing; run scripts/build.sh first" >&2; exit 1; }

die() { echo "bundle.sh: $*" >&2; exit 1; }

# torchao as PyTorch's items of gpu_check need it: its Python, without the kernels of its own, which
# float8 training does not call. The wheel is for Python 3.10 and newer.
fetch_torchao() {
  local package=torchao==0.18.0 folder=build/wheels
  mkdir -p $folder
  wheel=$(find $folder -name 'torchao-0.18.0-*.whl' | head -n 1)
  [ -n "$wheel" ] || python3 -m pip download -q --no-deps --only-binary=:all: \
    --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
    -d $folder $package || die "$package could not be fetched; --wheel FILE names it, and" \
    "--no-torchao leaves it out, with PyTorch's float8 figures"
  wheel=$(find $folder -name 'torchao-0.18.0-*.whl' | head -n 1)
}

if [ $scripts = 1 ]; then
  "$build/bin/fp8train" --version | grep -q 'attention(cudnn)' ||
    die "$build has no attention in cuDNN, without which the figures of a GPU mean nothing;\
 scripts/setup.sh --dev fetches the headers to build/cudnn, then build again"
  [ -z "$wheel" ] || [ -e "$wheel" ] || die "--wheel: there is no $wheel"
  for program in cuda_ops_test train_test; do
    [ $tests = 0 ] || [ -x "$build/bin/$program" ] ||
      die "$build/bin/$program is missing, without which nothing is compared with the cpu;\
 scripts/build.sh --target $program builds it"
  done
  [ $torchao = 0 ] || [ -n "$wheel" ] || fetch_torchao
fi

target=$out/fp8train
rm -rf "$target"
cmake --install "$build" --prefix "$target" >/dev/null
if [ $tests = 1 ]; then
  for program in cuda_ops_test train_test nccl_comm_test; do
    [ ! -x "$build/bin/$program" ] || cp "$build/bin/$program" "$target/bin/"
  done
fi

# Everything that the program is linked with, but for the C library and what belongs to a driver.
mkdir -p "$target/lib"
ldd "$target"/bin/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  while read -r library; do
  case $(basename "$library") in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux* | libcuda.so.*) ;;
    *) cp -L "$library" "$target/lib/" ;;
  esac
done
if [ $nccl = 1 ]; then  # where the program would find it; it is not linked, so ldd does not know
  found=
  known=$(ldconfig -p | awk '/libnccl[.]so[.]2/ {print $NF; exit}' | xargs -r dirname) || true
  IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}:$known:/usr/local/cuda/lib64"
  for folder in "${folders[@]}"; do
    [ -n "$found" ] || [ -z "$folder" ] || [ ! -e "$folder/libnccl.so.2" ] ||
      found=$folder/libnccl.so.2
  done
  if [ -z "$found" ]; then
    echo "bundle.sh: libnccl.so.2 is not found; put its folder into LD_LIBRARY_PATH" >&2
    exit 1
  fi
  cp -L "$found" "$target/lib/libnccl.so.2"
fi
if [ $scripts = 1 ]; then
  mkdir -p "$target/scripts/bench" "$target/docs"
  cp -r scripts/gpu_check.sh scripts/gpu_check "$target/scripts/"
  cp scripts/bench/peers.py scripts/bench/torch_models.py scripts/bench/venv_support.py \
    "$target/scripts/bench/"
  cp -r docs/use docs/develop docs/reference "$target/docs/"  # what its small runs train on
  cp README.md LICENSE "$target/"
  if [ $torchao = 1 ]; then
    python3 -m zipfile -e "$wheel" "$target/python"
    find "$target/python" -name '*.so' -delete
  fi
  find "$target/scripts" -name __pycache__ -prune -exec rm -rf {} +
fi
strip --strip-unneeded "$target"/lib/* "$target"/bin/* 2>/dev/null || true
if [ $scripts = 1 ]; then
  # The programs hold the same kernels: a window as large as all of them finds that out.
  archive=$out/fp8train.tar.xz
  tar -C "$out" -cf - fp8train | xz --threads=1 --lzma2=preset=2,dict=192MiB >"$archive"
else
  archive=$out/fp8train.tar.gz
  tar -C "$out" -czf "$archive" fp8train
fi
echo "bundle: $target ($(du -sh "$target" | cut -f1)), $archive ($(du -sh "$archive" | cut -f1))"
