#!/usr/bin/env bash
# The program under a real Slurm of seven nodes on this machine, and the job scripts of slurm/ as
# they are.
#
#   tests/run/slurm_test.sh PROGRAM [ATTEMPT]
#       exit codes: 0 passed, 1 failed, 77 no Slurm can be started here
set -uo pipefail
program=$(readlink -f "${1:?usage: slurm_test.sh PROGRAM}")
attempt=${2:-1}
root=$(readlink -f "$(dirname "$0")/../..")
. "$root/tests/run/slurm_support.sh"

# agree RUN RUN TOLERANCE: as many losses in both, the same relative to their size
agree() {
  paste <(numbers "$1" loss) <(numbers "$2" loss) | awk -v tolerance="$3" '
    {
      d = $1 / $2 - 1; if (d < 0) d = -d
      if (NF != 2 || !(d < tolerance)) bad = 1
      if (d > largest) largest = d
    }
    END {
      printf "  %d losses, largest relative difference %.1e\n", NR, largest
      exit NR == 0 || bad
    }'
}
pid_of_rank() { # RUN RANK
  local pid
  for pid in $(pgrep -f "fp8train .*output_dir=$1( |\$)"); do
    ! tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx "PMIX_RANK=$2" ||
      { echo "$pid"; return; }
  done
  return 1
}

begin_cluster 7 16
ln -s "$program" bin/fp8train
cat >run.yaml <<'YAML'
model: {preset: toy}
data: {train: [{path: text.txt}], val_fraction: 0.1, seq_length: 32}
training: {max_steps: 100, micro_batch_size: 2, global_batch_size: 24}
optimizer: {lr: 3e-3}
scheduler: {warmup_steps: 4}
eval: {interval: 25, batches: 4}
logging: {interval: 1}
checkpoint: {interval: 20}
parallelism: {bucket_mb: 1}
precision: {plan: fp32}
comm: {timeout: 60}
device: cpu
threads: 1
output_dir: one
YAML
# Long enough to be stopped on any machine; the bits of FP8 and its histories of
# amax must survive as well.
long=(training.max_steps=200 precision.plan=te-delayed eval.interval=1000)

section "four ranks on two nodes have the losses of one"
log=one.log
check "one rank trains" fp8train run.yaml >one.log 2>&1
log=four.log
check "srun trains" srun -N2 --ntasks-per-node=2 fp8train run.yaml output_dir=four >four.log 2>&1
check "four ranks have found each other" grep -q "(4 ranks x " four.log
# fp32 sums in another order.
check "the same losses" agree four one 1e-6

section "the job scripts for one and for several nodes"
sbatch --wait --output=multi.log "$root/slurm/multi_node_ddp.sbatch" run.yaml output_dir=multi \
  >/dev/null &
waiter=$!
zero=$(batch zero "$root/slurm/multi_node_zero3.sbatch" run.yaml output_dir=zero)
single=$(batch single "$root/slurm/single_node.sbatch" run.yaml output_dir=single \
  training.max_steps=20)
log=single.log
check "single_node.sbatch succeeds" succeeds "$single"
check "two ranks" grep -q "(2 ranks x " single.log

section "ranks that share layers and stages, and files of other programs"
sed -e 's/global_batch_size: 24/global_batch_size: 4/; s/plan: fp32/plan: bf16/' \
  -e 's/bucket_mb: 1/tensor: 2, pipeline: 2, tensor_parts: 2/' run.yaml >parts.yaml
parts=$(batch parts --nodelist=n5,n6 "$root/slurm/multi_node_tp_pp.sbatch" parts.yaml \
  checkpoint.keep_last=9 output_dir=parts)
whole=(parallelism.tensor=1 parallelism.pipeline=1 checkpoint.keep_last=9)
log=parts.log
check "the run begins" wait_until reached parts 25
victim=$(pid_of_rank parts 2)
check "rank 2 was found" test -n "$victim"
kill -9 "$victim"
check "one rank trains" fp8train parts.yaml "${whole[@]}" output_dir=undivided >undivided.log 2>&1
check "the job ends" wait_until is_over "$parts"
check "it had not finished" test ! -e parts/summary.json
sed -i 's/tensor: 2, //' parts.yaml
scontrol requeue "$parts"
grep -v -e training -e precision run.yaml >other.yaml
deepspeed=$(batch deepspeed "$root/slurm/deepspeed.sbatch" other.yaml \
  "$root/configs/deepspeed_msamp.json" output_dir=deepspeed training.max_steps=5)
accelerate=$(batch accelerate "$root/slurm/accelerate.sbatch" other.yaml \
  "$root/configs/accelerate_tp_pp.yaml" output_dir=accelerate training.max_steps=5 \
  training.micro_batch_size=2)

section "a run and its job script by the wizard"
cat >answers.yaml <<'YAML'
model: {preset: toy}
data: {train: [{path: text.txt}], seq_length: 32}
training: {max_steps: 10, micro_batch_size: 2}
precision: {plan: bf16}
job: {nodes: 2, ranks_per_node: 2, cpus_per_rank: 1, time_limit: 10m}
device: cpu
threads: 1
output_dir: wizard
YAML
log=wizard.log
check "fp8train config writes them" fp8train config --answers answers.yaml --output wizard.yaml \
  >wizard.log
wizard=$(batch wizard wizard.sbatch training.max_steps=15)
check "the job succeeds" succeeds "$wizard"
check "four ranks trained" grep -q "(4 ranks x " wizard.log
check "with what was said on the command line" reached wizard 15

