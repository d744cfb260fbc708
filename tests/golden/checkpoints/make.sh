#!/usr/bin/env bash
# Small checkpoints of this program, which later versions of it must read:
# tests/run/fixtures_test.cpp.
#
#   tests/golden/checkpoints/make.sh PROGRAM NAME
#
# writes tests/golden/checkpoints/NAME/PLAN: the configuration, run.yaml, and step-000006. Make a
# new set, under a new name, when what a checkpoint holds changes; sets that are there stay as they
# are. The one of two ranks needs mpirun.
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")"
[ ! -e "$2" ] || { echo "make.sh: $2 is there: sets stay as they are" >&2; exit 2; }

make_one() {  # folder, plan, launcher...
  local folder=$1 plan=$2
  shift 2
  mkdir -p "$folder"
  cat > "$folder/run.yaml" <<YAML
model: {${family:+model_type: $family, }hidden_size: 16, intermediate_size: 32,
  num_hidden_layers: 1, num_attention_heads: 1, num_key_value_heads: 1, max_position_embeddings: 32}
data: {train: [{path: text.txt}], val_fraction: 0.1, tokenizer: char, seq_length: 16}
training: {max_steps: 6, micro_batch_size: 2, global_batch_size: 4}
optimizer: {lr: 1e-2}
scheduler: {type: constant, warmup_steps: 2}
eval: {interval: 3, batches: 2}
checkpoint: {interval: 0}
precision: {plan: $plan}
device: cpu
output_dir: run
YAML
  rm -rf run
  "$@" "$program" train "$folder/run.yaml" threads=1 ${stage:+parallelism.zero_stage=$stage}
  mv run/checkpoints/step-000006 "$folder/"
  rm -rf run
}

for plan in fp32 te-delayed fp8-min; do
  make_one "$2/$plan" "$plan"
done
family=qwen3 make_one "$2/qwen3" fp32
stage=2 make_one "$2/coat-two-ranks" \
  "coat, weight: bf16 stochastic, moment2: e4m3 group(128) expanded stochastic" \
  mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2
