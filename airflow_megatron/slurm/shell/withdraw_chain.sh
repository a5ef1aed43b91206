# shellcheck shell=sh disable=SC2154
# Body of attempt_chain.py's script, after: am_stage_dir, am_after, am_squeue, am_scancel.

am_chained() { # the attempts after am_after that were queued behind others, newest first
  for am_path in "$am_stage_dir"/*/chained; do
    am_number=${am_path%/chained}
    am_number=${am_number##*/}
    case $am_number in '' | *[!0-9]*) continue ;; esac
    if [ "$am_number" -gt "$am_after" ]; then printf '%s\n' "$am_number"; fi
  done | sort -rn
}

am_withdraw() {
  am_numbers=$(am_chained)
  [ -n "$am_numbers" ] || return 0
  am_rows=$(am_squeue --me -h -o 'queue|%A|%j' 2>&1) || {
    printf 'failed squeue: %s\n' "$(printf '%s' "$am_rows" | tr '\n' ' ')"
    return
  }
  am_names=$(for am_number in $am_numbers; do cat "$am_stage_dir/$am_number/chained"; done)
  # The newest first: the end of one would start the next.
  am_ids=$({
    printf '%s\n' "$am_rows"
    printf '%s\n' "$am_names"
  } | awk -F'|' '$1 == "queue" { queued[$3] = $2; next } $1 in queued { print queued[$1] }')
  if [ -n "$am_ids" ]; then
    # shellcheck disable=SC2086 # a list of ids
    am_scancel $am_ids 2>&1 | sed 's/^/scancel /'
  fi
  for am_number in $am_numbers; do
    am_path=$am_stage_dir/$am_number
    am_error=$(mv "$am_path" "$am_path.withdrawn.$(date +%s)" 2>&1) || {
      printf 'failed %s\n' "$am_error"
      return
    }
    printf 'withdrawn %s\n' "$am_number"
  done
}

am_withdraw
