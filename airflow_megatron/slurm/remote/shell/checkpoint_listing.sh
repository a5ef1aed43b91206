# shellcheck shell=sh disable=SC2154,SC2034
# Lists the checkpoints of all runs below am_root; uses the functions of poll.sh.

am_checkpoint_folders() { # DEPTH; paths below am_root
  find -H "$am_root" -mindepth 1 -maxdepth "$1" \( -name '.*' -o -name 'iter_*' -o -name logs -o -name tensorboard -o -name "*$am_newline*" \) -prune \
    -o -name "$am_checkpoints_folder" -type d -print -prune -o -name "$am_checkpoints_folder" -type l -print 2>/dev/null | sort
}

am_listing() { # DEPTH SECONDS BYTES BYTES_IN_ALL
  if [ ! -d "$am_root" ]; then
    printf 'absent\n'
    return
  fi
  am_wait=$2 am_bytes=$3 am_all_bytes=$4
  am_all=$(am_checkpoint_folders "$1")
  set --
  while IFS= read -r am_folder; do
    [ -n "$am_folder" ] || continue
    am_folder=${am_folder#"$am_root"}
    set -- "$@" "$am_folder"
    printf 'K %s\n' "$am_folder"
  done <<AM_FOLDERS
$am_all
AM_FOLDERS
  # the shell reads byte by byte, so trackers of more than 8 KiB (written by a job) are not read
  am_large=$(for am_folder; do printf '%s%s/%s\0' "$am_root" "$am_folder" "$am_tracker_file"; done |
    xargs -0 -r sh -c 'exec find -H "$@" -maxdepth 0 -size +16' find 2>/dev/null)
  am_index=0
  for am_folder; do
    am_line=
    am_file=$am_root$am_folder/$am_tracker_file
    case $am_newline$am_large$am_newline in *"$am_newline$am_file$am_newline"*) am_file= ;; esac
    if [ -f "$am_file" ]; then
      read -r am_line <"$am_file"
      printf 'L %s %s\n' "$am_index" "$am_line"
    fi
    am_index=$((am_index + 1))
  done
  for am_folder; do # list the files of all checkpoints, from iteration 0 on
    set -- "$@" 0 "$am_folder"
    shift
  done
  am_checkpoints "$am_wait" "$am_bytes" "$am_all_bytes" "$@"
}
