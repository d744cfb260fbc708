# What tests under a throw-away Slurm share. To be sourced, with `root` set to the repository.
folder=$(mktemp -d /tmp/fp8slurm.XXXXXX) # short: sockets lie in it
chmod 755 "$folder"
cluster=$folder/cluster
failures=0

tear_down() {
  [ ! -e "$cluster/slurm.conf" ] || "$root/scripts/slurm_cluster.sh" down "$cluster"
  rm -rf "$folder"
}
trap tear_down EXIT
trap 'exit 1' INT TERM

section() { echo "[$SECONDS s] $1"; }
fail() {
  echo "FAILED: $1"
  [ -z "${2:-}" ] || tail -n 30 "$2" | sed 's/^/    /'
  failures=$((failures + 1))
}
# check WHAT COMMAND...: the command succeeds
check() {
  local what=$1
  shift
  "$@" || fail "$what" "${log:-}"
}
# wait_until COMMAND...: at most a minute
wait_until() {
  local try
  for ((try = 0; try < 1200; try++)); do
    ! "$@" || return 0
    sleep 0.05
  done
  return 1
}
numbers() { sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" "$1/metrics.jsonl"; } # RUN KEY
reached() { grep -q "^{\"step\":$2," "$1/metrics.jsonl" 2>/dev/null; }   # RUN STEP
same_weights() { # RUN RUN STEP: every bit of the checkpoint
  local file
  for file in model optimizer; do
    cmp "$1/checkpoints/step-$3/$file.safetensors" "$2/checkpoints/step-$3/$file.safetensors" ||
      return 1
  done
}
# `sbatch --wait` may look half a minute late: only one job is submitted with it.
# batch NAME ARGUMENT...: starts a job and prints its number.
batch() { sbatch --parsable --output="$1.log" "${@:2}"; }
state() { scontrol show job --oneliner "$1" | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p'; }
is_over() {
  case $(state "$1") in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) ;; *) return 1 ;; esac
}
succeeds() { # JOB
  wait_until is_over "$1" || echo "job $1 is still $(state "$1")"
  [ "$(state "$1")" = COMPLETED ]
}

# Open MPI 4.1.4: on a busy machine a rank in some 3 of 100 starts on two nodes dies within
# MPI_Init, where mca_btl_tcp calls a function at address 0. Such a stack has a single frame; one of
# the program's own mistakes would have more.
open_mpi_crashed() { grep -h -A1 "\] \[ 0\] " ./*.log | grep -q "End of error message"; }

# begin_cluster NODES CPUS: leaves this process in $folder, with Slurm's commands on the path. Ends
# with 77 where there is no Slurm.
begin_cluster() {
  # A job that this test may run in is none of its business.
  unset "${!SLURM_@}" "${!PMIX_@}" "${!OMPI_@}" "${!SRUN_@}" "${!SBATCH_@}" "${!OMP_@}" \
    "${!FP8TRAIN_@}"
  "$root/scripts/slurm_cluster.sh" up "$cluster" "$1" "$2"
  local code=$?
  [ $code = 0 ] || exit $code
  . "$cluster/env"
  cd "$folder" || exit 1
  mkdir bin
  export PATH=$folder/bin:$PATH
  awk 'BEGIN { split("the river ran over stones and we slept cold moon told no-one.", w, " "); x = 7
    for (i = 0; i < 4000; i++) {
      x = (x * 16807) % 2147483647; printf "%s%s", w[x % 12 + 1], x % 9 ? " " : "\n" } }' >text.txt
}

# end_test SCRIPT ARGUMENTS... ATTEMPT: up to three attempts where Open MPI crashed.
end_test() {
  local attempt=${!#}
  section "done"
  if [ $failures != 0 ] && [ "$attempt" -lt 3 ] && open_mpi_crashed; then
    echo "$failures failed, and Open MPI crashed: once more"
    tear_down
    cd "$root" && exec bash "${@:1:$#-1}" $((attempt + 1))
  fi
  [ $failures = 0 ] || { echo "$failures failed"; exit 1; }
  echo "passed"
}
