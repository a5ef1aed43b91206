# shellcheck shell=sh disable=SC2154,SC2034
# The protocol of single_job.py (described there). Variables: am_dir am_name am_token am_prefix am_window am_busy
# am_log_dir; functions: am_squeue am_sacct am_scancel, am_run_sbatch COMMENT, am_write_job, and those of queue_limits.sh
# and other_account.sh.
# Redirections of special built-ins (":", "exec") are avoided: their failure, on a full disk, would end the shell.

# A lost connection must not stop the script between sbatch and the record of the id.
trap '' HUP INT QUIT PIPE TERM
am_host=$(uname -n)
am_newline='
'

am_answer() { # STATUS MESSAGE
  case $2 in
    *"$am_newline"*) set -- "$1" "$(printf '%s' "$2" | tr '\n' ' ')" ;;
  esac
  printf 'status %s\nmessage %s\n' "$1" "$2"
}

am_try() { # COMMAND…; if it fails, sets am_trouble to its output
  am_trouble=$("$@" 2>&1) && return
  [ $? -ne 137 ] || am_trouble="Killed $am_trouble" # SIGKILL leaves no message
  return 1
}

am_refuse_unwritable() { # DIRECTORY; classifies am_trouble: full disks and killed commands are transient, all else is permanent
  am_kind=refused
  case $am_trouble in
    *"No space left"* | *"uota exceeded"* | *Killed*)
      am_kind=deferred
      printf 'waits_for recovery\n'
      ;;
  esac
  am_answer "$am_kind" "cannot write to $1 on $am_host: $am_trouble; free space or correct the permissions:\
 $(df -h "$1" 2>&1 | tail -n 1)"
}

am_is_number() { # TEXT
  case $1 in '' | *[!0-9]*) return 1 ;; esac
}

am_read_id() { # sets am_id from the record; ignores a damaged record
  am_id=
  [ -s "$am_dir/$am_job_id_file" ] && read -r am_id <"$am_dir/$am_job_id_file"
  am_digits=${am_id%%;*}
  case $am_digits in
    *_*_* | _* | *_) return 1 ;;
    *) am_is_number "${am_digits%%_*}${am_digits#*_}" ;; # a task of an array: 40_3
  esac
}

am_clock() { # prints Unix seconds, seconds since boot and the boot's id, because the clock may be set
  am_uptime='' am_boot=''
  [ -r /proc/uptime ] && read -r am_uptime am_rest </proc/uptime
  [ -r /proc/sys/kernel/random/boot_id ] && read -r am_boot </proc/sys/kernel/random/boot_id
  printf '%s %s %s\n' "$(date +%s)" "${am_uptime%%.*}" "$am_boot"
}

am_age_of() { # FILE that am_clock wrote; sets am_age, in seconds
  am_then='' am_up='' am_up_boot=''
  read -r am_then am_up am_up_boot <"$1"
  am_is_number "$am_then" || am_then=$(stat -c %Y "$1")
  # shellcheck disable=SC2046 # three words
  set -- $(am_clock)
  if am_is_number "$am_up" && [ "$am_up_boot" = "$3" ]; then
    am_age=$(($2 - am_up))
  else
    am_age=$(($1 - am_then))
  fi
}

am_write_new() { # FILE
  (umask 077 && cat >"$am_new") && mv -fT "$am_new" "$1" # private to this user
}

am_put() { # FILE, content on standard input; atomic; sets am_trouble, so not in a pipeline
  am_new=$1.$am_token.$$ # a caller may repeat its call, with the same token, while the first call still runs
  am_try am_write_new "$1" && return
  rm -f "$am_new"
  return 1
}

am_put_line() { # FILE TEXT
  am_put "$1" <<AM_LINE
$2
AM_LINE
}

am_record() { # ID
  printf 'job_id %s\n' "$1"
  am_put_line "$am_dir/$am_job_id_file" "$1" ||
    printf 'stderr %s\n' "the job id could not be recorded in $am_dir/$am_job_id_file: $am_trouble"
  if [ -e "$am_dir/$am_withdrawn_file" ]; then am_scancel "${1%%;*}" 2>&1 | sed 's/^/stderr /'; fi
  am_leave all
}

