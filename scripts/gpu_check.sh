#!/usr/bin/env bash
# Proves the cuda backend on a machine with a GPU, and measures it: every kernel against the cpu, whole steps of each row against the cpu,
# ranks over NCCL (one on one GPU; collectives, exchanges and steps of up to four where there are several), 50-step curves, compute-sanitizer where it works, then benchmarks. Meant to take
# under 8 minutes. Needs Python 3.
#
#   scripts/gpu_check.sh [--program DIR] [--out DIR] [--quick] [--peers]
#
#   --program DIR  a bundle made with `scripts/bundle.sh --tests` or a build folder (default: build/bundle/fp8train, else build)
#   --out DIR      for the results (build/gpu-check): gpu_check.json, gpu_check.md and every log
#   --quick        kernels and steps only
#   --peers        also PyTorch with torchao, where this Python has torch; minutes more
#
# Exit code 0 when everything agreed, 1 when something did not, 2 when there is no usable GPU.
exec python3 "$(dirname "$0")/gpu_check.py" "$@"
