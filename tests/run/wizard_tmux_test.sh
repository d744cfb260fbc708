#!/usr/bin/env bash
# The wizard on a terminal, driven through tmux: prompts, `?`, `<`, bold headings, Ctrl-D and
# Ctrl-C, and the files of a whole dialogue.
#
#   tests/run/wizard_tmux_test.sh PROGRAM
#       exit codes: 0 passed, 1 failed, 77 tmux is not installed
set -uo pipefail
program=$(readlink -f "${1:?usage: wizard_tmux_test.sh PROGRAM}")
command -v tmux >/dev/null || { echo "tmux is not installed"; exit 77; }
folder=$(mktemp -d)
socket=$folder/tmux0  # servers of our own, one for each dialogue
dialogues=0
trap 'tmux -S "$socket" kill-server 2>/dev/null; rm -rf "$folder"' EXIT
cd "$folder" || exit 1
# A job script is offered where there is an sbatch.
mkdir bin && printf '#!/bin/sh\n' >bin/sbatch && chmod +x bin/sbatch
export PATH=$folder/bin:$PATH
for i in $(seq 400); do echo "the river ran over $i stones and we slept"; done >text.txt

screen() { tmux -S "$socket" capture-pane -p -S - "$@" 2>/dev/null; }
fail() {
  echo "FAILED: $1. The screen:"
  screen | sed '/^$/d; s/^/    /'
  exit 1
}
shows() { # TEXT: at most 20 s until it is on the screen
  local try
  for ((try = 0; try < 200; try++)); do
    ! screen | grep -qF -e "$1" || return 0
    sleep 0.1
  done
  fail "\"$1\" is not there"
}
keys() { tmux -S "$socket" send-keys "$@"; }
begin() {
  tmux -S "$socket" kill-server 2>/dev/null
  socket=$folder/tmux$((++dialogues))
  tmux -S "$socket" -f /dev/null new-session -d -x 100 -y 50 \
    "TERM=screen '$program' config; echo \"exit code \$?\"; cat"
}
# answer PROMPT TEXT: waits for the question, so that nothing is typed ahead
answer() {
  shows "$1"
  [ -z "$2" ] || keys -l -- "$2"
  keys Enter
}
check() { # WHAT COMMAND...
  local what=$1
  shift
  "$@" || fail "$what"
}
start_of_dialogue() {
  answer "Training data" text.txt
  answer "Part held back" ""
  answer "Device (auto, cpu, cuda) [auto]:" cpu
  answer "Nodes [1]:" 2
  answer "Ranks per node [1]:" "<"
  answer "Nodes [2]:" "?"
  shows "Machines that take part"
}

begin
start_of_dialogue
keys C-d
shows "end of input: nothing was written"
shows "exit code 2"
check "no file is there" test ! -e run.yaml

begin
start_of_dialogue
keys C-c
shows "stopped: nothing was written"
shows "exit code 130"
check "no file is there" test ! -e run.yaml

begin
start_of_dialogue
keys 1 Enter 2 Enter
answer "Memory of a node" 2
answer "Preset, - for" toy
for prompt in "Tokenizer [byte]" "Sequence length [64]"; do
  answer "$prompt" ""
done
answer "Plan" nonesuch
answer "no plan 'nonesuch'" bf16
shows "of 1.0 GiB: fits"
answer "Optimizer steps" 30
for ((i = 0; i < 30; i++)); do
  ! screen | grep -qF "Enter writes" || break
  keys Enter
  sleep 0.2
done
answer "Enter writes run.yaml and run.sbatch" ""
shows "wrote run.yaml"
shows "sbatch run.sbatch"
shows "exit code 0"
check "headings are bold" grep -q $'\e\[1mReview' <(screen -e)
check "the run is accepted" "$program" check run.yaml >/dev/null
check "the job script is a script" bash -n run.sbatch
echo "passed"