am_newest_claim() { # sets am_generation, 0 without a claim, and am_claim
  am_generation=0
  for am_path in "$am_dir"/claim.*; do
    am_number=${am_path##*.}
    case $am_number in '' | *[!0-9]*) continue ;; esac
    if [ "$am_number" -gt "$am_generation" ]; then am_generation=$am_number; fi
  done
  am_claim=$am_dir/claim.$am_generation
}

am_drop_old_claims() { # keeps the last two, to explain what happened
  for am_path in "$am_dir"/claim.*; do
    am_number=${am_path##*.}
    case $am_number in '' | *[!0-9]*) continue ;; esac
    if [ "$am_number" -lt "$((am_generation - 1))" ]; then rm -rf "$am_path"; fi
  done
}

am_process_start() { # PID; prints its start time in clock ticks (proc(5), field 22)
  am_stat=
  if [ -r "/proc/$1/stat" ]; then read -r am_stat <"/proc/$1/stat"; fi 2>/dev/null
  # shellcheck disable=SC2086 # split on purpose; what follows the command name begins with field 3
  set -- ${am_stat##*) }
  if [ $# -ge 20 ]; then
    shift 19
    printf '%s' "$1"
  fi
}

am_owner_state() { # sets am_owner (alive, dead, elsewhere), am_since (time of the claim), am_patience
  am_owner_host='' am_owner_pid='' am_owner_start='' am_since='' am_patience=0
  [ -s "$am_claim/owner" ] && read -r am_owner_host am_owner_pid am_owner_start am_since <"$am_claim/owner"
  if ! am_is_number "$am_since"; then
    # The owner file is missing or not written yet: allow the time for writing it.
    am_since=$(stat -c %Y "$am_claim" 2>/dev/null) || am_since=0
    am_owner=elsewhere am_patience=3
  elif [ "$am_owner_host" != "$am_host" ]; then
    am_owner=elsewhere am_patience=30
  elif [ "$(am_process_start "$am_owner_pid")" = "$am_owner_start" ]; then
    am_owner=alive
  else
    am_owner=dead
  fi
}

am_read_created() { # sets am_created and am_nonce; fails if the file is missing or damaged
  am_created=0 am_nonce=''
  [ -s "$am_dir/created" ] && read -r am_created am_nonce <"$am_dir/created"
  if am_is_number "$am_created" && [ -n "$am_nonce" ]; then return; fi
  am_created=0 am_nonce=''
  return 1
}

am_withdrawn_ids() { # prints the ids of withdrawn jobs that had the same attempt number (queue_ahead.py)
  for am_path in "$am_dir".withdrawn.*/"$am_job_id_file"; do
    [ -s "$am_path" ] || continue
    IFS=';' read -r am_one am_rest <"$am_path" || true
    if am_is_number "$am_one"; then printf '%s ' "$am_one"; fi
  done
}

am_lookup() { # sets am_found to the ids of this attempt's jobs, oldest first; fails when Slurm does not answer
  am_found='' am_lookup_error=''
  if [ -s "$am_dir/$am_owner_file" ]; then
    read -r am_found <"$am_dir/$am_owner_file"
    return 0
  fi
  if ! am_read_created && [ -e "$am_dir/created" ]; then
    am_created=$(stat -c %Y "$am_dir/created") # damaged: adopt any job of this name submitted since then
  fi
  am_rows=$(am_squeue --me -h -t all -n "$am_name" -o '%F|%T|%V|%k|%j' 2>&1) || {
    am_lookup_error="squeue: $am_rows"
    return 1
  }
  # an hour more, because the time may occur twice at the end of daylight saving
  am_from=$(date -d "@$((am_created - 4200))" +%Y-%m-%dT%H:%M:%S)
  # The period ends tomorrow, because after a clock was set back the attempt may start after the current time.
  am_more=$(am_sacct -X -D -n -P -u "$(id -u)" -S "$am_from" -E now+1day --name "$am_name" \
    -o JobID,State,Submit,Comment,JobName 2>&1) || {
    am_lookup_error="sacct: $am_more"
    am_more=
  }
  # Accounting has the comment late (after the end of the job) or never. squeue's data on a job is valid there too;
  # otherwise the submission time distinguishes an older job of the same name.
  am_found=$(printf '%s\n%s\n' "$am_rows" "$am_more" | awk -F'|' -v name="$am_name" -v prefix="$am_prefix" \
    -v nonce="$am_nonce" -v mine="$am_prefix$am_nonce:$am_name" -v from="$((am_created - 600))" \
    -v withdrawn="$(am_withdrawn_ids)" '
    BEGIN { count = split(withdrawn, ids, " "); for (i = 1; i <= count; i++) other[ids[i]] = 1 }
    { sub(/_.*/, "", $1) } # the tasks of an array are one submission
    NF >= 5 && $NF == name && $1 ~ /^[0-9]+$/ { # a plug-in of the site may add any text to the comment
      comment = $4
      for (i = 5; i < NF; i++) comment = comment "|" $i
      own = index(comment, mine)
      if (nonce != "" && index(comment, prefix) && !own) other[$1] = 1
      if ($1 in other || (!own && $3 + 0 < from)) next
      print $3 + 0, $1 + 0
    }' | sort -n -k1,1 -k2,2 | awk '!seen[$2]++ { printf "%s%s", sep, $2; sep = " " }')
  [ -n "$am_found" ] && return 0
  case $am_lookup_error in
    '') return 0 ;;
    *"accounting storage is disabled"*) return 0 ;; # only squeue -t all and run/job_id are available
  esac
  return 1
}

am_adopt() { # ID…; keeps the first job and cancels the others that are pending
  am_first=$1
  shift
  am_record "$am_first"
  if [ $# -gt 0 ]; then
    am_scancel --state=PENDING "$@" 2>/dev/null
    am_answer adopted "job $am_first was already submitted as $am_name; of $* those still pending were cancelled"
  else
    am_answer adopted "job $am_first was already submitted as $am_name"
  fi
}

am_printed_id() { # sets am_id from what sbatch printed
  am_id=$(sed -n \
    -e 's/^[[:space:]]*\([0-9][0-9]*\)[[:space:]]*$/\1/p;t' \
    -e 's/^[[:space:]]*\([0-9][0-9]*;[A-Za-z0-9_.-]*\)[[:space:]]*$/\1/p;t' \
    -e 's/^.*Submitted batch job \([0-9][0-9]*\) on cluster \([A-Za-z0-9_.-]*\).*$/\1;\2/p;t' \
    -e 's/^.*Submitted batch job \([0-9][0-9]*\).*$/\1/p' "$am_claim/sbatch.out" 2>/dev/null | tail -n 1)
  [ -n "$am_id" ]
}

am_release() { # [ANSWER]; this claim certainly produced no job; ANSWER is kept for a caller whose connection was lost
  am_leave
  if [ -d "$am_dir/$am_secrets_folder" ] && [ ! -s "$am_dir/$am_job_id_file" ]; then rm -rf "${am_dir:?}/$am_secrets_folder"; fi
  printf '%s\n' "$am_token" "$@" >"$am_claim/released" || rm -rf "$am_claim"
}

am_repeat_answer() { # repeats the answer once, for a caller whose connection was lost while sbatch waited
  [ -s "$am_claim/released" ] || return
  {
    read -r am_line
    [ "$am_line" = "$am_token" ] && grep .
  } <"$am_claim/released" && printf '' >"$am_claim/released"
}

am_resolve() { # determines the outcome of an sbatch; succeeds if it answered, fails if the claim may be taken over
  if am_printed_id; then
    am_record "$am_id"
    am_answer adopted "job ${am_id%%;*} was submitted by a call that ended before it could record it"
    return 0
  fi
  if ! am_lookup; then
    am_answer pending "whether an earlier sbatch of $am_name was accepted is unknown: $am_lookup_error"
    return 0
  fi
  if [ -n "$am_found" ]; then
    # shellcheck disable=SC2086 # a list of ids
    am_adopt $am_found
    return 0
  fi
  am_age_of "$am_claim/sbatch.started"
  if [ "$am_age" -ge "$am_window" ]; then return 1; fi
  am_answer pending "an sbatch of $am_name begun $am_age s ago has no known outcome; its job may become visible within $am_window s"
}

# sbatch ends with 255 if it does not accept an option or a directive, before it asks the controller. A wrapper that runs
# sbatch over ssh ends with 255 too if its connection is cut: then a line is not sbatch's, or none of them is an error.
am_refused_locally() { # EXIT_STATUS TEXT
  [ "$1" -eq 255 ] || return 1
  if printf '%s\n' "$2" | grep -Eqv '^([^ ]*/)?sbatch: |^Try "sbatch '; then return 1; fi
  printf '%s\n' "$2" | grep -Eq '^([^ ]*/)?sbatch: (error:|fatal:|option |(unrecognized|invalid|ambiguous) option)'
}

# am_failure_kind EXIT_STATUS TEXT; sets am_kind to deferred, refused or unknown
# Source of the texts: slurm_errno.c, sbatch.c and job_state_reason.c, Slurm 20.02 to 26.05.
am_failure_kind() {
  am_kind=refused
  case $2 in
    # Named limits on the number of jobs are temporary, other named limits (QOSMaxGRESPerUser, QOSMinGRES) are not; an
    # unnamed limit counts as temporary.
    *SubmitJob*Limit* | *"temporarily unable to accept"* | *"Resource temporarily unavailable"*) am_kind=deferred ;;
    *QOS[A-Z]* | *Assoc[GM]* | *Assoc*Limit*) ;;
    *"job submit limit"*) am_kind=deferred ;;
    # No room, nodes that are powering up, maintenance, a full disk of the controller.
    *"job queue full"* | *"MaxJobCount limit"* | *"Unable to create job record"*) am_kind=deferred ;;
    *"creation temporarily disabled"* | *"nodes are busy"* | *"ports are in use"*) am_kind=deferred ;;
    *"partition not available"* | *"submissions disabled"* | *"error writing script"*) am_kind=deferred ;;
    # The request was not sent, or not processed.
    *"controller (connect failure)"* | *"in standby mode"* | *"configuration source"*) am_kind=deferred ;;
    *"RPC limit exceeded"* | *"Rate limit exceeded"*) am_kind=deferred ;;
    *[Tt]"imed out"* | *"onnection reset"* | *"onnection refused"* | *"Broken pipe"*) am_kind=unknown ;;
    *"Transport endpoint"* | *"Zero Bytes"* | *"ommunication"* | *"send/recv"*) am_kind=unknown ;;
    *"Unable to contact slurm controller"* | *"Unexpected message received"*) am_kind=unknown ;;
    *"Message receive failure"* | *"Message send failure"* | *"shutting down"*) am_kind=unknown ;;
    *"Insane message length"* | *"Header lengths"* | *"versions of client and server"*) am_kind=unknown ;;
    # munged is down, or clocks differ: possibly only the authentication of the controller's answer failed.
    *"authentication error"* | *"uthentication credential"* | *[Mm]"unge "*) am_kind=unknown ;;
  esac
  # sbatch was killed, or its output was lost on a full disk.
  if { [ "$1" -gt 128 ] && ! am_refused_locally "$1" "$2"; } || [ -z "$2" ]; then am_kind=unknown; fi
  if [ "$am_kind" = refused ] && am_printed_id; then am_kind=unknown; fi
}

