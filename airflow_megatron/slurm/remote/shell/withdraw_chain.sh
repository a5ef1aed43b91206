# shellcheck shell=sh disable=SC2154
# Body of attempt_chain.py's script; it uses am_stage_dir, am_after, am_squeue and am_scancel.

am_chained() { # prints the attempts after am_after that were queued behind others, newest first
  for am_path in "$am_stage_dir"/*/"$am_chained_file"; do
    [ -r "$am_path" ] || continue # of another account (other_account.sh)
    am_number=${am_path%/"$am_chained_file"}
    am_number=${am_number##*/}
    case $am_number in '' | *[!0-9]*) continue ;; esac
    if [ "$am_number" -gt "$am_after" ]; then printf '%s\n' "$am_number"; fi
  done | sort -rn
}

am_recorded_name() { # FILE; nothing for a pipe, which its job may have put there, and which would block this script
  if [ -f "$1" ]; then head -c 1024 "$1"; fi
}

am_withdraw() {
  am_numbers=$(am_chained)
  [ -n "$am_numbers" ] || return 0
  # Newest first, because the end of one starts the next. Each is queried by name, because the name of another job may
  # contain a line break followed by text that looks like a row.
  am_ids=
  for am_number in $am_numbers; do
    am_name=$(am_recorded_name "$am_stage_dir/$am_number/$am_chained_file")
    [ -n "$am_name" ] || continue
    am_rows=$(am_squeue --me -h -n "$am_name" -o 'queue|%A|%j' 2>&1) || {
      printf 'failed squeue: %s\n' "$(printf '%s' "$am_rows" | tr '\n' ' ')"
      return
    }
    am_ids="$am_ids $(printf '%s\n' "$am_rows" | awk -F'|' -v name="$am_name" '
      $1 == "queue" && $3 == name { id = $2 } END { print id }')"
  done
  am_ids=${am_ids## }
  case $am_ids in *[0-9]*) ;; *) am_ids= ;; esac
  if [ -n "$am_ids" ]; then
    # shellcheck disable=SC2086 # a list of ids
    am_scancel $am_ids 2>&1 | sed 's/^/scancel /'
  fi
  for am_number in $am_numbers; do
    am_path=$am_stage_dir/$am_number
    rm -rf "${am_path:?}/$am_secrets_folder" # delivered (secret_delivery.py)
    am_error=$(mv "$am_path" "$am_path.withdrawn.$(date +%s)" 2>&1) || {
      printf 'failed %s\n' "$am_error"
      return
    }
    printf 'withdrawn %s\n' "$am_number"
  done
}

am_withdraw
