#!/usr/bin/env bash
# A run of four ranks under a throw-away Slurm that is killed, stopped, signalled, robbed of its
# disk and whose checkpoints lose bits, at random, and that is started again until it is done. Its
# weights have to be those of a run that nobody disturbed, and nothing may stay behind.
#
#   scripts/soak/slurm_run.sh PROGRAM [MINUTES [SEED]]
#       exit codes: 0 passed, 1 failed, 77 no Slurm can be started here
set -uo pipefail
program=$(readlink -f "${1:?usage: slurm_run.sh PROGRAM [MINUTES [SEED]]}")
minutes=${2:-20}
RANDOM=${3:-$(date +%j)}
root=$(readlink -f "$(dirname "$0")/../..")
folder=$(mktemp -d /tmp/fp8soak.XXXXXX) # short: sockets lie in it
chmod 755 "$folder"
cluster=$folder/cluster
disk=$folder/disk
failures=0

tear_down() {
  [ ! -e "$cluster/slurm.conf" ] || "$root/scripts/slurm_cluster.sh" down "$cluster" >/dev/null
  ! mountpoint -q "$disk" || umount "$disk"
  rm -rf "$folder"
}
trap tear_down EXIT
trap 'exit 1' INT TERM

fail() { echo "FAILED: $1"; failures=$((failures + 1)); }
random() { echo $(($1 + RANDOM % ($2 - $1 + 1))); } # FROM TO
ranks() { pgrep -f "fp8train .*output_dir=$disk/hurt( |\$)" | while read -r pid; do
  [ "$(readlink "/proc/$pid/exe")" != "$program" ] || echo "$pid"
done; }
random_rank() { ranks | shuf -n 1 --random-source=<(yes "$RANDOM"); }
steps_done() { sed -n 's/^{"step":\([0-9]*\),.*/\1/p' "$disk/hurt/metrics.jsonl" 2>/dev/null |
  tail -n 1; }

unset "${!SLURM_@}" "${!PMIX_@}" "${!OMPI_@}" "${!SRUN_@}" "${!SBATCH_@}" "${!OMP_@}" \
  "${!FP8TRAIN_@}"
shared_before=$(ls /dev/shm)
mkdir -p "$disk"
# Before the nodes start, which have mounts of their own.
mount -t tmpfs -o size=64m tmpfs "$disk" || exit 77
"$root/scripts/slurm_cluster.sh" up "$cluster" 2 16
code=$?
[ $code = 0 ] || exit $code
. "$cluster/env"
cd "$folder" || exit 1
awk 'BEGIN { split("the river ran over stones and we slept cold moon told no-one.", w, " "); x = 7
  for (i = 0; i < 4000; i++) {
    x = (x * 16807) % 2147483647; printf "%s%s", w[x % 12 + 1], x % 9 ? " " : "\n" } }' >text.txt
cat >run.yaml <<YAML
model: {preset: toy}
data: {train: [{path: $folder/text.txt}], val_fraction: 0.1, seq_length: 32}
training: {micro_batch_size: 2, global_batch_size: 16}
optimizer: {lr: 1e-3}
scheduler: {type: constant, warmup_steps: 4}
eval: {interval: 100, batches: 2}
logging: {interval: 10}
checkpoint: {interval: 40, keep_last: 3}
parallelism: {zero_stage: 2}
precision: {plan: te-delayed, amax_history_len: 16}
comm: {timeout: 10}
device: cpu
threads: 1
YAML
# start KEY=VALUE...: a run of four ranks on two nodes.
start() {
  srun -N2 --ntasks-per-node=2 --kill-on-bad-exit=1 "$program" train --config run.yaml "$@"
}

# As many steps as take a third of the time undisturbed: the rest is lost to the disturbances.
began=$(date +%s%N)
start training.max_steps=200 output_dir="$disk/trial" >trial.log 2>&1 ||
  { cat trial.log; fail "the trial"; exit 1; }
