# shellcheck shell=sh disable=SC2154,SC2034,SC2329
# Extends submit.sh for job_array.py: attempts that the submission of an array has claimed.
# Such a claim is a symbolic link to <array's directory>/tasks/<index>, which is created with these files:
#   array      name and directory of the array
#   place      the attempt's directory, and on a second line the working directory of its script
#   log        symbolic link to the attempt's log, because sbatch's --output can contain only the index
#   released   the attempt is not and will not be in the array; other processes may claim it
# The outcome of the submission is determined as for a single job: the array's directory has claims and a record too.

am_started_lately() { # CLAIM; whether its sbatch began less than a visibility window ago
  [ -s "$1/sbatch.started" ] && [ ! -e "$1/released" ] && am_age_of "$1/sbatch.started" && [ "$am_age" -lt "$am_window" ]
}

am_forget_secrets() { # TASK
  if [ ! -e "$1/released" ] && [ -s "$1/place" ] && read -r am_attempt_dir <"$1/place"; then
    rm -rf "${am_attempt_dir:?}/$am_secrets_folder"
  fi
}

am_give_up_tasks() { # as owner of the array's claim, after no submission: releases all tasks, or only am_only
  am_mine=$am_generation
  am_still_newest || return
  if am_read_id || am_started_lately "$am_dir/claim.$((am_mine - 1))"; then
    am_release
    am_answer pending "array $am_name was submitted just now"
    return
  fi
  for am_task in "$am_dir"/tasks/${am_only:-*}; do
    am_forget_secrets "$am_task" # before another caller claims the attempt and delivers them again
    if [ -d "$am_task" ] && ! printf '' >"$am_task/released"; then
      am_release
      am_refuse_unwritable "$am_task"
      return
    fi
  done
  am_release
  am_answer deferred "array $am_name was not submitted"
}

# am_decide_array DIRECTORY NAME [INDEX]
# Prints the id of a submitted array, or "pending"; releases task INDEX (or all) of an array that was not submitted.
am_decide_array() {
  am_dir=$1 am_name=$2 am_only=${3-} am_log_dir=
  # shellcheck disable=SC2317 # am_attempt calls it
  am_submit() { am_give_up_tasks; }
  am_attempt
}

am_task_id() { # ARRAY_ID INDEX ARRAY_NAME; prints a task's record; an array's id is ID or ID;CLUSTER
  am_cluster=${1#*;}
  if [ "$am_cluster" = "$1" ]; then am_cluster=; fi
  printf '%s_%s;%s;%s\n' "${1%%;*}" "$2" "$am_cluster" "$3"
}

am_ask_array() { # determines the outcome of am_claim, an array's; succeeds if it answered, fails if the attempt may be claimed
  read -r am_array_name am_array_dir <"$am_claim/array"
  am_index=$(readlink "$am_claim")
  am_index=${am_index##*/}
  am_array=$(am_decide_array "$am_array_dir" "$am_array_name" "$am_index")
  if [ -e "$am_claim/released" ]; then return 1; fi
  case $am_array in
    *"status recorded"* | *"status adopted"*)
      am_record "$(am_task_id "$(printf '%s\n' "$am_array" | sed -n 's/^job_id //p')" "$am_index" "$am_array_name")"
      am_answer adopted "$am_name was submitted as task $am_index of array $am_array_name"
      ;;
    *) printf '%s\n' "$am_array" ;;
  esac
}
