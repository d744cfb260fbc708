#!/usr/bin/env bash
# Builds the image of packaging/Dockerfile from the last commit, and in it asks for the version and
# trains five steps.
#
#   packaging/check_container.sh [--make-base] [--jobs N] [--keep]
#
#   --make-base   make the base image debian:trixie-slim with mmdebstrap from a Debian mirror
#                 (FP8TRAIN_DEBIAN_MIRROR, by default http://deb.debian.org/debian), for machines
#                 that reach a mirror and no registry of images
#   --jobs N      compilers at a time in the image
#   --keep        leave the storage (FP8TRAIN_CONTAINER_STORAGE, by default build/container) with
#                 the images
#
# Needs root, buildah, and with --make-base mmdebstrap, but not Docker's daemon, cgroups or a driver
# for layers: buildah's isolation is chroot, and the network is that of the host. Never pulls an
# image. Exit codes: 0 done, 1 failed, 2 usage, 77 a tool or the base image is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

base=docker.io/library/debian:trixie-slim
image=localhost/fp8train:check
storage=${FP8TRAIN_CONTAINER_STORAGE:-$PWD/build/container}
mirror=${FP8TRAIN_DEBIAN_MIRROR:-http://deb.debian.org/debian}
make_base=0
jobs=
keep=0
usage() { sed -n '2,16s/^# \{0,1\}//p' packaging/check_container.sh; }
skip() { echo "check_container.sh: $1" >&2; exit 77; }
while [ $# -gt 0 ]; do
  case $1 in
    --make-base) make_base=1 ;;
    --jobs) jobs=${2:?a number of compilers}; shift ;;
    --keep) keep=1 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

[ "$(id -u)" = 0 ] || skip "needs root"
command -v buildah >/dev/null || skip "buildah is not installed"
[ $make_base = 0 ] || command -v mmdebstrap >/dev/null || skip "--make-base needs mmdebstrap"

work=$(mktemp -d)
cleanup() {
  rm -rf "$work"
  [ $keep = 1 ] || rm -rf "$storage/root" "$storage/run"
  rmdir "$storage" 2>/dev/null || true
}
trap cleanup EXIT
mkdir -p "$storage"
export BUILDAH_ISOLATION=chroot
buildah=(buildah --root "$storage/root" --runroot "$storage/run" --storage-driver vfs)

has_image() { "${buildah[@]}" inspect --type image "$1" >/dev/null 2>&1; }

# What debian:trixie-slim is: the smallest variant, without pages of documentation.
make_base_image() {
  local path container
  local options=()
  for path in /usr/share/man /usr/share/info /usr/share/doc /usr/share/locale; do
    options+=("--dpkgopt=path-exclude=$path/*")
  done
  mmdebstrap --mode=root --variant=minbase "${options[@]}" trixie "$work/base.tar" \
    "deb $mirror trixie main" \
    "deb $mirror trixie-updates main" "deb $mirror-security trixie-security main"
  container=$("${buildah[@]}" from scratch)
  "${buildah[@]}" add "$container" "$work/base.tar" /
  "${buildah[@]}" config --cmd bash "$container"
  "${buildah[@]}" commit --rm "$container" "$base"
}

has_image "$base" || [ $make_base = 0 ] || make_base_image
has_image "$base" || skip "there is no image $base in $storage; --make-base makes it"

git archive --prefix=source/ HEAD | tar -x -C "$work"
"${buildah[@]}" bud --pull-never --network host --file packaging/Dockerfile \
  ${jobs:+--build-arg "JOBS=$jobs"} --tag "$image" "$work/source"

container=$("${buildah[@]}" from --pull-never "$image")
in_image() { "${buildah[@]}" run --network host "$container" -- "$@"; }
in_image fp8train --version
in_image sh -c 'yes "the river ran over stones and we slept" | head -n 500 >text.txt'
in_image fp8train device=cpu model.preset=toy data.train=text.txt data.seq_length=32 \
  precision.plan=te-delayed training.micro_batch_size=2 \
  training.max_steps=5 threads=2 output_dir=run
in_image mpirun --allow-run-as-root --oversubscribe -n 2 fp8train device=cpu model.preset=toy \
  data.train=text.txt data.seq_length=32 \
  training.micro_batch_size=1 training.max_steps=5 threads=1 output_dir=ranks
for run in run ranks; do in_image grep -q '"steps": 5' $run/summary.json; done
"${buildah[@]}" rm "$container" >/dev/null
echo "check_container.sh: $image runs"
