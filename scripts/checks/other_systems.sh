#!/usr/bin/env bash
# Sets up, builds and starts the program in other releases of Debian and Ubuntu as a new user does:
# a minimal system in a folder, a copy of the sources, scripts/setup.sh, scripts/build.sh, five
# training steps; then Catch2 of that release and the tests of lib/base.
#
#   scripts/checks/other_systems.sh [--jobs N] RELEASE... [-- COMMAND...]
#
#   RELEASE      bookworm (Debian 12), trixie (Debian 13) or noble (Ubuntu 24.04)
#   --jobs N     compilers at a time
#   -- COMMAND   runs this in the copy of the sources instead, such as scripts/demo.sh
#
# The minimal systems stay in build/systems, as archives that are made again after 14 days; compiled
# objects in a cache in FP8TRAIN_SYSTEMS_CCACHE, by default ~/.cache/fp8train-systems. Needs root,
# mmdebstrap and the releases' mirrors. Exit codes: 0 done, 1 failed, 2 usage, 77 something that it
# needs is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

bases=$PWD/build/systems
cache=${FP8TRAIN_SYSTEMS_CCACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fp8train-systems}
jobs=
releases=()
command=()
usage() { sed -n '2,16s/^# \{0,1\}//p' scripts/checks/other_systems.sh; }
skip() { echo "other_systems.sh: $1" >&2; exit 77; }
while [ $# -gt 0 ]; do
  case $1 in
    --jobs) jobs="--jobs ${2:?a number of compilers}"; shift ;;
    bookworm | trixie | noble) releases+=("$1") ;;
    --) shift; command=("$@"); break ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[ ${#releases[@]} != 0 ] || { usage >&2; exit 2; }
[ "$(id -u)" = 0 ] || skip "needs root"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed"
unshare --mount true 2>/dev/null || skip "may not mount"

mkdir -p "$bases" "$cache"
work=$(mktemp -d "$bases/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"  # apt reads keys as another user

default_command() {
  cat <<SH
set -e
scripts/setup.sh
scripts/build.sh --cuda off --werror -DFP8TRAIN_CPU_ISAS=COMMON $jobs  # one level: half the time
build/bin/fp8train --version
yes "the river ran over stones and we slept" | head -n 500 >build/text.txt
build/bin/fp8train device=cpu model.preset=toy data.train=build/text.txt data.seq_length=32 \
  precision.plan=te-delayed training.micro_batch_size=2 training.max_steps=5 threads=2 \
  output_dir=build/run
grep '"steps": 5' build/run/summary.json
apt-get -qq install -y --no-install-recommends catch2 >/dev/null
scripts/build.sh --target base_test $jobs
build/bin/base_test
SH
}

# Debian 12 has no package with Ubuntu's keys; Debian 13 has one.
ubuntu_keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
fetch_ubuntu_keys() {
  [ ! -e $ubuntu_keys ] || return 0
  make_base trixie
  unpack trixie
  enter trixie sh -c 'apt-get -qq update && cd /tmp && apt-get -qq download ubuntu-keyring' ||
    skip "Ubuntu's keys could not be fetched"
  dpkg-deb -x "$work"/trixie/tmp/ubuntu-keyring_*.deb "$work/keys"
  ubuntu_keys=$work/keys$ubuntu_keys
  rm -rf "$work/trixie"
}

make_base() {
  local release=$1 base=$bases/$1.tar options=()
  [ -z "$(find "$base" -mtime -14 2>/dev/null)" ] || return 0
  if [ "$release" = noble ]; then
    fetch_ubuntu_keys
    options=(--components=main,universe "--keyring=$ubuntu_keys" --include=ubuntu-keyring)
  fi
  echo "making the base of $release"
  mmdebstrap --quiet --mode=root --variant=minbase --include=apt,ccache \
    --dpkgopt=force-unsafe-io '--aptopt=Acquire::Languages "none"' "${options[@]}" \
    "$release" "$base.partial.tar" || skip "the base of $release could not be made"
  mv "$base.partial.tar" "$base"
}

unpack() {
  mkdir "$work/$1"
  tar -xf "$bases/$1.tar" -C "$work/$1"
  cp -L /etc/resolv.conf "$work/$1/etc/resolv.conf"
}

# enter RELEASE COMMAND...: in the folder of the sources, if there are any.
enter() {
  local system=$work/$1
  shift
  mkdir -p "$system/ccache" "$system/fp8train"
  unshare --mount --propagation private sh -ec '
    system=$1 cache=$2
    shift 2
    mount -t proc proc "$system/proc"
    mount --rbind /dev "$system/dev"
    mount --bind "$cache" "$system/ccache"
    exec chroot "$system" env -i HOME=/root LANG=C.UTF-8 CCACHE_DIR=/ccache \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      sh -c "cd /fp8train && exec \"\$@\"" sh "$@"
  ' sh "$system" "$cache" "$@"
}

copy_sources() {
  { git ls-files -z --cached --others --exclude-standard 2>/dev/null ||
    find . -path ./build -prune -o -path ./runs -prune -o -type f -print0; } |
    tar -c --null --ignore-failed-read --files-from=- 2>/dev/null | tar -x -C "$1"
}

check_release() {
  local start=$SECONDS
  make_base "$1"
  unpack "$1"
  enter "$1" apt-get -qq update -o APT::Update::Error-Mode=any || skip "no mirror of $1 answers"
  copy_sources "$work/$1/fp8train"
  if [ ${#command[@]} = 0 ]; then
    enter "$1" bash -c "$(default_command)"
  else
    enter "$1" "${command[@]}"
  fi
  rm -rf "${work:?}/$1"
  echo "other_systems.sh: $1 passed in $((SECONDS - start)) s"
}

for release in "${releases[@]}"; do check_release "$release"; done
