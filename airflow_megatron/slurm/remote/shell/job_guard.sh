# shellcheck shell=sh disable=SC2154,SC2034
# Included in every job script by job_guard.py. Variables: am_attempt_dir, am_stop_signal, am_duplicate_status,
# am_unwritable_status.
# Works under "set -eu" of the job script.

am_started=$(date +%s)
am_signal=
am_interrupted=
am_child=
am_job_id=$SLURM_JOB_ID
# A task is identified by its index if this package submitted the array (array_task.sh), not if a user's script did.
if [ "${AIRFLOW_MEGATRON_ARRAY_TASK:-none}" = "${SLURM_ARRAY_JOB_ID-}_${SLURM_ARRAY_TASK_ID-}" ]; then
  am_job_id=$AIRFLOW_MEGATRON_ARRAY_TASK
fi

# The number of requeues distinguishes the records of the launches of a job.
am_launch=$am_job_id.${SLURM_RESTART_COUNT:-0}

am_record_exit() { # EXIT_STATUS
  am_record=$am_attempt_dir/$am_run_folder/exit.$am_launch.json
  {
    printf '{"exit_code": %s, "signal": %s, "host": "%s", ' "$1" "${am_signal:-null}" "$(uname -n)"
    printf '"nodes": "%s", "started": %s, ' "${SLURM_JOB_NODELIST-}" "$am_started"
    printf '"ended": %s, "job_id": "%s", ' "$(date +%s)" "$am_job_id"
    printf '"restart_count": %s}\n' "${SLURM_RESTART_COUNT:-0}"
  } >"$am_record.new" && mv -fT "$am_record.new" "$am_record" && am_publish_record
  # delivered secrets (secret_delivery.py); Slurm may launch an interrupted or failed job again
  if [ "$1" -eq 0 ] && [ -z "$am_signal" ] && [ -d "$am_attempt_dir/$am_secrets_folder" ]; then rm -rf "${am_attempt_dir:?}/$am_secrets_folder"; fi
}

am_end_provenance() { # after a short job, provenance.sh may still be writing its record
  if [ -z "$am_signal" ] && [ -n "${am_provenance_job-}" ]; then wait "$am_provenance_job" 2>/dev/null || true; fi
}

am_publish_record() { # writes the record to the path where it is read
  cp "$am_attempt_dir/$am_run_folder/exit.$am_launch.json" "$am_attempt_dir/$am_exit_file.$am_job_id" &&
    mv -fT "$am_attempt_dir/$am_exit_file.$am_job_id" "$am_attempt_dir/$am_exit_file"
}

am_stop() { # SIGNAL
  am_signal="\"$1\""
  am_interrupted=1
  if [ -n "$am_child" ]; then am_stop_command; fi
}

am_is_shell() { # PID; returns whether the process is a fork of this script that has not executed its command yet
  [ "$(tr '\0' '\n' 2>/dev/null <"/proc/$1/cmdline")" = "$(tr '\0' '\n' 2>/dev/null <"/proc/$$/cmdline")" ]
}

am_stop_command() { # such a fork may ignore a signal: it has the traps of this script
  if am_is_shell "$am_child"; then am_early=1; else am_early=; fi
  kill -s "$am_stop_signal" "$am_child" 2>/dev/null || return 0
  if [ -z "$am_early" ]; then return 0; fi
  for am_try in 1 2 3 4 5 6 7 8 9; do
    sleep 0.1
    if ! am_is_shell "$am_child"; then
      kill -s "$am_stop_signal" "$am_child" 2>/dev/null || true
      return 0
    fi
  done
}

# am_run COMMAND…
# Runs COMMAND, forwards signals to it at once, and waits for its end. A signal that came earlier ends the job.
am_run() {
  if [ -n "$am_signal" ]; then
    echo "airflow-megatron: job $am_job_id got signal $am_signal before its command began; it does not run" >&2
    return 143
  fi
  "$@" 9>&- &
  am_child=$!
  if [ -n "$am_signal" ]; then am_stop_command; fi
  am_status=
  while :; do
    am_interrupted=
    wait "$am_child" && am_waited=0 || am_waited=$?
    # bash 5.2 loses the status of a command that ends at the moment of a trapped signal; wait then returns -1.
    if [ "$am_waited" -lt 0 ]; then
      am_waited=143
      if kill -0 "$am_child" 2>/dev/null; then
        am_interrupted=1
        sleep 0.1
      fi
    fi
    # A trapped signal ends wait early; the next wait returns the command's status, unless this one already did.
    if [ -z "$am_status" ] || [ "$am_waited" -ne 127 ]; then am_status=$am_waited; fi
    if [ -z "$am_interrupted" ]; then break; fi
  done
  am_child=
  # Slurm signals the processes of a job one by one: this script may get the signal just after the command has ended.
  case $am_status in 138 | 140 | 143) if [ -z "$am_signal" ]; then sleep 1; fi ;; esac
  return "$am_status"
}

