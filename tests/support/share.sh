#!/usr/bin/env bash
# share.sh EVERY PROGRAM [DEFAULT]: runs one of EVERY test cases of a program of Catch2, those that
# the variable FP8TRAIN_TEST_ROTATION says (a number, which scripts/test.sh changes with each
# commit; all: every test case). Without it DEFAULT counts, or 0. For programs that take minutes.
set -euo pipefail
every=$1
program=$2
rotation=${FP8TRAIN_TEST_ROTATION:-${3:-0}}
[ "$rotation" != all ] || exec "$program"
names=$(mktemp)
trap 'rm -f "$names"' EXIT
# Catch2 3 has no --list-test-names-only; the exit code of version 2 is the number of names.
list_names() { "$program" --list-test-names-only 2>/dev/null || true; }
# A comma in a name would begin another one.
# is_in_rotation() of tests/support/sanitized.h goes by the rotation itself: without the division
# some of its cases would never meet their test.
{ list_names | grep . || "$program" --list-tests --verbosity quiet; } |
  awk -v every="$every" -v first=$((rotation / 2 % every)) '
  NF && i++ % every == first { gsub(/\\/, "\\\\"); gsub(/,/, "\\,"); print }' >"$names"
[ -s "$names" ] || { echo "share.sh: $program has no test cases" >&2; exit 1; }
echo "$(wc -l <"$names") test cases, one of $every"
"$program" --input-file "$names"
