# shellcheck shell=sh disable=SC2154,SC2034,SC3013
# Finds the record of a job's end, for scripts that read it. (All shells have -nt: dash, bash, busybox.)

# am_exit_record ATTEMPT_DIR; sets am_exit_path. The job writes its record twice (job_guard.sh): if exit.json is damaged,
# the copy in the run folder is used. If exit.json is missing, the job has not ended: Slurm has started it again.
am_exit_record() {
  am_exit_path=$1/$am_exit_file
  [ -f "$am_exit_path" ] || return 0
  am_exit_line=
  IFS= read -r am_exit_line <"$am_exit_path" || true
  case $am_exit_line in '{"exit_code": '*'}') return 0 ;; esac
  am_exit_copy=
  for am_exit_one in "$1/$am_run_folder"/exit.*.json; do
    [ -s "$am_exit_one" ] || continue
    if [ -z "$am_exit_copy" ] || [ "$am_exit_one" -nt "$am_exit_copy" ]; then am_exit_copy=$am_exit_one; fi
  done
  am_exit_path=${am_exit_copy:-$am_exit_path}
}