am_report_wait_reason() { # TEXT of sbatch
  case $1 in
    *SubmitJob*Limit* | *"job submit limit"*)
      am_queued=$(am_squeue --me -h -r -o '%A' 2>/dev/null | grep -c '^[0-9]')
      printf 'waits_for limit %s\n' "$am_queued"
      ;;
    *) printf 'waits_for recovery\n' ;;
  esac
}

am_sbatch_outcome() { # EXIT_STATUS
  am_error=$(cat "$am_claim/sbatch.err" 2>/dev/null)
  if [ "$1" -eq 0 ] && am_printed_id; then
    am_record "$am_id"
    sed 's/^/stderr /' "$am_claim/sbatch.err"
    am_answer submitted "submitted job ${am_id%%;*} as $am_name"
    return
  fi
  if [ "$1" -ne 0 ]; then
    am_failure_kind "$1" "$am_error"
    if [ "$am_kind" != unknown ]; then
      am_first_answer=$(
        [ "$am_kind" = deferred ] && am_report_wait_reason "$am_error"
        am_answer "$am_kind" "sbatch (exit status $1): $am_error"
      )
      am_release "$am_first_answer"
      printf '%s\n' "$am_first_answer"
      return
    fi
  fi
  sed 's/^/stderr /' "$am_claim/sbatch.err"
  am_resolve || am_answer pending "sbatch of $am_name has no known outcome: $am_error"
}

