#!/usr/bin/env bash
# From a fresh clone to a trained FP8 model and a sample of its text.
#
#   scripts/demo.sh [TEXT]
#
# TEXT is any text file. Without one, the text of Debian's package bible-kjv is used (4.4 MB), or,
# where it cannot be installed, the licence texts that every Debian system carries. Installs what
# is missing, builds, measures the speed of this machine on a few steps, and trains a Llama of 1.6 M
# parameters for about as long as FP8TRAIN_DEMO_SECONDS says (90). Everything lands in runs/demo
# (runs/demo-2, ... when that exists).
#
# It trains on the CPU: a first build leaves out the backend for GPUs, unless there is a GPU or
# FP8TRAIN_DEMO_CUDA=1 asks for it. scripts/build.sh --cuda auto adds it later.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[ $# -le 1 ] || { echo "usage: scripts/demo.sh [TEXT]" >&2; exit 2; }
text=
if [ $# = 1 ]; then
  [ -f "$1" ] && [ -r "$1" ] || { echo "demo.sh: no readable file: $1" >&2; exit 3; }
  text=$(readlink -f "$1")
fi
cd "$(dirname "$0")/.."
seconds=${FP8TRAIN_DEMO_SECONDS:-90}
smallest=20000 # bytes: enough for a validation split of a few windows

heading() { printf '\n== %s\n' "$*"; }
die() { echo "demo.sh: $1" >&2; exit "${2:-1}"; }

# --- install and build
heading "Packages"
scripts/setup.sh
heading "Build"
build_log=$(mktemp)
trap 'rm -f "$build_log"' EXIT
cuda=()
if [ ! -e build/CMakeCache.txt ] && [ "${FP8TRAIN_DEMO_CUDA:-0}" = 0 ] &&
  ! compgen -G "/dev/nvidia[0-9]*" >/dev/null && [ ! -e /dev/dxg ]; then
  cuda=(--cuda off)
fi
if [ -t 1 ]; then
  scripts/build.sh "${cuda[@]}"
else
  scripts/build.sh "${cuda[@]}" >"$build_log" 2>&1 ||
    { tail -n 60 "$build_log" >&2; die "the build failed"; }
  grep '^build: ' "$build_log"
fi
fp8train=build/bin/fp8train

# --- a folder of our own
run=runs/demo
for ((i = 2; ; i++)); do
  [ -e "$run" ] || break
  run=runs/demo-$i
done
mkdir -p "$run"

# --- the text
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 1
  fi
}
find_bible() { PATH=$PATH:/usr/games command -v bible; }
bible_text() {
  if ! find_bible >/dev/null; then
    as_root env DEBIAN_FRONTEND=noninteractive "PATH=$PATH:/usr/sbin:/sbin" \
      apt-get -q install -y --no-install-recommends bible-kjv >/dev/null 2>&1 || return 1
  fi
  # One verse a line, without its reference ("Ge1:1 ").
  "$(find_bible)" -f 'gen1:1-rev22:21' 2>/dev/null | sed 's/^[^ ]* //' >"$1" &&
    [ "$(wc -c <"$1")" -gt "$smallest" ]
}
licence_text() {
  find /usr/share/common-licenses -type f | sort | xargs -r cat >"$1" 2>/dev/null
  [ "$(wc -c <"$1")" -gt "$smallest" ]
}

heading "Text"
if [ -n "$text" ]; then
  cp "$text" "$run/text.txt"
  source="$1"
elif bible_text "$run/text.txt"; then
  source="the King James Bible (Debian package bible-kjv)"
elif licence_text "$run/text.txt"; then
  source="the licence texts in /usr/share/common-licenses"
else
  die "found no text; give one: scripts/demo.sh FILE" 3
fi
bytes=$(wc -c <"$run/text.txt")
[ "$bytes" -ge "$smallest" ] || die "$source has $bytes bytes; at least $smallest are needed" 3
echo "$source: $bytes bytes -> $run/text.txt"

# --- the configuration. Validation: a fiftieth of the text, at least 4 kB and at most 64 kB.
fraction=$(awk -v n="$bytes" 'BEGIN {
  v = n / 50
  if (v > 65536) v = 65536
  if (v < 4096) v = 4096
  printf "%.4f", v / n
}')
write_config() { # FILE STEPS
  local warmup=$(($2 / 10)) eval_interval=$((($2 + 3) / 4))
  cat >"$1" <<YAML
# A byte-level Llama, trained in FP8: TransformerEngine's delayed scaling, E4M3
# forward and E5M2 for gradients.
model:
  model_type: llama
  hidden_size: 192
  intermediate_size: 512
  num_hidden_layers: 4
  num_attention_heads: 6
  num_key_value_heads: 2
  max_position_embeddings: 256
  tie_word_embeddings: true
data:
  train: [{path: $run/text.txt}]
  tokenizer: byte
  val_fraction: $fraction
  seq_length: 128
training: {max_steps: $2, micro_batch_size: 16, seed: 1}
optimizer: {name: adamw, lr: 2e-3, betas: [0.9, 0.95], weight_decay: 0.1, grad_clip: 1.0}
scheduler: {type: cosine, warmup_steps: $warmup, min_lr: 2e-4}
# The same as mixed_precision: fp8 with fp8: {backend: te, recipe: delayed}
precision: {plan: te-delayed}
device: cpu
eval: {interval: $eval_interval, batches: 8}
logging: {interval: 10}
YAML
}

