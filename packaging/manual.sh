#!/usr/bin/env bash
# Writes the manual page with help2man: the pages of --help of the program and of all commands.
#
#   packaging/manual.sh OUTPUT [EMULATOR] PROGRAM
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
output=$1
shift
include=$(mktemp)
trap 'rm -f "$include"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$source" log -1 --format=%ct 2>/dev/null ||
  date +%s)}

help_of() { # COMMAND...: a section, in the macros of man(7)
  printf '[%s]\n.nf\n' "$*"
  "${program[@]}" "$@" --help |
    sed "s/\\\\/\\\\e/g; s/-/\\\\-/g; s/'/\\\\(aq/g; s/\`/\\\\(ga/g; s/^\\./\\\\\\&./"
  printf '.fi\n\n'
}
parts_of() { # COMMAND...: without keys and files
  "${program[@]}" complete "$@" "" | cut -f 1 | grep -v '=$\|^FILES$' || true
}
program=("$@")
{
  cat "$source/packaging/manual.h2m"
  for command in $(parts_of); do
    help_of "$command"
    for part in $(parts_of "$command"); do help_of "$command" "$part"; done
  done
} >"$include"
help2man --no-info --include "$include" --output "$output" \
  --version-string "$("$@" --version | sed -n '1s/^[^ ]* //p')" "$*"