section "files of other programs, and another layout"
log=deepspeed.log
check "the job of DeepSpeed's file succeeds" succeeds "$deepspeed"
check "with what becomes of its keys" grep -q "msamp.opt_level read as fp8.opt_level" deepspeed.log
check "in FP8, and ZeRO 1" grep -q "ZeRO 1" deepspeed.log
log=accelerate.log
check "the job of Accelerate's file succeeds" succeeds "$accelerate"
check "with what becomes of its keys" grep -q "tp_degree read as parallelism.tensor" accelerate.log
check "on two stages" grep -q "2 pipeline stages, each layer on 2 ranks" accelerate.log
log=parts.log
check "the killed job succeeds" succeeds "$parts"
check "it began with ranks that share layers" grep -q "2 pipeline stages, each layer on 2" parts.log
check "it was started again" grep -q "restart 1, on" parts.log
# Its first part has the bits of one rank, and the rest those of two ranks that have whole
# models.
step=$(grep -o "step-[0-9]* at step" parts.log | tail -n 1 | cut -c 6-11)
check "it continued after step 20 or later" test -n "$step"
cp -r undivided joined
for checkpoint in joined/checkpoints/step-*; do
  [ "${checkpoint#*step-}" -le "$step" ] || rm -r "$checkpoint"
done
check "two ranks continue what one did" srun -N1 -n2 fp8train parts.yaml "${whole[@]}" \
  output_dir=joined >joined.log 2>&1
check "the same bits" cmp parts/checkpoints/step-000100/model.safetensors \
  joined/checkpoints/step-000100/model.safetensors
check "at the start too" cmp {parts,undivided}/checkpoints/step-"$step"/model.safetensors

section "tasks that cannot find each other"
log=alone.log
srun --mpi=none -n2 fp8train run.yaml output_dir=alone >alone.log 2>&1
check "exit code 2" test $? = 2
check "the error names the fix" grep -q "srun --mpi=pmix" alone.log
check "nothing was trained" test ! -e alone

section "undisturbed run"
log=whole.log
check "srun trains" srun -N2 --ntasks-per-node=2 fp8train run.yaml "${long[@]}" output_dir=whole \
  >whole.log 2>&1

section "a signal, and the loss of a node"
stopped=$(batch stopped --nodelist=n0,n1 "$root/slurm/requeue.sbatch" run.yaml \
  "${long[@]}" output_dir=stopped)
log=stopped.log
check "the run begins" wait_until reached stopped 3
scancel -s USR1 "$stopped"
# The first of three nodes, where rank 0 and the batch script are, and on which the lock of the
# run directory was taken.
crashed=$(batch crashed --exclude=n0,n1,n5,n6 --nodes=2-3 "$root/slurm/requeue.sbatch" \
  run.yaml output_dir=crashed parallelism.zero_stage=2)
log=crashed.log
check "the run begins" wait_until reached crashed 25
"$root/scripts/slurm_cluster.sh" crash "$cluster" n2

section "multi_node_ddp.sbatch and multi_node_zero3.sbatch have ended meanwhile"
log=multi.log
check "sbatch --wait returns 0" wait $waiter
check "four ranks on two nodes" grep -q ": 2 nodes" multi.log
check "the bits of srun by hand" cmp four/checkpoints/step-000100/model.safetensors \
  multi/checkpoints/step-000100/model.safetensors
log=zero.log
check "the job that shares weights succeeds" succeeds "$zero"
check "ZeRO 3" grep -q "ZeRO 3" zero.log
check "the same bits" cmp four/checkpoints/step-000100/model.safetensors \
  zero/checkpoints/step-000100/model.safetensors

section "a rank is killed while the others wait to be started again"
command=(srun --nodelist=n5,n6 --ntasks-per-node=2 --kill-on-bad-exit=1
  fp8train run.yaml "${long[@]}" output_dir=killed)
"${command[@]}" >killed.log 2>&1 &
step=$!
log=killed.log
check "the run begins" wait_until reached killed 25
victim=$(pid_of_rank killed 2)
check "rank 2 was found" test -n "$victim"
began=$SECONDS
kill -9 "$victim"
wait $step
check "the exit code is not 0" test $? != 0
check "the others end within 10 s" test $((SECONDS - began)) -le 10
check "the run had not finished" test ! -e killed/summary.json
check "the same command goes on" "${command[@]}" >again.log 2>&1
check "to the bits of the undisturbed run" same_weights killed whole 000200

section "the stopped run after its restart"
log=stopped.log
check "the job succeeds" succeeds "$stopped"
check "it stopped with a checkpoint" grep -q "stopped at step .* (signal)" stopped.log
check "srun's exit code was 75" grep -q "with exit code 75" stopped.log
check "it was started again once" grep -q "restart 1, on" stopped.log
check "not twice" test "$(grep -c "restart ., on" stopped.log)" = 2
check "the bits of the undisturbed run" same_weights stopped whole 000200

section "the run of the lost node after its restart"
log=crashed.log
check "the job succeeds" succeeds "$crashed"
check "it began on three nodes" grep -q "restart 0, on n\[2-4\]" crashed.log
check "and went on with two" grep -q "restart 1, on n\[3-4\]" crashed.log
check "with four ranks instead of six" grep -q "(4 ranks x " crashed.log
check "to the losses of one rank" agree crashed one 1e-6

end_test "$root/tests/run/slurm_test.sh" "$program" "$attempt"