steps=$((200 * minutes * 60 * 1000 / 3 / (($(date +%s%N) - began) / 1000000)))
echo "$steps steps, disturbed for about $minutes minutes"
start training.max_steps="$steps" output_dir="$disk/whole" >whole.log 2>&1 ||
  { tail -n 30 whole.log; fail "the undisturbed run"; exit 1; }
rm -rf "$disk/trial"

hurt_kill() { local pid; pid=$(random_rank); [ -n "$pid" ] && kill -KILL "$pid"; }
# Longer than comm.timeout in one of three cases.
hurt_stop() {
  local pid
  pid=$(random_rank)
  [ -n "$pid" ] && kill -STOP "$pid" &&
    { sleep "$(random 1 16)"; kill -CONT "$pid" 2>/dev/null || true; }
}
hurt_signal() {
  local pid
  pid=$(random_rank)
  [ -n "$pid" ] && kill -"$(shuf -n 1 -e TERM USR1 HUP)" "$pid"
}
hurt_full() {
  dd if=/dev/zero of="$disk/filler" bs=64k count=2000 2>/dev/null
  sleep "$(random 1 6)"
  rm -f "$disk/filler"
}
# One bit of one file of a checkpoint that is not the last one of the run.
hurt_flip() {
  local file size at byte
  file=$(find "$disk/hurt/checkpoints" -path '*/step-*/*' -type f -size +0 \
    ! -path "*.partial*" 2>/dev/null |
    grep -v "step-$(printf %06d "$steps")" | shuf -n 1)
  [ -n "$file" ] || return 1
  size=$(stat -c %s "$file") || return 1
  at=$(((RANDOM * 32768 + RANDOM) % size))
  byte=$(od -An -tu1 -j $at -N 1 "$file" | tr -d ' ')
  [ -n "$byte" ] || return 1
  printf "$(printf '\\x%02x' $((byte ^ (1 << (RANDOM % 8)))))" |
    dd of="$file" bs=1 seek=$at conv=notrunc 2>/dev/null
}

punish() {
  local kind
  while sleep "$(random 3 12)"; do
    kind=$(shuf -n 1 -e kill kill stop signal signal full flip flip)
    ! "hurt_$kind" || echo "$kind at step $(steps_done)" >>punishments
  done
}
punish &
punisher=$!
starts=0
code=1
deadline=$((SECONDS + minutes * 60 * 3))
while [ $code != 0 ] && [ $SECONDS -lt $deadline ]; do
  start training.max_steps="$steps" output_dir="$disk/hurt" >>hurt.log 2>&1
  code=$?
  starts=$((starts + 1))
  echo "start $starts ended with $code at step $(steps_done)" >>starts
done
kill $punisher 2>/dev/null
wait $punisher 2>/dev/null
rm -f "$disk/filler"

[ $code = 0 ] ||
  { tail -n 40 hurt.log; fail "the disturbed run did not end in three times its time"; }
sort punishments | cut -d ' ' -f 1 | uniq -c | sed 's/^/  /'
codes=$(sed -n 's/.*ended with \([0-9]*\) .*/\1/p' starts | sort -n | uniq -c |
  awk '{ printf "%s%s x %s", (NR > 1 ? ", " : ""), $1, $2 }')
echo "  $starts starts: exit codes $codes"
last=checkpoints/step-$(printf %06d "$steps")
for file in "$disk/whole/$last"/*.safetensors; do
  cmp "$file" "$disk/hurt/$last/$(basename "$file")" ||
    fail "$(basename "$file") differs from the undisturbed run's"
done
sleep 2
[ -z "$(ranks)" ] || fail "processes are left: $(ranks | xargs)"
left=$(find "$disk/hurt" -name '*.partial*' | head -n 5)
[ -z "$left" ] || fail "files are left: $left"
left=$(comm -13 <(echo "$shared_before") <(ls /dev/shm))
[ -z "$left" ] || fail "shared memory is left: $(xargs <<<"$left")"
[ $failures = 0 ] || { cp -r "$folder"/*.log starts punishments /tmp/ 2>/dev/null; exit 1; }
echo "passed: the weights of the undisturbed run after $starts starts"
