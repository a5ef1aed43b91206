# shellcheck shell=sh disable=SC2154
# Included after job_guard.sh in the script of an attempt that waited in the queue for the end of the previous one.
# Variables: am_attempt_dir, am_previous_dir, am_tracker, am_train_iters, am_resumable_exit_codes (exit codes). The
# previous attempt may have no verdict yet, so the guard prevents a start after the end of the training. A user may change
# the dependency of a job (scontrol update), so the guard also prevents that two attempts train at the same time.

# Sets am_other and am_other_job to another attempt that trains now and its job; fails if there is none. Its lock alone
# does not count, because some file systems keep the locks of a lost node; neither does an attempt that waits here.
am_trains_beside() {
  for am_lock in "${am_previous_dir%/*}"/[0-9]*/"$am_run_folder"/lock.*; do
    am_other_dir=${am_lock%/"$am_run_folder"/*}
    am_other=${am_other_dir##*/}
    case $am_other in *[!0-9]*) continue ;; esac
    if [ ! -e "$am_lock" ] || [ "$am_other_dir" = "$am_attempt_dir" ]; then continue; fi
    if [ -e "$am_other_dir/$am_chained_file" ] && [ ! -e "$am_other_dir/$am_began_at_file" ]; then continue; fi
    if flock -n "$am_lock" true 2>/dev/null; then continue; fi
    am_other_job=${am_lock##*/lock.}
    am_other_job=${am_other_job%%.*}
    am_rows=$(SQUEUE_ALL=1 squeue -h -j "$am_other_job" -t running,suspended,stopped,completing -o %i 2>/dev/null) || am_rows=
    if [ -n "$am_rows" ]; then return 0; fi
  done
  return 1
}

am_previous_code() { # prints the exit code of the previous attempt if it crashed: not finished and not told to stop
  am_exit_record "$am_previous_dir"
  [ -s "$am_exit_path" ] || return 0
  sed -n 's/^{"exit_code": \([0-9]*\), "signal": null,.*/\1/p' "$am_exit_path"
}

if am_trains_beside; then
  echo "airflow-megatron: attempt $am_other still runs, as job $am_other_job; this one waits for its end"
  while am_trains_beside; do sleep 5; done
fi
am_iteration=$(am_tracked_iteration "$am_tracker")
if [ "$am_iteration" = "$am_train_iters" ]; then
  echo "airflow-megatron: iteration $am_iteration is the last one; this attempt does not run"
  exit 0
fi
am_code=$(am_previous_code)
case " $am_resumable_exit_codes " in
  *" ${am_code:-0} "*) ;;
  *)
    echo "airflow-megatron: the previous attempt ended with exit code $am_code; this one does not run"
    exit "$am_code"
    ;;
esac
printf '%s\n' "${am_iteration:-0}" >"$am_attempt_dir/$am_began_at_file" || true
