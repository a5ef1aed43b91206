# shellcheck shell=sh disable=SC2154,SC2034
# Finds the record of a job's end, for scripts that read it.

# am_exit_record ATTEMPT_DIR; sets am_exit_path. The job writes its record twice (job_guard.sh): if exit.json is damaged,
# the newest copy in the run folder is used. If exit.json is missing, the job has not ended: Slurm has started it again.
# The job may write anything there. The shell reads byte by byte, so that a large file would hold the caller: exit.json is
# not read if am_large lists it, and copies are regular files of at most 8 KiB that are found within 2 s.
am_exit_record() {
  am_exit_path=$1/$am_exit_file
  [ -f "$am_exit_path" ] || return 0
  am_exit_line=
  case "
${am_large-}
" in
    *"
$am_exit_path
"*) ;;
    *) IFS= read -r am_exit_line <"$am_exit_path" || true ;;
  esac
  case $am_exit_line in '{"exit_code": '*'}') return 0 ;; esac
  am_exit_copy=$(timeout 2 find -H "$1/$am_run_folder" -maxdepth 1 -name 'exit.*.json' -type f -size +0 -size -17 \
    -printf '%T@ %p\n' 2>/dev/null | sort -n | tail -n 1)
  am_exit_path=${am_exit_copy:+"${am_exit_copy#* }"}
  am_exit_path=${am_exit_path:-"$1/$am_exit_file"}
}
