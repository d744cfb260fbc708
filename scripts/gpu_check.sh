#!/usr/bin/env bash
# Proves the cuda backend on a machine with a GPU, and measures it, item by item: each has a time
# limit of its own, and its result is in results.jsonl before the next one starts, so that a killed
# run keeps its results. The items have one order, by value, over three groups:
#   1  device, libraries, scale modes, every kernel and whole steps against the cpu,
#      compute-sanitizer
#   2  whether the model's products are right; rates of casts, products, attention and whole steps
#      of Llama-3-8B's width; the longest kernels
#   3  the same step in PyTorch, torchao and fp8train alternately; losses over 50 steps against the
#      cpu
# Models of groups 2 and 3 have as many layers as the GPU's memory takes: 16 from 130 GiB, 8 on 80
# GB. docs/develop/first_gpu.md has the commands for a GPU that is at hand for minutes.
#
#   scripts/gpu_check.sh [--group N]... [--only NAMES] [--skip NAMES] [--resume] [--retry]
#                        [--budget SECONDS] [--list] [--program PATH] [--tests DIR] [--out DIR]
#                        [--work DIR] [--python PATH] [--small]
#   scripts/gpu_check.sh --table FILE...
#   scripts/gpu_check.sh --bundle [OPTIONS]
#
#   --group N         1, 2 or 3; several may be given (all)
#   --only, --skip    items by name, by the first part of a name ("kernels") or by pattern
#                     ("step.te-*"), with commas
#   --resume          leaves out what results.jsonl of the output folder has of this GPU; --retry:
#                     and runs failed items again
#   --budget SECONDS  no item is started that would not fit, and none runs longer (540 for each
#                     group)
#   --list            the items, their usual times and limits, and when each has usually ended; with
#                     --budget those that fit. Nothing runs
#   --program PATH    a bundle, a build folder or the program (the bundle that this lies in,
#                     build/bundle/fp8train or build)
#   --tests DIR       where the test programs are (the program's folder)
#   --out DIR         results.jsonl, table.txt, failures.txt and logs.tar.gz (build/gpu-check)
#   --work DIR        logs and runs (a temporary folder)
#   --python PATH     the Python of group 3, with torch (this one); torchao may come from the bundle
#   --small           small models and matrices, to try the check itself
#   --table FILE...   the tables of several results.jsonl; GPUs and models that may not be compared
#                     have one each
#   --bundle          packs what another machine needs (scripts/bundle.sh --tests --gpu-check and
#                     the options that follow); build for its GPU alone, for instance with
#                     FP8TRAIN_CUDA_ARCHITECTURES=90a-real
#
# Exit code 0 when everything agreed, 1 when something did not or no time was left, 2 when there is
# no usable GPU. Needs Python 3.10.
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
case ${1:-} in
  -h | --help) sed -n '2,48s/^# \{0,1\}//p' "$0"; exit 0 ;;
  --bundle) shift; exec bash "$scripts/bundle.sh" --tests --gpu-check "$@" ;;
esac
PYTHONPATH=$scripts${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 \
  exec python3 -u -m gpu_check "$@"
