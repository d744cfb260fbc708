#!/usr/bin/env bash
# A throw-away Slurm on this machine: real daemons, several nodes, nothing written outside of one
# folder. For tests and for trying a job script.
#
#   scripts/slurm_cluster.sh up DIR [NODES [CPUS]]
#       boot NODES nodes (2) of CPUS processors each (4; may be more than there are)
#   scripts/slurm_cluster.sh down DIR
#       stop everything, jobs included; DIR stays, with the logs
#   scripts/slurm_cluster.sh crash DIR NODE
#       kill a node's daemon and tasks, as a power cut would; NODE is n0, n1, ...
#   scripts/slurm_cluster.sh start DIR NODE          boot a crashed node again
#
# Then `. DIR/env`, and srun, sbatch, squeue and the others are those of this cluster. Nodes are n0,
# n1, ... in the partition main; MPI is pmix.
# DIR: at most 70 characters, because sockets lie in it; it and the folders above it are open to all
# users. Several clusters may run at a time, each in its own DIR.
#
# Needs root, the right to make namespaces, and packages: scripts/setup.sh --dev. Exit codes: 0
# done, 1 failed, 2 usage, 77 cannot work on this machine.
set -euo pipefail
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

usage() { sed -n '2,19s/^# \{0,1\}//p' "$0"; }
die() { echo "slurm_cluster.sh: $1" >&2; exit "${2:-1}"; }
misused() { echo "slurm_cluster.sh: $1" >&2; usage >&2; exit 2; }

check_machine() {
  local program
  [ "$(id -u)" = 0 ] || die "needs root, to give each node a host name and a /dev/shm of its own" 77
  for program in slurmctld slurmd srun munged; do
    command -v $program >/dev/null ||
      die "$program is not installed; scripts/setup.sh --dev installs it" 77
  done
  unshare --mount --uts --propagation private sh -c \
    'hostname probe && mount -t tmpfs tmpfs /dev/shm' 2>/dev/null ||
    die "this machine lets nobody make namespaces and mount in them (in a container:"\
" give it CAP_SYS_ADMIN)" 77
}

# The controller's port and one for each node after it, all free now.
free_ports() { # COUNT
  local base port taken
  for ((base = 17817; base < 27817; base += 100)); do
    taken=0
    for ((port = base; port < base + $1; port++)); do
      ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { taken=1; break; }
    done
    [ $taken = 1 ] || { echo "$base"; return; }
  done
  die "no $1 ports in a row are free from 17817 to 27817"
}

# Short times throughout, so that a test need not wait for a failure to be noticed. What is less
# obvious:
#   cred_expire     a requeued job waits that long and 1 s more (121 s by default); 5 is the least
#                   that is accepted
#   TmpFS           PMIx makes a folder named after job and step there: nodes cannot share it
#   linuxproc, none no cgroups, which containers rarely allow
#   config_overrides  a node may have more processors than the machine
#   GraceTime       preemption by the partition `high` gives a job this time
#                   between SIGTERM and SIGKILL
write_configuration() { # NODES CPUS PORT
  local i
  {
    cat <<CONF
ClusterName=throwaway
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$3
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmctldPidFile=$dir/slurmctld.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdPidFile=$dir/%n/slurmd.pid
SlurmdSpoolDir=$dir/%n/spool
SlurmdLogFile=$dir/%n/slurmd.log
TmpFS=$dir/%n/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/completed.log
MpiDefault=pmix
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=5
KillWait=3
WaitTime=5
MessageTimeout=10
BatchStartTimeout=10
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
CONF
    for ((i = 0; i < $1; i++)); do
      echo "NodeName=n$i NodeAddr=127.0.0.1 NodeHostname=n$i Port=$(($3 + 1 + i))" \
        "CPUs=$2 RealMemory=4096 State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=n[0-$(($1 - 1))] Default=YES MaxTime=INFINITE State=UP" \
      "PriorityTier=1 GraceTime=6"
    echo "PartitionName=high Nodes=n[0-$(($1 - 1))] MaxTime=INFINITE State=UP" \
      "PriorityTier=10 PreemptMode=OFF"
  } >"$dir/slurm.conf"
  # Otherwise slurmd looks for cgroups, and refuses to start where there are none.
  echo "CgroupPlugin=cgroup/v1" >"$dir/cgroup.conf"
  # Open MPI: ranks may be more than cores (yield), nodes share a host, and
  # no fabric is searched for.
  cat >"$dir/env" <<ENV
export SLURM_CONF=$dir/slurm.conf
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_pml=ob1
export OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=lo
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ENV
}

# A host name and a /dev/shm of its own, because Open MPI names shared memory after host and rank.
# Emptied: a requeued job has the same number again, and PMIx stumbles over what the first run left.
boot_node() { # NODE
  rm -rf "${dir:?}/$1/spool" "$dir/$1/tmp"
  mkdir -p "$dir/$1/spool" "$dir/$1/tmp"
  chmod 1777 "$dir/$1/tmp"
  unshare --mount --uts --propagation private sh -c \
    'hostname "$1" && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec slurmd -N "$1" -f "$2"' \
    sh "$1" "$dir/slurm.conf"
}

