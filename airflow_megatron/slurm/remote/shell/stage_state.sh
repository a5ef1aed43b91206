# shellcheck shell=sh disable=SC2154,SC2034
# Functions of stage_records.py's script; calls of am_stage follow. They use those of exit_record.sh and other_account.sh.

am_show() { # WORD FILE; prints the file's lines, each after WORD; ignores files in am_large
  [ -s "$2" ] && [ -f "$2" ] || return
  case $am_newline$am_large$am_newline in *"$am_newline$2$am_newline"*) return ;; esac
  while IFS= read -r am_line || [ -n "$am_line" ]; do printf '%s %s\n' "$1" "$am_line"; done <"$2"
}

am_newline='
'

am_show_decision() { # LINK; the job may have made it, with a target of several lines that look like other records
  [ -L "$1" ] || return 0
  am_line=$(readlink "$1")
  case $am_line in *"$am_newline"*) ;; *) printf 'decision %s\n' "$am_line" ;; esac
}

# The shell reads byte by byte, so files of more than 1 MiB (written by a job) are not read.
am_stage() { # INDEX DIRECTORY
  printf 'stage %s\n' "$1"
  am_tracker=${2%/"$am_jobs_folder"/*}/$am_checkpoints_folder/$am_tracker_file
  am_large=$(timeout 5 find -L "$2" "$am_tracker" -maxdepth 3 -size +2048 2>/dev/null)
  am_show verdict "$2/$am_verdict_file"
  am_show tracker "$am_tracker"
  am_newest=0
  for am_attempt in "$2"/*/; do
    am_attempt=${am_attempt%/}
    case ${am_attempt##*/} in '' | *[!0-9]*) continue ;; esac
    printf 'attempt %s\n' "${am_attempt##*/}"
    if am_other_account "$am_attempt"; then printf 'account %s\n' "$am_account"; fi
    am_show job_id "$am_attempt/$am_job_id_file"
    am_show owner "$am_attempt/$am_owner_file"
    am_exit_record "$am_attempt"
    am_show exit "$am_exit_path"
    am_show chained "$am_attempt/$am_chained_file"
    am_show began_at "$am_attempt/$am_began_at_file"
    am_show ahead "$am_attempt/$am_ahead_file"
    am_show_decision "$am_attempt/$am_decision_file"
    am_show judged "$am_attempt/$am_verdict_file"
    if [ -s "$am_attempt/$am_job_file" ] && [ "${am_attempt##*/}" -gt "$am_newest" ]; then am_newest=${am_attempt##*/}; fi
    for am_claim in "$am_attempt"/claim.*; do
      if [ -d "$am_claim" ] && [ ! -e "$am_claim/released" ]; then
        printf 'claimed yes\n'
        am_show array "$am_claim/array"
        break
      fi
    done
  done
  am_show record "$2/$am_newest/$am_job_file"
}
