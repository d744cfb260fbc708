#!/usr/bin/env bash
# A rank that is stopped under a real Slurm, on two nodes of two ranks: in each section of a run the
# watchdogs end the job in their time and name the rank, slurm/requeue.sbatch queues it again, and
# it goes on to the weights of a run that none has disturbed.
#
#   tests/run/slurm_hang_test.sh FAULTY_PROGRAM [ATTEMPT]
#       exit codes: 0 passed, 1 failed, 77 no Slurm can be started here
set -uo pipefail
program=$(readlink -f "${1:?usage: slurm_hang_test.sh FAULTY_PROGRAM}")
attempt=${2:-1}
root=$(readlink -f "$(dirname "$0")/../..")
. "$root/tests/run/slurm_support.sh"

begin_cluster 4 16
# The fault happens in the first start of a job alone.
cat >bin/fp8train <<SH
#!/bin/sh
if [ "\${SLURM_RESTART_COUNT:-0}" = 0 ] && [ -n "\${FAULT:-}" ]; then
  exec "$program" --fault "\$FAULT" "\$@"
fi
exec "$program" "\$@"
SH
chmod +x bin/fp8train
cat >run.yaml <<'YAML'
model: {preset: toy}
data: {train: [{path: text.txt}], val_fraction: 0.1, seq_length: 32}
training: {max_steps: 20, micro_batch_size: 2, global_batch_size: 8}
eval: {interval: 10, batches: 4}
logging: {interval: 5}
checkpoint: {interval: 5}
precision: {plan: te-delayed}
comm: {timeout: 6}
watchdog: {start_up: 60, data: 6, step: 6, evaluation: 6, save: 6, end: 6}
device: cpu
threads: 1
YAML
limit=6

section "undisturbed run"
log=whole.log
check "srun trains" srun -N2 --ntasks-per-node=2 fp8train run.yaml output_dir=whole >whole.log 2>&1

# job RANK STEP SECTION: prints the job's number
job() {
  FAULT="stop@$1:$2:$3" batch "$3" --nodes=2 "$root/slurm/requeue.sbatch" run.yaml "output_dir=$3"
}

# seen RANK RUN: seconds for which a rank of its node had waited that saw it stopped; the ranks of
# another node, one of which may speak first, know its host alone.
seen() {
  python3 - "$@" <<'PY'
import json, pathlib, sys
for file in pathlib.Path(sys.argv[2]).glob("flight-*.json"):
    record = json.loads(file.read_text())
    for other in record["other_ranks"]:
        if (other["rank"], other.get("process_state")) == (int(sys.argv[1]), "stopped"):
            print(f"{record['seconds']:.1f}")
            sys.exit()
PY
}

# ended RANK STEP SECTION JOB: the last rank is on the other node than the first.
ended() {
  log=$3.log
  if [ "$3" = start_up ]; then
    # Slurm 22.05 may not start the step of a job again on a node where it was ended
    # within PMIx: a new job does.
    wait_until is_over "$4"
    check "$3: what hung is named" grep -q "in start_up for" "$log" # nobody knows the others yet
    check "$3: a new job succeeds" srun -N2 --ntasks-per-node=2 fp8train run.yaml output_dir="$3" \
      >again.log 2>&1
  else
    check "$3: the job succeeds in the end" succeeds "$4"
    check "$3: it was started twice" test "$(grep -c "restart ., on" "$log")" = 2
  fi
  check "$3: to the weights of the undisturbed run" same_weights "$3" whole 000020
  [ "$3" != start_up ] || return
  check "$3: rank $1 is named" grep -Eq "error: .*[Rr]ank $1 \(process" "$log"
  local seconds
  seconds=$(seen "$1" "$3")
  echo "  $3: rank $1, waited for ${seconds:-not seen, or not} s; the limit is $limit s"
  check "$3: in its time" awk -v s="${seconds:-1000}" -v limit=$limit \
    'BEGIN { exit !(s > 0.8 * limit && s < 2.5 * limit) }'
}

# Two at a time.
while read -r first second; do
  IFS=: read -r -a a <<<"$first"
  IFS=: read -r -a b <<<"$second"
  section "a rank that is stopped in ${a[2]}${b[2]:+, and in ${b[2]}}"
  job_a=$(job "${a[@]}")
  [ -z "$second" ] || job_b=$(job "${b[@]}")
  ended "${a[@]}" "$job_a"
  [ -z "$second" ] || ended "${b[@]}" "$job_b"
done <<'LIST'
1:3:data 0:8:step
3:7:exchange 0:10:save
2:10:evaluation 1:20:end
3:0:start_up
LIST

end_test "$root/tests/run/slurm_hang_test.sh" "$program" "$attempt"
