#!/usr/bin/env bash
# Packs the built program as a Python wheel:
# `pip install fp8train-VERSION-py3-none-manylinux_*.whl` puts `fp8train` on the PATH of an
# environment, with the libraries that scripts/bundle.sh packs. It needs neither Python's headers
# nor any Python package. The file's name ends with the architecture: _x86_64 or _aarch64.
#
#   scripts/wheel.sh [--build DIR] [--out DIR]
#
#   --build DIR   the build to pack (build)
#   --out DIR     where the wheel goes (build/wheel)
set -euo pipefail
cd "$(dirname "$0")/.."
build=build
out=build/wheel
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "wheel.sh: unknown option '$1'" >&2; exit 2 ;;
  esac
done
bundle=$(mktemp -d)
trap 'rm -rf "$bundle"' EXIT
scripts/bundle.sh --build "$build" --out "$bundle" >/dev/null
mkdir -p "$out"
python3 scripts/write_wheel.py "$bundle/fp8train" "$out"
