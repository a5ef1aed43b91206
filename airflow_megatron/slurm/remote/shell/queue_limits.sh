# shellcheck shell=sh disable=SC2154,SC2034
# The counting part of queue_limits.py (described there); it uses am_places, am_jobs, am_limits and submit.sh's variables.

am_place=

am_announce() { # PHASE
  printf '%s %s %s %s %s %s\n' "$am_host" $$ "${am_start:--}" "$am_arrived" "$1" "$am_jobs" >"$am_place"
}

am_submitting() { # from now on this caller may create a job, even if it is killed
  am_try am_announce submitting
}

am_leave() { # [ALL]; removes this caller; with ALL, also earlier callers for the same attempt
  if [ $# -gt 0 ]; then
    rm -f "$am_places/$am_name,"*
  elif [ -n "$am_place" ]; then
    rm -f "$am_place"
  fi
}

am_callers() { # prints place|SINCE|JOBS|NAME of all announced callers; removes those that have died
  am_now=$(date +%s)
  for am_path in "$am_places"/*; do
    am_caller_host='' am_caller_pid='' am_caller_start='' am_since='' am_phase='' am_count=''
    [ -e "$am_path" ] || continue
    read -r am_caller_host am_caller_pid am_caller_start am_since am_phase am_count <"$am_path"
    if [ -z "$am_count" ]; then # not written completely yet
      am_since=$(stat -c %Y "$am_path" 2>/dev/null) || continue
      am_caller_host='' am_phase=counting am_count=1
    fi
    if [ "$am_path" != "$am_place" ]; then
      am_age=$((am_now - am_since))
      if [ "$am_age" -ge "$am_window" ]; then
        rm -f "$am_path"
        continue
      elif [ "$am_phase" = counting ]; then
        if [ "$am_age" -ge 60 ] || { [ "$am_caller_host" = "$am_host" ] &&
          [ "$(am_process_start "$am_caller_pid")" != "$am_caller_start" ]; }; then
          rm -f "$am_path"
          continue
        fi
      fi
    fi
    am_caller=${am_path##*/}
    printf 'place|%s|%s|%s\n' "$am_since" "$am_count" "${am_caller%%,*}"
  done
}

# am_count prints "room", or "full" or "first" with the number of queued jobs, the exceeded limit and its name prefix.
# first: the limit leaves room for this caller, but not for all later callers.
am_count() {
  # Read callers before jobs: a caller that leaves the list in between has its job in the queue.
  am_listed=$(am_callers)
  am_rows=$(am_squeue --me -h -r -o 'row|%j' 2>&1) || { # without the mark: warnings, rest of a name with a line break
    printf '%s' "$am_rows"
    return 1
  }
  {
    am_limits
    printf '%s\n' "$am_listed"
    printf '%s\n' "$am_rows" | grep '^row|'
  } | awk -F'|' -v me="$am_name" '
    $1 == "limit" { most[++limits] = $2; prefix[limits] = $3 }
    $1 == "place" && !($4 in since && since[$4] <= $2) { since[$4] = $2 }
    $1 == "place" && jobs[$4] < $3 { jobs[$4] = $3 }
    $1 == "row" && $2 != "" { rows[$2]++ }
    END {
      for (i = 1; i <= limits; i++) {
        queued = coming = before = 0
        for (name in rows) if (counts(name, prefix[i])) queued += rows[name]
        for (name in since) if (counts(name, prefix[i]) && jobs[name] > rows[name] + 0) {
          coming += jobs[name] - rows[name]
          if (since[name] < since[me] || since[name] == since[me] && name <= me) before += jobs[name] - rows[name]
        }
        if (queued + before > most[i]) kind = "full"
        else if (queued + coming > most[i]) kind = "first"
        else continue
        verdict = kind " " queued " " most[i] " " prefix[i]
        if (kind == "full") break
      }
      print verdict == "" ? "room" : verdict
    }
    function counts(name, prefix) { return prefix == "" || index(name, prefix) == 1 }'
}

am_take_place() {
  mkdir -p "$am_places" && am_announce counting
}

am_await_room() { # succeeds if the limits leave room; otherwise answers
  am_arrived=$(date +%s)
  am_place=$am_places/$am_name,$am_token.$$
  am_try am_take_place || {
    am_refuse_unwritable "$am_places"
    return 1
  }
  while :; do
    am_verdict=$(am_count) || {
      am_answer deferred "which jobs are in the queue is unknown: squeue: $am_verdict"
      return 1
    }
    # shellcheck disable=SC2086 # four words
    set -- $am_verdict
    [ "$1" = room ] && return
    if [ "$1" = full ] || [ "$(date +%s)" -ge "$((am_arrived + am_busy))" ]; then
      printf 'waits_for room\n'
      am_answer deferred "max_jobs is $3, and the queue holds $2${4:+ of ${4%.}}; waiting for a job to end"
      return 1
    fi
    sleep 0.2
  done
}
