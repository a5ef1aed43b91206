# shellcheck shell=sh disable=SC2154,SC2034
# The functions of quarantine.py's script, after checkpoint_folder.sh; one call of am_quarantine follows.

# am_quarantine DIRECTORY BAD PREFIX MAX GOOD EXPECTED; BAD and GOOD are iterations, GOOD empty for none;
# EXPECTED is the tracker's number at the time of the decision. Prints one line: the result, or the reason of a refusal.
am_quarantine() {
  am_dir=$1 am_prefix=$3 am_max=$4 am_target=$5 am_expected=$6
  am_tracker_read || {
    printf 'failed the tracker is a directory\n'
    return
  }
  if [ -n "$am_target" ]; then
    am_named "$am_target"
    if [ ! -d "$am_dir/$am_name" ]; then
      printf 'refused the checkpoint to go back to, %s, is gone\n' "$am_name"
      return
    fi
  fi
  am_named "$2"
  am_bad=$am_name
  if [ ! -d "$am_dir/$am_bad" ] && [ -e "$am_dir/$am_prefix$am_bad" ] && [ "$am_tracker" = "$am_target" ]; then
    printf 'already\n'
    return
  fi
  if [ "$am_tracker" != "$am_expected" ] && [ "$am_tracker" != "$am_target" ]; then
    printf 'refused the tracker holds %s, not %s any more: another job saves here\n' \
      "${am_tracker:-nothing}" "${am_expected:-nothing}"
    return
  fi
  am_count=0
  set +f
  for am_kept in "$am_dir/$am_prefix"iter_* "$am_dir/$am_prefix"global_step*; do
    { [ -d "$am_kept" ] || [ -L "$am_kept" ]; } && am_count=$((am_count + 1))
  done
  if [ -d "$am_dir/$am_bad" ] && [ "$am_count" -ge "$am_max" ]; then
    printf 'exhausted %s\n' "$am_count"
    return
  fi
  # The tracker first: if the script is killed between the two steps, the next start loads the good checkpoint.
  am_said=$(am_tracker_write "$am_target" 2>&1) || {
    printf 'failed %s\n' "$am_said"
    return
  }
  if [ ! -d "$am_dir/$am_bad" ]; then
    printf 'moved\n'
    return
  fi
  am_said=$(am_set_aside "$am_dir/$am_bad" "$am_prefix" 2>&1 && printf '%s' "${am_to##*/}") || {
    printf 'failed %s\n' "$am_said"
    return
  }
  printf 'quarantined %s\n' "$am_said"
}
