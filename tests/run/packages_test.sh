#!/usr/bin/env bash
# The packages that the README names: their content, dependencies, and a run out of each. Images
# only where Docker or Apptainer work.
#
#   tests/run/packages_test.sh BUILD     exit codes: 0 passed, 1 failed, 77 no dpkg-deb
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
build=$(readlink -f "${1:?usage: packages_test.sh BUILD}")
command -v dpkg-deb >/dev/null || { echo "no dpkg-deb"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
fail() { echo "FAILED: $1"; failures=$((failures + 1)); }
for i in $(seq 400); do echo "the river ran over $i stones and we slept"; done >"$folder/text.txt"
runs() { # PROGRAM...: trains two steps
  (cd "$folder" && rm -rf run && "$@" device=cpu model.preset=toy data.train=text.txt \
    data.seq_length=32 training.micro_batch_size=1 training.max_steps=2 output_dir=run threads=1 \
    -q && test -s run/summary.json) || fail "no run with $*"
}

rm -f "$build"/packages/fp8train*
(cd "$build" && cpack) >"$folder/cpack.log" 2>&1 || { cat "$folder/cpack.log"; fail cpack; }
deb=$(echo "$build"/packages/fp8train_*_"$(dpkg --print-architecture)".deb)
for library in libc6 libstdc++6 libdnnl libyaml-cpp libsentencepiece; do
  dpkg-deb -f "$deb" Depends | grep -q "$library" || fail "the .deb does not depend on $library"
done
dpkg-deb -x "$deb" "$folder/root"
help2man=$(command -v help2man) || echo "no help2man: the packages have no manual page"
for file in bin/fp8train ${help2man:+share/man/man1/fp8train.1} \
  share/bash-completion/completions/fp8train share/zsh/vendor-completions/_fp8train \
  share/fish/vendor_completions.d/fp8train.fish share/fp8train/slurm/single_node.sbatch \
  share/fp8train/configs/laptop.yaml \
  share/fp8train/export/to_wandb.py share/doc/fp8train/LICENSE; do
  test -s "$folder/root/usr/$file" || fail "the .deb has no $file"
done
runs "$folder/root/usr/bin/fp8train"
mkdir "$folder/tgz" && tar -C "$folder/tgz" --strip-components=1 \
  -xzf "$build"/packages/fp8train-*.tar.gz || fail "the .tar.gz"
runs "$folder/tgz/bin/fp8train"

scripts/wheel.sh --build "$build" --out "$folder/wheel" >"$folder/wheel.log" 2>&1 ||
  { cat "$folder/wheel.log"; fail wheel.sh; }
if python3 -m venv "$folder/venv" 2>/dev/null; then
  "$folder/venv/bin/pip" install -q --no-index "$folder"/wheel/*.whl 2>"$folder/pip.log" ||
    { cat "$folder/pip.log"; fail "pip install"; }
  runs env -u LD_LIBRARY_PATH "$folder/venv/bin/fp8train"
  "$folder/venv/bin/fp8train" cofig 2>/dev/null
  [ $? = 2 ] || fail "the wheel's command does not pass the exit code on"
else
  echo "no python3 venv: the wheel is not installed"
fi

if timeout 20 docker version >/dev/null 2>&1; then
  docker build -q -f packaging/Dockerfile -t fp8train-test . >/dev/null || fail "docker build"
  docker run --rm fp8train-test --version || fail "docker run"
else
  echo "no Docker daemon: packaging/Dockerfile is not tested"
fi
if command -v apptainer >/dev/null; then
  apptainer build --fakeroot "$folder/fp8train.sif" packaging/fp8train.def &&
    apptainer run "$folder/fp8train.sif" --version || fail apptainer
else
  echo "no apptainer: packaging/fp8train.def is not tested"
fi
[ $failures = 0 ] && echo "passed"
exit $((failures > 0))
