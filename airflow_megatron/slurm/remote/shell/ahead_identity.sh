# shellcheck shell=sh disable=SC2154,SC2034
# Included before job_guard.sh in the script of an attempt that was queued ahead. Variables: am_attempt_dir,
# am_ahead_token, am_stepped_back_status. Another attempt may reuse the number of a withdrawn one, whose job must not
# change the directory of the new attempt.

am_is_queued_ahead() {
  for am_try in 1 2 3 4 5 6 7 8 9 10; do # the file may become visible late
    am_ahead_name='' am_token_there=''
    if [ -s "$am_attempt_dir/$am_ahead_file" ]; then
      read -r am_ahead_name am_token_there am_ahead_rest <"$am_attempt_dir/$am_ahead_file" || true
    fi
    if [ "$am_token_there" = "$am_ahead_token" ]; then return 0; fi
    sleep 1
  done
  return 1
}

if ! am_is_queued_ahead; then
  echo "airflow-megatron: job $SLURM_JOB_ID was withdrawn; it does not run"
  exit "$am_stepped_back_status"
fi
