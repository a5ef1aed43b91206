# shellcheck shell=sh disable=SC2154,SC2034
# Functions shared by the scripts that change a checkpoint directory, am_dir.

am_plain() { # NUMBER; sets am_plain to it without leading zeros
  am_plain=$1
  while [ "${am_plain#0}" != "$am_plain" ] && [ "$am_plain" != 0 ]; do am_plain=${am_plain#0}; done
}

am_named() { # ITERATION; sets am_name to its directory: DeepSpeed's if it exists, also as renamed to am_prefix
  am_name=$(printf 'iter_%07d' "$1")
  for am_found in "$am_dir/global_step$1" "$am_dir/${am_prefix}global_step$1"; do
    [ ! -d "$am_found" ] || am_name=global_step$1
  done
}

am_tracker_read() { # sets am_tracker; empty if there is none; fails if it is a directory
  am_tracker=
  [ ! -d "$am_dir/$am_tracker_file" ] || return
  [ -f "$am_dir/$am_tracker_file" ] || return 0
  # the shell reads byte by byte, so that a tracker of any size (written by a job) would hold the caller
  am_tracker=$(head -c 8192 "$am_dir/$am_tracker_file" | {
    read -r am_tracker
    printf '%s' "$am_tracker"
  })
  return 0
}

# am_tracker_write ITERATION; atomic: a reader sees the old or the new number. Without ITERATION it removes the tracker.
# DeepSpeed's tracker, latest, is updated if it exists; this package's jobs load by Megatron's tracker.
am_tracker_write() {
  if [ -z "$1" ]; then
    rm -f "$am_dir/$am_tracker_file" "$am_dir/latest"
    return
  fi
  printf '%s' "$1" >"$am_dir/$am_tracker_file.$$" &&
    mv -fT "$am_dir/$am_tracker_file.$$" "$am_dir/$am_tracker_file" && {
    [ ! -f "$am_dir/latest" ] || printf 'global_step%s' "$1" >"$am_dir/latest"
    return
  }
  rm -f "$am_dir/$am_tracker_file.$$"
  return 1
}

am_set_aside() { # PATH PREFIX; renames it in its folder, sets am_to
  am_to=${1%/*}/$2${1##*/}
  am_number=1
  while [ -e "$am_to" ] || [ -L "$am_to" ]; do
    am_number=$((am_number + 1))
    am_to=${1%/*}/$2${1##*/}.$am_number
  done
  mv "$1" "$am_to"
}
