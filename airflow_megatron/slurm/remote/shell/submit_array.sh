# shellcheck shell=sh disable=SC2154,SC2034,SC2015
# The submission of an array: job_array.py's script. It uses submit.sh, array_claim.sh, am_limit and am_each_task COMMAND,
# which calls COMMAND with INDEX ATTEMPT_DIR WORK_DIR LOG SCRIPT JSON [SECRET BASE64]… for each task. The only processes
# per task create its links and rename its record.

am_make_directories() {
  am_each_task am_print_directories | xargs -0 mkdir -p
}

am_print_directories() {
  printf '%s\0' "$am_dir/tasks/$1" "$2" "$3" "${4%/*}"
}

am_newest_claim_of() { # ATTEMPT_DIR; sets am_held (its newest claim) and am_free (the next one)
  am_kept="$am_generation $am_dir"
  am_dir=$1
  am_newest_claim
  am_held=$am_claim am_free=$am_dir/claim.$((am_generation + 1))
  am_generation=${am_kept%% *} am_dir=${am_kept#* }
  am_claim=$am_dir/claim.$am_generation
}

am_take_task() { # INDEX ATTEMPT_DIR WORK_DIR LOG SCRIPT JSON [SECRET BASE64]…; adds it to am_tasks unless another caller has it
  am_task=$am_dir/tasks/$1
  if [ -e "$am_task/released" ] || [ -s "$2/$am_job_id_file" ]; then return 0; fi
  {
    printf '%s %s\n' "$am_name" "$am_dir" >"$am_task/array" &&
      printf '%s\n%s\n' "$2" "$3" >"$am_task/place" &&
      ln -sfT "$4" "$am_task/log"
  } || return
  am_newest_claim_of "$2"
  if [ ! -d "$am_held" ] || [ -e "$am_held/released" ]; then
    ln -sT "$am_task" "$am_free" 2>/dev/null || [ -d "$am_free" ] || return
    am_held=$am_free
  fi
  # shellcheck disable=SC3013 # dash, bash, ksh and busybox support -ef
  [ "$am_held" -ef "$am_task" ] || return 0
  { printf '%s' "$5" >"$2/$am_script_file" && printf '%s\n' "$6" >"$2/$am_job_file"; } || return
  am_deliver_to_task "$@" || return
  am_tasks=${am_tasks:+$am_tasks,}$1
}

am_deliver_to_task() { # as am_take_task
  am_attempt_dir=$2
  shift 6
  am_deliver_secrets "$am_attempt_dir" "$@"
}

am_take_tasks() { # sets am_tasks, separated by commas
  am_tasks=
  am_make_directories && am_each_task am_take_task
}

am_leave_other_tasks() { # releases tasks that others have submitted, right before sbatch; fails if no task is left
  for am_task in "$am_dir"/tasks/*; do
    case ",$am_tasks," in
      *",${am_task##*/},"*) ;;
      *) printf '' >"$am_task/released" || return ;;
    esac
  done
  [ -n "$am_tasks" ] && return
  echo "every attempt of the array has already been submitted by another caller" >&2
  return 1
}

am_record_tasks() { # after am_attempt or am_decide_array: completes the records of an array that was submitted
  am_read_id || return 0
  am_array_id=$am_id
  for am_task in "$am_dir"/tasks/*; do
    if [ -e "$am_task/released" ] || ! read -r am_attempt_dir <"$am_task/place"; then continue; fi
    if [ ! -s "$am_attempt_dir/$am_job_id_file" ]; then
      am_new=$am_attempt_dir/$am_job_id_file.$am_token.$$
      am_task_id "$am_array_id" "${am_task##*/}" "$am_name" >"$am_new" && mv -fT "$am_new" "$am_attempt_dir/$am_job_id_file" ||
        printf 'stderr %s\n' "the job id could not be recorded in $am_attempt_dir/$am_job_id_file"
    fi
    if [ -e "$am_attempt_dir/$am_withdrawn_file" ]; then am_scancel "${am_array_id%%;*}_${am_task##*/}" 2>&1 | sed 's/^/stderr /'; fi
    printf 'task %s\n' "${am_task##*/}"
  done
}
