#!/usr/bin/env bash
# Completion in bash as a shell calls it, and the manual page as man reads it.
#
#   tests/run/completions_test.sh PROGRAM
set -uo pipefail
program=$(readlink -f "${1:?usage: completions_test.sh PROGRAM}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
touch run.yaml other.txt
failures=0
fail() { echo "FAILED: $1"; failures=$((failures + 1)); }

eval "$("$program" completions bash)" || fail "bash does not take the script"
compopt() { options="$options $*"; }  # outside of a completion it is an error
# completed WORD...: what completing the last word offers, on one line
completed() {
  COMP_WORDS=(fp8train "$@")
  COMP_CWORD=$#
  options=
  _fp8train
  echo "${COMPREPLY[*]}"
}
offers() { # WANTED WORD...
  local wanted=$1 got
  shift
  got=$(completed "$@")
  [[ " $got " == *" $wanted "* ]] || fail "'fp8train $*' offers '$got', not '$wanted'"
}
is() {
  local wanted=$1 got
  shift
  got=$(completed "$@")
  [ "$got" = "$wanted" ] || fail "'fp8train $*' offers '$got' instead of '$wanted'"
}
is doctor doct
is "explain export" exp
offers run.yaml ru
is --max-steps train --max-s
is --max-steps run.yaml --max-s
is show config sh
is "--resolved" config show --res
is optimizer.lr= train --set optimizer.lr
is optimizer.lr= run.yaml optimizer.lr
is data.tokenizer config explain data.tok
is mixed_precision= run.yaml mix
completed run.yaml mix >completed.txt
[[ $options == *nospace* && $options != *filenames* ]] || fail "bash escapes the = of a key"
is "" train --config ""   # a file: readline's own
is "bash zsh fish" completions "" # parts, and no files
is "bash" completions b
offers --json doctor --j
commands=$("$program" completions bash | sed -n "s/^    '') parts='\(.*\)' ;;/\1/p" |
  head -1) || true
for command in $commands; do
  "$program" "$command" --help >/dev/null || fail "$command is offered and is no command"
done
for shell in zsh fish; do
  "$program" completions $shell >"$folder/$shell" || fail "completions $shell"
  grep -q doctor "$folder/$shell" || fail "$shell does not know doctor"
  ! command -v $shell >/dev/null || $shell -n "$folder/$shell" ||
    fail "$shell does not read its script"
done
# Files again once a part is given.
grep -q "and not __fish_seen_subcommand_from show .* -f -a show" "$folder/fish" ||
  fail "fish offers no files after a part"
bash -n <("$program" completions bash) || fail "the bash script is no script"

"$program" man >fp8train.1 || fail "man"
for word in .TH "config show" "\\-\\-max\\-steps" FP8TRAIN_CPU_ISA; do
  grep -qF -e "$word" fp8train.1 || fail "the manual page has no $word"
done
if command -v man >/dev/null; then
  warnings=$(LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -E UTF-8 -l fp8train.1 2>&1 >page.txt)
  [ -z "$warnings" ] || fail "man: $warnings"
  [ -s page.txt ] || echo "man renders nothing here"
fi
if command -v groff >/dev/null; then
  warnings=$(groff -man -Tutf8 -ww -z fp8train.1 2>&1)
  [ -z "$warnings" ] || fail "groff: $warnings"
fi
if command -v mandoc >/dev/null; then
  mandoc -Tlint -W warning fp8train.1 || fail "mandoc"
fi
[ $failures = 0 ] && echo "passed"
exit $((failures > 0))
