# shellcheck shell=sh disable=SC2154
# Included after job_guard.sh in the script of an attempt that waited in the queue for the end of the previous one.
# Variables: am_attempt_dir, am_previous_dir, am_tracker, am_train_iters, am_resumable_exit_codes (exit codes). The
# previous attempt may have no verdict yet, so the guard prevents a start after the end of the training.

am_previous_code() { # prints the exit code of the previous attempt if it crashed: not finished and not told to stop
  am_exit_record "$am_previous_dir"
  [ -s "$am_exit_path" ] || return 0
  sed -n 's/^{"exit_code": \([0-9]*\), "signal": null,.*/\1/p' "$am_exit_path"
}

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