am_file_value() { # PATH; prints its first line, which an earlier job wrote
  am_value=
  if [ -r "$1" ]; then IFS= read -r am_value <"$1" || true; fi
  if [ -z "$am_value" ]; then
    echo "airflow-megatron: $1 contains no value on $(uname -n)" >&2
    return 66
  fi
  printf '%s' "$am_value"
}

# A job that Slurm did not show for a while (a controller that had lost its state) or started again (scontrol requeue of a
# job that had ended) counts as ended, and another attempt may run now.
am_not_judged() {
  if [ ! -e "$am_attempt_dir/$am_verdict_file" ]; then return; fi
  echo "airflow-megatron: this attempt counts as ended, by its $am_verdict_file; job $am_job_id does not run." \
    "To run it again, clear its task in Airflow instead of requeueing the job" >&2
  exit "$am_duplicate_status"
}

am_own_attempt() { # only one job may run an attempt; the same job may run again after a requeue
  for am_try in 1 2 3 4 5 6 7 8 9 10; do # the submitter records the id shortly after our start
    if [ -s "$am_attempt_dir/$am_job_id_file" ] || [ -d "$am_attempt_dir/$am_run_folder" ]; then break; fi
    sleep 1
  done
  am_recorded=
  if [ -s "$am_attempt_dir/$am_job_id_file" ]; then IFS=';' read -r am_recorded am_cluster <"$am_attempt_dir/$am_job_id_file" || true; fi
  case $am_recorded in *[!0-9]*) am_recorded= ;; esac # ignore a damaged record
  am_owner=$am_recorded
  if [ -z "$am_recorded" ] || [ "$am_recorded" = "$am_job_id" ]; then
    if mkdir "$am_attempt_dir/$am_run_folder" 2>/dev/null; then
      if printf '%s\n' "$am_job_id" >"$am_attempt_dir/$am_owner_file.new" &&
        mv -fT "$am_attempt_dir/$am_owner_file.new" "$am_attempt_dir/$am_owner_file"; then return 0; fi
      rm -rf "${am_attempt_dir:?}/$am_run_folder"
    fi
    if [ ! -d "$am_attempt_dir/$am_run_folder" ]; then
      echo "airflow-megatron: cannot write to $am_attempt_dir on $(uname -n); the job does not run" >&2
      exit "$am_unwritable_status"
    fi
    am_owner=
    for am_try in 1 2 3 4 5; do
      if [ -s "$am_attempt_dir/$am_owner_file" ] && read -r am_owner <"$am_attempt_dir/$am_owner_file"; then break; fi
      sleep 1
    done
    if [ "$am_owner" = "$am_job_id" ]; then return 0; fi
  fi
  echo "airflow-megatron: job ${am_owner:-unknown} owns this attempt; job $am_job_id does not run" >&2
  exit "$am_duplicate_status"
}

# A controller that was killed before it saved the start of a job launches it again, on other nodes, with the same id and
# number of requeues (Slurm 22.05). The second launch waits for the end of the first, and does not repeat a successful
# run. It does not wait if the file system has no locks, or flock(1) is missing.
am_alone() {
  touch "$am_attempt_dir/$am_run_folder/lock.$am_launch" 2>/dev/null || return 0 # a failing exec would end the script
  exec 9>>"$am_attempt_dir/$am_run_folder/lock.$am_launch"
  if ! flock -n 9; then
    echo "airflow-megatron: job $am_job_id is already running; Slurm started it again, on $(uname -n); waiting for its end"
    flock 9 || true
  fi
}

am_has_ended_well() {
  grep -qs '^{"exit_code": 0, "signal": null, ' "$am_attempt_dir/$am_run_folder/exit.$am_launch.json"
}

am_not_judged
am_own_attempt
if command -v flock >/dev/null; then am_alone; fi
if am_has_ended_well; then
  echo "airflow-megatron: job $am_job_id has already succeeded; Slurm started it again, on $(uname -n)"
  am_publish_record
  exit 0
fi
if [ -e "$am_attempt_dir/$am_exit_file" ]; then # requeued: keep the record of the previous run
  mv -fT "$am_attempt_dir/$am_exit_file" "$am_attempt_dir/${am_exit_file%.json}.$((${SLURM_RESTART_COUNT:-1} - 1)).json"
fi
trap 'am_status=$?; trap - EXIT; am_record_exit "$am_status"; am_end_provenance; exit "$am_status"' EXIT
trap 'am_stop TERM' TERM
trap 'am_stop USR1' USR1
trap 'am_stop USR2' USR2