descendants() { # PID
  local child
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
    echo "$child"
    descendants "$child"
  done
}

# The tasks of a node: its slurmstepds work in the folder of the node's log.
tasks_of() { # NODE
  local pid
  for pid in $(pgrep -x slurmstepd || true); do
    if [ "$(readlink "/proc/$pid/cwd")" = "$dir/$1" ]; then
      echo "$pid"
      descendants "$pid"
    fi
  done
}

wait_gone() { # PID...: at most 10 s
  local try pid alive
  for ((try = 0; try < 200; try++)); do
    alive=0
    for pid in "$@"; do ! kill -0 "$pid" 2>/dev/null || alive=1; done
    [ $alive = 1 ] || return 0
    sleep 0.05
  done
  return 1
}

command_up() {
  local nodes=${1:-2} cpus=${2:-4} i try
  [[ $nodes =~ ^[1-9][0-9]?$ ]] || misused "NODES is a number from 1 to 99, not '$nodes'"
  [[ $cpus =~ ^[1-9][0-9]*$ ]] || misused "CPUS is a positive number, not '$cpus'"
  [ ${#dir} -le 70 ] || die "$dir: longer than 70 characters, and sockets in it would have names"\
" that are too long; take a shorter one, such as /tmp/slurm"
  [ ! -e "$dir/slurmctld.pid" ] || die "$dir has a cluster already; \`$0 down $dir\` stops it"
  check_machine
  mkdir -p "$dir/munge" "$dir/state"
  chmod 755 "$dir" "$dir/munge"
  write_configuration "$nodes" "$cpus" "$(free_ports $((nodes + 1)))"
  trap 'code=$?; [ $code = 0 ] || command_down; exit $code' EXIT  # half a cluster is none
  (umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
  munged --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
    --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" ||
    die "munged did not start; see $dir/munge/log"
  export SLURM_CONF=$dir/slurm.conf
  slurmctld -c -f "$SLURM_CONF" || die "slurmctld did not start; see $dir/slurmctld.log"
  for ((i = 0; i < nodes; i++)); do
    boot_node "n$i" || die "slurmd of n$i did not start; see $dir/n$i/slurmd.log"
  done
  for ((try = 0; try < 200; try++)); do
    [ "$(sinfo -h -N -p main -o %t 2>/dev/null | grep -c '^idle$')" != "$nodes" ] || return 0
    sleep 0.05
  done
  die "not all nodes came up within 10 s; the logs are in $dir"
}

command_crash() { # NODE
  local pids
  read -r -d '' -a pids < <(cat "$dir/$1/slurmd.pid"; tasks_of "$1"; printf '\0') || true
  kill -9 "${pids[@]}" 2>/dev/null || true
  wait_gone "${pids[@]}" || true
  # Slurm notices it at once, not after half a minute.
  SLURM_CONF=$dir/slurm.conf scontrol update NodeName="$1" State=DOWN Reason=crash
}

command_down() {
  local file node daemons=() tasks=()
  for file in "$dir"/n*/slurmd.pid "$dir/slurmctld.pid" "$dir/munge/pid"; do
    [ ! -s "$file" ] || daemons+=("$(cat "$file")")
  done
  [ ! -s "$dir/slurmctld.pid" ] ||
    SLURM_CONF=$dir/slurm.conf timeout 5 scancel -u root 2>/dev/null || true
  for node in "$dir"/n*/; do
    read -r -d '' -a tasks < <(
      printf '%s ' "${tasks[@]}"
      tasks_of "$(basename "$node")"
      printf '\0'
    ) || true
  done
  [ ${#daemons[@]} = 0 ] || kill "${daemons[@]}" 2>/dev/null || true
  [ ${#tasks[@]} = 0 ] || kill -9 "${tasks[@]}" 2>/dev/null || true
  [ ${#daemons[@]} = 0 ] || wait_gone "${daemons[@]}" || kill -9 "${daemons[@]}" 2>/dev/null || true
  rm -f "$dir"/n*/slurmd.pid "$dir/slurmctld.pid" "$dir/munge/pid"
}

case ${1:-} in
  -h | --help) usage; exit 0 ;;
  up | down | crash | start) command=$1 ;;
  *) misused "the first word is up, down, crash or start" ;;
esac
[ -n "${2:-}" ] || misused "$command needs a folder"
dir=$(readlink -m "$2")
shift 2
if [ "$command" = up ]; then
  [ $# -le 2 ] || misused "up DIR [NODES [CPUS]]"
  command_up "$@"
  exit
fi
# Without this check every client of Slurm would try for a minute to find a cluster.
[ -e "$dir/slurm.conf" ] || die "there is no cluster in $dir"
case $command in
  down) [ $# = 0 ] || misused "down DIR"; command_down ;;
  crash | start)
    [ $# = 1 ] && [ -d "$dir/$1" ] && [[ $1 =~ ^n[0-9]+$ ]] ||
      misused "$command DIR NODE, where NODE is n0, n1, ..."
    if [ "$command" = crash ]; then command_crash "$1"; else boot_node "$1"; fi ;;
esac
