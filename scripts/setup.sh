#!/usr/bin/env bash
# Installs the packages that fp8train needs, and only those that are missing, on Debian 12 and 13
# and Ubuntu 24.04. At the end a trial shows whether the build can be configured.
#
#   scripts/setup.sh           what building and running needs
#   scripts/setup.sh --dev     also what tests, the checks of scripts/test.sh and cpack need; next
#                              to a CUDA toolkit with cuDNN the headers of cudnn-frontend too (a
#                              package of PyPI, unpacked to build/cudnn), if Python can fetch them
#   scripts/setup.sh --list    print the packages, install nothing
#
# Installs as root or through `sudo -n`. Where neither works it prints the command for an
# administrator and exits 1.
set -euo pipefail
cd "$(dirname "$0")/.."

build_packages=(
  g++ cmake ninja-build
  libyaml-cpp-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libxxhash-dev libdnnl-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev zlib1g-dev libzstd-dev
)
# Without these the build does without: runs of several ranks; the throw-away cluster
# of tests (scripts/slurm_cluster.sh; the daemons of these packages do not start
# without /etc/slurm/slurm.conf) and other releases (scripts/checks/other_systems.sh).
optional_packages=(libopenmpi-dev openmpi-bin)
optional_dev_packages=(slurm-wlm slurmctld slurmd slurm-client munge procps tmux
  mmdebstrap distro-info-data)
# The build for 64-bit Arm and its run under qemu (scripts/checks/aarch64.sh).
optional_dev_packages+=(g++-aarch64-linux-gnu qemu-user-static)
# file and dpkg-dev: cpack reads the dependencies of the .deb with them. help2man: cpack and
# cmake --install write the manual page with it. libboost-context: fibers of the CUDA host shim.
# libclang-rt: the run-time of libFuzzer and clang's sanitizers. python3: the layer check.
dev_packages=(
  catch2 ccache file dpkg-dev help2man libboost-context-dev clang clang-format clang-tidy python3
)

release=$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${VERSION_ID:-}" || true)
case $release in
  "debian 12") dev_packages+=(libclang-rt-14-dev) ;;
  *) dev_packages+=(libclang-rt-dev) ;;
esac

usage() { sed -n '2,13s/^# \{0,1\}//p' "$0"; }

packages=("${build_packages[@]}")
optional=("${optional_packages[@]}")
list_only=0
dev=0
for argument in "$@"; do
  case $argument in
    --dev) packages+=("${dev_packages[@]}"); optional+=("${optional_dev_packages[@]}"); dev=1 ;;
    --list) list_only=1 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "setup.sh: unknown option '$argument'" >&2; usage >&2; exit 2 ;;
  esac
done
if [ $list_only = 1 ]; then
  printf '%s\n' "${packages[@]}" "${optional[@]}"
  exit 0
fi

# Headers only, so that attention through cuDNN is compiled; without them the build does without.
cudnn_frontend() {
  local folder=build/cudnn package=nvidia-cudnn-frontend==1.32.0
  [ $dev = 1 ] && [ -x "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)" ] &&
    [ ! -e $folder/include/cudnn_frontend.h ] || return 0
  if python3 -m pip download -q --no-deps -d $folder $package &&
    python3 -m zipfile -e $folder/*.whl $folder; then
    echo "setup: headers of $package in $folder"
  else
    echo "setup: $package could not be fetched; attention through cuDNN is left out of the build" \
      >&2
  fi
}

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

find_missing() {
  missing=()
  missing_optional=()
  local package
  for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
  done
  for package in "${optional[@]}"; do
    is_installed "$package" || missing_optional+=("$package")
  done
}

give_up() {
  echo "setup.sh: $1" >&2
  echo "These packages are needed; install them, or ask an administrator to, with:" >&2
  echo "    apt-get install --no-install-recommends ${missing[*]}" >&2
  [ ${#missing_optional[@]} = 0 ] || echo "Useful, but not needed: ${missing_optional[*]}" >&2
  [ "${release% *}" != ubuntu ] ||
    echo "Ubuntu has some of them in its component universe (add-apt-repository universe)." >&2
  echo "A package or wheel that was built on another machine needs none of them:" \
    "docs/use/install.md, \"Packages\"." >&2
  exit 1
}

# Nothing was missing or all was installed: says so if CMake takes these versions too.
finish() {
  cudnn_frontend
  trial=$(mktemp -d)
  if ! cmake --preset release -B "$trial" -DFP8TRAIN_CUDA=OFF >"$trial/log" 2>&1; then
    tail -n 20 "$trial/log" >&2
    rm -rf "$trial"
    echo "setup.sh: the packages are installed, but the build cannot be configured with them" \
      "(${release:-an unknown system}; built on Debian 12, 13 and Ubuntu 24.04)" >&2
    exit 1
  fi
  rm -rf "$trial"
  echo "setup: $1"
  exit 0
}

if ! command -v dpkg-query >/dev/null; then
  missing=("${packages[@]}")
  missing_optional=("${optional[@]}")
  give_up "this is no Debian or Ubuntu; the names below are those of Debian"
fi
case $release in
  "debian 12" | "debian 13" | "ubuntu 24.04") ;;
  *) echo "setup: '$release' is untested; tested are Debian 12, 13 and Ubuntu 24.04" >&2 ;;
esac
find_missing
if [ ${#missing[@]} = 0 ] && [ ${#missing_optional[@]} = 0 ]; then
  finish "all $((${#packages[@]} + ${#optional[@]})) packages are installed"
fi

# dpkg needs ldconfig, which a bare `su` does not find.
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
as_root=()
if [ "$(id -u)" != 0 ]; then
  reason="not root, and sudo asks for a password"
  command -v sudo >/dev/null || reason="not root, and sudo is not installed"
  if ! sudo -n true 2>/dev/null; then
    [ ${#missing[@]} = 0 ] || give_up "$reason"
    finish "done, without ${missing_optional[*]}: $reason"
  fi
  as_root=(sudo -n)
fi

echo "setup: installing ${missing[*]} ${missing_optional[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "PATH=$PATH"
  apt-get -q -o DPkg::Lock::Timeout=120)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"${apt[@]}" update >"$log" 2>&1 ||
  echo "setup: apt-get update failed; trying with the package lists as they are" >&2
if [ ${#missing[@]} != 0 ] &&
  ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
  tail -n 20 "$log" >&2
  give_up "apt-get install failed"
fi
if [ ${#missing_optional[@]} != 0 ] &&
  ! "${apt[@]}" install -y --no-install-recommends "${missing_optional[@]}" >>"$log" 2>&1; then
  echo "setup: apt-get could not install ${missing_optional[*]}; continuing without" >&2
fi
find_missing
[ ${#missing[@]} = 0 ] || give_up "apt-get succeeded, but packages are still missing"
finish "done"