am_still_newest() { # whether the claim is still ours; answers if it is not
  am_newest_claim
  if [ "$am_generation" = "$am_mine" ]; then return 0; fi
  am_leave
  am_answer pending "another caller has taken over the submission of $am_name"
  return 1
}

am_prepare() { # writes the files that sbatch needs
  if ! am_read_created; then
    am_put_line "$am_dir/created" "$(date +%s) $am_token" || return
  fi
  am_write_job
}

am_submit() { # as owner of $am_claim
  am_mine=$am_generation
  am_still_newest || return
  if am_read_id; then
    am_release
    printf 'job_id %s\n' "$am_id"
    am_answer recorded "job ${am_id%%;*} is recorded for $am_name"
    return
  fi
  if [ -e "$am_dir/$am_withdrawn_file" ]; then
    am_release
    am_answer refused "attempt $am_name was withdrawn when its run was stopped; clear the task to make another"
    return
  fi
  if ! am_await_room; then
    am_release
    am_drop_old_claims
    return
  fi
  if ! am_prepare || ! am_submitting || ! am_put_line "$am_claim/sbatch.started" "$(am_clock)"; then
    am_release
    am_refuse_unwritable "$am_dir"
    return
  fi
  # Check again after announcing sbatch, so that a slow owner and a caller that takes over cannot miss each other.
  am_still_newest || return
  am_drop_old_claims
  am_read_created
  am_run_sbatch "$am_prefix$am_nonce:$am_name" \
    <"$am_dir/$am_script_file" >"$am_claim/sbatch.out" 2>"$am_claim/sbatch.err"
  am_sbatch_outcome $?
}

