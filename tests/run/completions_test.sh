#!/usr/bin/env bash
# Completion in bash, zsh and fish as these shells call it, and the manual page as man reads it.
#
#   tests/run/completions_test.sh PROGRAM
set -uo pipefail
program=$(readlink -f "${1:?usage: completions_test.sh PROGRAM}")
packaging=$(cd "$(dirname "$0")/../../packaging" && pwd)
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
  COMP_WORDS=("$program" "$@")
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
is run.yaml train --config ru # the value of an option: a file
is "bash zsh fish" completions "" # parts, and no files
is "bash" completions b
offers --json doctor --j
is --seed train --see
is "" data.train = te # the value of a key: a file, and te is none
offers run.yaml data.train = ru
"$program" complete "" | grep -v FILES | cut -f 1 >commands.txt
grep -q doctor commands.txt || fail "complete does not list the commands"
while read -r command; do
  "$program" "$command" --help >/dev/null || fail "$command is offered and is no command"
done <commands.txt
"$program" complete doct | grep -q "$(printf 'doctor\tCheck')" || fail "no description of doctor"
bash -n <("$program" completions bash) || fail "the bash script is no script"
"$program" completions zsh >_fp8train || fail "completions zsh"
if command -v zsh >/dev/null; then
  got=$(zsh -f -c '
    _describe() { print -l -- ${(P)2}; }
    compadd() { print -l -- $keys; }
    _files() { print FILES; }
    fpath=(. $fpath) CURRENT=3 words=('"$program"' config sh)
    autoload -U _fp8train; _fp8train' 2>&1)
  [ "$got" = "show:$("$program" complete config sh | cut -f 2)" ] || fail "zsh offers '$got'"
fi
"$program" completions fish >fp8train.fish || fail "completions fish"
if command -v fish >/dev/null; then
  mkdir bin && ln -s "$program" bin/fp8train
  for case in "doct:doctor" "config sh:show" "train --set optimizer.lr:optimizer.lr=" "ru:run.yaml"
  do
    got=$(HOME=$folder PATH=$folder/bin:$PATH fish --no-config -c \
      "source fp8train.fish; complete -C 'fp8train ${case%%:*}'" | cut -f 1)
    [ "$got" = "${case#*:}" ] || fail "fish offers '$got' for '${case%%:*}'"
  done
fi

if ! command -v help2man >/dev/null; then
  echo "no help2man: the manual page is not tested"
  exit $((failures > 0))
fi
"$packaging/manual.sh" fp8train.1 "$program" || fail "manual.sh"
for word in .TH "config show" "\\-\\-max\\-steps" FP8TRAIN_CPU_ISA "EXIT STATUS"; do
  grep -qiF -e "$word" fp8train.1 || fail "the manual page has no $word"
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
