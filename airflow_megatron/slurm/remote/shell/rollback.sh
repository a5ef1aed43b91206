# shellcheck shell=sh disable=SC2154,SC2034,SC2015
# The functions of rollback.py's script, after checkpoint_folder.sh; one call of am_rollback follows.

# am_newer PREFIX ITERATION PATH…; renames paths whose name is iter_ or global_step with a number above ITERATION
am_newer() {
  am_prefix=$1 am_target=$2
  shift 2
  for am_path; do
    am_digits=${am_path##*/}
    am_digits=${am_digits#iter_}
    am_digits=${am_digits#global_step}
    am_digits=${am_digits%%[!0-9]*}
    [ -n "$am_digits" ] && [ -e "$am_path" ] || continue
    am_plain "$am_digits"
    [ "$am_plain" -gt "$am_target" ] || continue
    am_said=$(am_set_aside "$am_path" "$am_prefix" 2>&1 && printf '%s' "${am_to##*/}") || {
      printf 'failed %s\n' "$am_said"
      return 1
    }
    printf 'aside %s\n' "$am_said"
  done
}

# am_rollback RUN_DIRECTORY ITERATION EXPECTED PREFIX; EXPECTED is the tracker's number at the time of the decision.
# Prints the renamed paths, and a last line: rolled_back, or the reason of a refusal.
am_rollback() {
  am_dir=$1/$am_checkpoints_folder am_prefix=$4
  am_tracker_read || {
    printf 'failed the tracker is a directory\n'
    return
  }
  am_named "$2"
  if [ ! -d "$am_dir/$am_name" ]; then
    printf 'refused the checkpoint of iteration %s is gone\n' "$2"
    return
  fi
  if [ "$am_tracker" != "$3" ] && [ "$am_tracker" != "$2" ]; then
    printf 'refused the tracker holds %s, not %s any more: another job saves here\n' "${am_tracker:-nothing}" "$3"
    return
  fi
  # The tracker first: if the script is killed after it, the next start loads the right checkpoint.
  am_said=$(am_tracker_write "$2" 2>&1) || {
    printf 'failed %s\n' "$am_said"
    return
  }
  set +f
  # outputs of the newer checkpoints will be created again from their replacements
  am_newer "$4" "$2" "$am_dir"/iter_* "$am_dir"/global_step* \
    "$1/$am_converted_marks_folder"/iter_*.done "$1/$am_converted_folder"/iter_* "$1/$am_evaluations_folder"/iter_* || return
  printf 'rolled_back\n'
}