am_attempt() {
  am_try mkdir -p "$am_dir" ${am_log_dir:+"$am_log_dir"} || {
    am_refuse_unwritable "$am_dir"
    return
  }
  am_patient_until=$(($(date +%s) + am_busy))
  while :; do
    if am_other_account "$am_dir"; then
      am_answer refused "the account $am_account has submitted $am_name, and $(id -un) cannot read its records in $am_dir"
      return
    fi
    if am_read_id; then
      am_leave all
      printf 'job_id %s\n' "$am_id"
      am_answer recorded "job ${am_id%%;*} is recorded for $am_name"
      return
    fi
    am_newest_claim
    am_repeat_answer && return
    am_state=free
    if [ "$am_generation" -gt 0 ] && [ ! -e "$am_claim/released" ]; then
      am_owner_state
      if [ -e "$am_claim/array" ]; then
        am_ask_array && return
        continue
      elif [ "$am_owner" = alive ]; then
        am_state=busy
      elif [ -e "$am_claim/sbatch.started" ]; then
        am_resolve && return
      elif [ "$am_owner" = elsewhere ] && [ "$(($(date +%s) - am_since))" -lt "$am_patience" ]; then
        am_state=busy
      fi
    fi
    if [ "$am_state" = busy ]; then
      if [ "$(date +%s)" -ge "$am_patient_until" ]; then
        am_answer pending "$am_name is being submitted by process ${am_owner_pid:-?} on ${am_owner_host:-?}"
        return
      fi
      sleep 0.2
      continue
    fi
    am_generation=$((am_generation + 1))
    am_claim=$am_dir/claim.$am_generation
    if am_try mkdir "$am_claim"; then
      am_start=$(am_process_start $$)
      if am_put_line "$am_claim/owner" "$am_host $$ ${am_start:--} $(date +%s)"; then
        am_submit
      else
        am_release
        am_refuse_unwritable "$am_dir"
      fi
      return
    elif [ ! -d "$am_claim" ]; then
      am_refuse_unwritable "$am_dir"
      return
    fi
  done
}