# Values of a key over the lines of a metrics.jsonl.
metric() { sed -n "s/.*\"$2\": *\([-+0-9.eE]*\).*/\1/p" "$1"; }

heading "Speed of this machine"
trial_steps=20
trial=$(mktemp -d)
trap 'rm -rf "$build_log" "$trial"' EXIT
write_config "$trial/run.yaml" $trial_steps
if ! "$fp8train" --config "$trial/run.yaml" --output-dir "$trial/run" \
  --set logging.interval=5 --set eval.interval=0 --set checkpoint.save_final=false \
  >"$trial/log" 2>&1; then
  cat "$trial/log" >&2
  die "the trial run failed"
fi
speed=$(metric "$trial/run/metrics.jsonl" tokens_per_second | tail -n 1)
steps=$(awk -v s="$seconds" -v v="${speed:-0}" 'BEGIN {
  n = int(s * v / 2048 / 20) * 20
  if (n < 100) n = 100
  if (n > 4000) n = 4000
  print n
}')
echo "${speed:-?} tokens/s: $steps steps of 2048 tokens"
write_config "$run/run.yaml" "$steps"

heading "Training: $fp8train --config $run/run.yaml --output-dir $run"
status=0
"$fp8train" --config "$run/run.yaml" --output-dir "$run" || status=$?
if [ $status = 75 ]; then
  echo "Stopped with a checkpoint saved. To continue:" \
    " $fp8train --config $run/run.yaml --output-dir $run"
  exit 75
fi
[ $status = 0 ] || exit $status

# --- what came out
heading "Loss (nats per byte; 5.55 is a random guess)"
awk -v rows=12 '
  function field(key,   text) {
    if (!match($0, "\"" key "\": *[-+0-9.eE]+")) return ""
    text = substr($0, RSTART, RLENGTH); sub(/.*: */, "", text); return text
  }
  { loss = field("loss"); if (loss != "") { step[++n] = field("step"); value[n] = loss } }
  { v = field("val_loss"); if (v != "") val = v }
  END {
    for (i = 1; i <= rows && n > 0; i++) {
      k = int(1 + (i - 1) * (n - 1) / (rows - 1) + 0.5); if (k == last) continue; last = k
      bar = ""; for (j = 0; j < value[k] * 10; j++) bar = bar "#"
      printf "  step %5d  %6.4f  %s\n", step[k], value[k], bar
    }
    if (val != "") printf "  validation   %.4f\n", val
    if (n < 2 || value[n] + 0 >= value[1] + 0) { print "  the loss has not fallen"; exit 1 }
  }' "$run/metrics.jsonl"

checkpoint=$(find "$run/checkpoints" -mindepth 1 -maxdepth 1 -type d -name 'step-*' | sort |
  tail -n 1)
[ -n "$checkpoint" ] || die "no checkpoint in $run/checkpoints"
# The first words of the text are the prompt.
prompt=$(head -c 400 "$run/text.txt" | tr -s '[:space:]' ' ' | sed 's/^ //' | cut -d' ' -f1-3)
heading "Sample: $fp8train generate --checkpoint $checkpoint --prompt \"$prompt\""
"$fp8train" generate --checkpoint "$checkpoint" --prompt "$prompt" --max-new-tokens 240 \
  --temperature 0.7 --top-k 40 --seed 1

heading "Files of this run"
cat <<TEXT
  $run/run.yaml               the configuration
  $run/config.resolved.yaml   the same with every default
  $run/metrics.jsonl          loss, lr, gradient norm, speed: one object a line
  $run/train.log              what was printed
  $run/summary.json           the result
  $checkpoint   weights (safetensors), optimizer and scaling state

Next:
  $fp8train explain --config $run/run.yaml                  which GEMM runs in which format
  $fp8train generate --checkpoint $checkpoint --prompt "..."
  $fp8train --config $run/run.yaml --set precision.plan=te-current --output-dir runs/current
  $fp8train --config $run/run.yaml --set precision.plan=bf16 --output-dir runs/bf16
TEXT
echo
echo "demo: $((SECONDS / 60)) min $((SECONDS % 60)) s"
