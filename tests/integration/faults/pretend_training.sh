#!/bin/bash
# Behaves like Megatron-LM's pretrain_gpt.py but computes nothing: log lines, checkpoints in the legacy format, resuming,
# --exit-interval, --exit-signal-handler. Called instead of python, with the trainer's command line.
# In addition to Megatron's files, it records the actions of every attempt in a ledger in the parent folder of --save.
set -u
shift # the trainer's program
save='' train_iters=0 save_interval=1 exit_interval=0
while [ $# -gt 0 ]; do
  case $1 in
    --save) save=$2 ;;
    --train-iters) train_iters=$2 ;;
    --save-interval) save_interval=$2 ;;
    --exit-interval) exit_interval=$2 ;;
  esac
  shift
done
tracker=$save/latest_checkpointed_iteration.txt
ledger=${save%/*}/ledger
mkdir -p "$save" || exit 1

note() { echo "$(date +%s.%N) $SLURM_JOB_ID $*" >>"$ledger" || exit 1; }

checkpoint() { # ITERATION; writes the data, then the tracker, as Megatron does
  directory=$save/$(printf 'iter_%07d' "$1")
  mkdir -p "$directory/mp_rank_00" || exit 1
  head -c 2048 /dev/zero >"$directory/mp_rank_00/model_optim_rng.pt" || exit 1
  printf '%s' "$1" >"$tracker.$SLURM_JOB_ID" && mv -f "$tracker.$SLURM_JOB_ID" "$tracker" || exit 1
  note saved "$1"
}

# The kernel releases the lock when this process ends, so two attempts that train at the same time are detected.
exec 9>>"${save%/*}/lock" || exit 1
flock -n 9 || note overlap
iteration=0
if [ -s "$tracker" ]; then
  iteration=$(cat "$tracker")
  case $iteration in '' | *[!0-9]*) echo "ERROR: Invalid metadata file $tracker"; exit 1 ;; esac
  [ -s "$save/$(printf 'iter_%07d' "$iteration")/mp_rank_00/model_optim_rng.pt" ] || exit 1
  echo "  successfully loaded checkpoint from $save [ t 1/1, p 1/1 ] at iteration $iteration"
fi
note begin "$iteration"
stop=
trap 'stop=1' TERM
while [ "$iteration" -lt "$train_iters" ]; do
  sleep 0.3 9>&- &
  wait $! || wait $!
  iteration=$((iteration + 1))
  echo " [$(date '+%F %T')] iteration $iteration/ $train_iters | consumed samples: $iteration | lm loss: 1.0E+00 |"
  if [ -n "$stop" ]; then
    checkpoint "$iteration"
    echo "exiting program after receiving SIGTERM."
    note end "$iteration"
    exit 0
  fi
  if [ $((iteration % save_interval)) -eq 0 ] || [ "$iteration" -eq "$train_iters" ]; then checkpoint "$iteration"; fi
  if [ "$exit_interval" -gt 0 ] && [ $((iteration % exit_interval)) -eq 0 ] && [ "$iteration" -lt "$train_iters" ]; then
    checkpoint "$iteration"
    echo "exiting program at iteration $iteration"
    note end "$iteration"
    exit 0
  fi
done
echo "[after training is done] datetime: $(date '+%F %T')"
note finished "$iteration"
