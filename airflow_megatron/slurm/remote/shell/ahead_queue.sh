# shellcheck shell=sh disable=SC2154,SC2034
# Functions of queue_ahead.py's scripts; they use am_squeue and am_scancel.
# The process that creates the link $am_decision_file first decides: the job at its start (start, back), or one of these.

am_decide() { # ATTEMPT_DIR WORD; sets am_decision to the first decision; empty if the directory is not writable
  ln -s "decided.$2" "$1/$am_decision_file" 2>/dev/null || true
  am_decision=$(readlink "$1/$am_decision_file") || am_decision=
}

am_failed() { # TEXT
  printf 'failed %s\n' "$(printf '%s' "$1" | tr '\n' ' ')"
}

am_cancel_named() { # NAME…; cancels jobs by name, in this order; fails if the queue cannot be read
  am_ids=
  for am_name; do
    am_rows=$(am_squeue --me -h -n "$am_name" -o 'queue|%A|%j' 2>&1) || {
      am_failed "squeue: $am_rows"
      return 1
    }
    am_ids="$am_ids $(printf '%s\n' "$am_rows" | awk -F'|' -v name="$am_name" '
      $1 == "queue" && $3 == name && $2 ~ /^[0-9]+$/ { print $2 }')"
  done
  case $am_ids in
    *[0-9]*)
      # shellcheck disable=SC2086 # a list of ids
      am_scancel $am_ids 2>&1 | sed 's/^/scancel /'
      ;;
  esac
}

am_free() { # ATTEMPT_DIR; makes its number available again
  rm -rf "${1:?}/$am_secrets_folder" # delivered (secret_delivery.py)
  am_error=$(mv "$1" "$1.withdrawn.$(date +%s).$$" 2>&1) && return
  am_failed "$am_error"
  return 1
}

am_take_up() { # ATTEMPT_DIR; takes over a queued attempt; prints taken or freed
  if [ ! -s "$1/$am_ahead_file" ]; then
    printf 'taken\n'
    return
  fi
  read -r am_own am_token am_stage am_first am_last am_before_ids <"$1/$am_ahead_file" || true
  am_rows=$(am_squeue --me -h -r -o 'queue|%i|%T|%r|%j' 2>&1) || {
    am_failed "squeue: $am_rows"
    return
  }
  # in the queue and able to start: its dependencies have left the queue
  am_wanted=$(printf '%s\n' "$am_rows" | awk -F'|' -v name="$am_own" -v ids="$am_before_ids" '
    BEGIN { count = split(ids, list, ","); for (i = 1; i <= count; i++) before[list[i]] }
    $1 != "queue" { next }
    ($2 in before) && $3 ~ /^(PENDING|RUNNING|SUSPENDED|CONFIGURING|REQUEUED|REQUEUE_HOLD|REQUEUE_FED|RESIZING)$/ { waits = 1 }
    $5 == name && $4 != "DependencyNeverSatisfied" { queued = 1 }
    END { print (queued && !waits ? "due" : "back") }')
  am_decide "$1" "$am_wanted"
  case $am_decision in
    decided.start | decided.due) printf 'taken\n' ;;
    decided.back) am_cancel_named "$am_own" && am_free "$1" && printf 'freed\n' ;;
    *) am_failed "nothing can be written in $1" ;;
  esac
}

am_waiting() { # prints the names of jobs that wait for others to end
  am_rows=$(am_squeue --me -h -t PD -o 'queue|%i|%T|%r|%j' 2>&1) || {
    am_failed "squeue: $am_rows"
    return
  }
  printf '%s\n' "$am_rows" | awk -F'|' '$1 == "queue" && $4 == "Dependency" { print "waiting " $5 }'
}

am_withdraw() { # STAGE_DIR…; withdraws queued attempts, those that wait for others first
  am_index=0
  am_names=
  am_freed=
  for am_stage_dir; do
    for am_path in "$am_stage_dir"/*/"$am_ahead_file"; do
      [ -r "$am_path" ] || continue # of another account (other_account.sh)
      am_path=${am_path%/"$am_ahead_file"}
      case ${am_path##*/} in '' | *[!0-9]*) continue ;; esac
      am_decide "$am_path" back
      case $am_decision in
        decided.back)
          am_own=
          # a job may put a pipe there, which would block this script
          if [ -f "$am_path/$am_ahead_file" ]; then read -r am_own am_rest <"$am_path/$am_ahead_file" || true; fi
          am_names="$am_names $am_own"
          am_freed="$am_freed $am_index/${am_path##*/}"
          ;;
        decided.start) printf 'started %s %s\n' "$am_index" "${am_path##*/}" ;;
        decided.due) ;; # its own task waits for it
        *)
          am_failed "nothing can be written in $am_path"
          return
          ;;
      esac
    done
    am_index=$((am_index + 1))
  done
  [ -n "$am_freed" ] || return 0
  # shellcheck disable=SC2086 # a list of names
  am_cancel_named $am_names || return 0
  am_index=0
  for am_stage_dir; do
    for am_one in $am_freed; do
      [ "${am_one%/*}" = "$am_index" ] || continue
      am_free "$am_stage_dir/${am_one#*/}" || return 0
      printf 'withdrawn %s %s\n' "$am_index" "${am_one#*/}"
    done
    am_index=$((am_index + 1))
  done
}
