#!/usr/bin/env bash
# scripts/setup.sh and scripts/build.sh before projects that cannot be configured or built: they
# name the cause, and setup.sh is not done where the build would fail.
#
#   tests/run/build_scripts_test.sh SOURCES
set -uo pipefail
sources=$(readlink -f "${1:?usage: build_scripts_test.sh SOURCES}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/scripts" "$folder/bin" "$folder/packages"
cp "$sources"/scripts/{build,setup}.sh "$folder/scripts"
cp "$sources/CMakePresets.json" "$folder"
failures=0
fail() { echo "FAILED: $1"; failures=$((failures + 1)); }

# A package of a version that no project asks for.
echo 'set(PACKAGE_VERSION 3.0)' >"$folder/packages/OldConfigVersion.cmake"
touch "$folder/packages/OldConfig.cmake"

# project LINE: the next commands meet this project.
project() {
  rm -rf "$folder/build"
  printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(sample LANGUAGES NONE)' "$1" \
    >"$folder/CMakeLists.txt"
}
# expect CODE TEXT COMMAND...: the command ends with the code, and its output has the text.
expect() {
  local code=$1 text=$2 output status
  shift 2
  output=$(cd "$folder" && "$@" 2>&1 </dev/null)
  status=$?
  [ $status = "$code" ] || fail "'$*' ended with $status, not $code: $output"
  grep -qF -- "$text" <<<"$output" || fail "'$*' does not say '$text': $output"
}

missing="the error names what is missing: run scripts/setup.sh"
version="the error names a program or library whose version is not supported"
project 'find_package(NoSuchPackage REQUIRED)'
expect 1 "$missing" scripts/build.sh
project 'find_path(HEADER no_such_header.h REQUIRED)'
expect 1 "$missing" scripts/build.sh
project 'find_package(Old 2 REQUIRED PATHS ${CMAKE_SOURCE_DIR}/packages)'
expect 1 "$version" scripts/build.sh
project 'cmake_minimum_required(VERSION 99.0)'
expect 1 "$version" scripts/build.sh
project 'message(STATUS "Foo: none (it was not found)")
message(FATAL_ERROR "FP8TRAIN_CPU_ISAS: wrong")'
expect 1 "the error is none of a missing package" scripts/build.sh
project 'add_custom_target(fp8train COMMAND false)'
expect 1 "compiling failed" scripts/build.sh

for jobs in 0 -1 many ''; do
  expect 2 "--jobs is a number of compilers, not '$jobs'" scripts/build.sh --jobs "$jobs"
done

project 'message(STATUS "Tests: none (Catch2 was not found)")
add_custom_target(fp8train ALL)'
expect 0 "build: preset release" scripts/build.sh
expect 1 "tests need Catch2" scripts/build.sh --all
expect 1 "tests need Catch2" scripts/build.sh --target base_test

# setup.sh where packages are installed, missing, or cannot be installed.
cat >"$folder/bin/dpkg-query" <<'SH'
#!/bin/sh
echo "${FAKE_STATUS}"
SH
printf '#!/bin/sh\nexit 1\n' >"$folder/bin/sudo"
printf '#!/bin/sh\necho 1000\n' >"$folder/bin/id"
printf '#!/bin/sh\nexit 100\n' >"$folder/bin/apt-get"
chmod +x "$folder"/bin/*
export PATH=$folder/bin:$PATH
export FAKE_STATUS=installed
expect 0 "packages are installed" scripts/setup.sh
project 'find_package(NoSuchPackage REQUIRED)'
expect 1 "the build cannot be configured" scripts/setup.sh
export FAKE_STATUS=
expect 1 "not root, and sudo asks for a password" scripts/setup.sh
expect 1 "apt-get install --no-install-recommends g++ cmake" scripts/setup.sh
rm "$folder/bin/id"
printf '#!/bin/sh\nexec "$@"\n' >"$folder/bin/sudo"
expect 1 "apt-get install failed" scripts/setup.sh

user=$("$folder/scripts/setup.sh" --list)
dev=$("$folder/scripts/setup.sh" --list --dev)
for package in catch2 ccache file dpkg-dev; do
  ! grep -qx $package <<<"$user" || fail "a user has to install $package"
  grep -qx $package <<<"$dev" || fail "--dev lacks $package"
done
[ $failures = 0 ] && echo "build scripts: all as expected"
exit $((failures != 0))
