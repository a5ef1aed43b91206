# shellcheck shell=sh disable=SC2154,SC2016
# Included by run_folders.py.

am_entries() { # the entries of the current folder; a line break in a name becomes "?"
  find . -mindepth 1 -maxdepth 1 -printf '%f\0' | tr '\n\000' '?\n'
}

am_foreign() { # the entries of the current folder without records of jobs; none if the folder has records itself
  [ ! -d "./$am_jobs_folder" ] || return 0
  am_entries | sort | while IFS= read -r am_entry; do
    case $am_entry in "$am_arrays_folder" | "$am_shared_cache_folder" | "$am_prefetched_folder") continue ;; esac
    if [ -d "./$am_entry" ] && [ ! -L "./$am_entry" ] &&
      [ -n "$(find "./$am_entry" -name "$am_jobs_folder" -print -quit 2>/dev/null)" ]; then continue; fi
    printf '%s\n' "$am_entry"
  done
}

am_not_foreign() { # the other entries, as ./NAME, each followed by a NUL
  { printf '%s\n' "$am_kept" / && am_entries; } | awk '
    $0 == "/" { kept_end = 1; next }
    !kept_end { kept[$0]; next }
    !($0 in kept) { print "./" $0 }' | tr '\n' '\0'
}

am_of_jobs() { # NUMBER PARENT FOLDER remove|list: as am_folder for the current folder, without its foreign entries
  am_kept=$(am_foreign)
  [ -z "$am_kept" ] || printf '%s\n' "$am_kept" | sed -e "s/^/kept $1 /" -e 1000q
  if [ -n "$am_kept" ] && [ -z "$(am_not_foreign | tr '\000' '\n')" ]; then
    printf 'absent %s\n' "$1"
  elif [ "$4" = list ]; then
    printf 'holds %s %s\n' "$1" "$(am_not_foreign | xargs -0 -r du -sk 2>/dev/null | awk '{ sum += $1 } END { printf "%.0f", sum }')"
  else
    # the records go last, so that an interrupted removal can be repeated
    export am_jobs_folder
    am_not_foreign | xargs -0 -r sh -c \
      'exec find "$@" -depth ! -path "*/$am_jobs_folder" ! -path "*/$am_jobs_folder/*" -delete' find 2>/dev/null
    if am_said=$(am_not_foreign | xargs -0 -r rm -rf 2>&1) &&
      { [ -n "$am_kept" ] || am_said=$(cd "$2" && rmdir "./$3" 2>&1); }; then
      printf 'removed %s\n' "$1"
    else
      printf 'failed %s %s\n' "$1" "$(printf '%s' "$am_said" | head -n 1)"
    fi
  fi
}

# am_folder NUMBER ROOT PATH [remove|list-of-jobs|remove-of-jobs]: prints the size of a folder below ROOT, and removes it
# if requested; "of-jobs": without the entries in which no job has records, which are printed
am_folder() {
  (
    cd -P "$2" 2>/dev/null || { printf 'absent %s\n' "$1"; exit; }
    am_rest=$3
    case ${4-} in *-of-jobs) am_rest=$am_rest/. ;; esac
    while :; do
      am_one=./${am_rest%%/*}
      if [ -L "$am_one" ]; then
        printf 'refused %s %s/%s is a symbolic link\n' "$1" "$(pwd -P)" "${am_one#./}"
        exit
      fi
      case $am_rest in */*) ;; *) break ;; esac
      am_rest=${am_rest#*/}
      am_here=$(pwd -P)
      cd -P "$am_one" 2>/dev/null || { printf 'absent %s\n' "$1"; exit; }
      # a link may have taken its place since it was checked
      if [ "$(pwd -P)" != "${am_here%/}/${am_one#./}" ]; then
        printf 'refused %s %s/%s is a symbolic link\n' "$1" "$am_here" "${am_one#./}"
        exit
      fi
    done
    case ${4-} in *-of-jobs)
      am_of_jobs "$1" "$am_here" "$(basename "$(pwd -P)")" "${4%-of-jobs}"
      exit
      ;;
    esac
    [ -e "$am_one" ] || { printf 'absent %s\n' "$1"; exit; }
    if [ "${4-}" != remove ]; then
      am_size=$(du -sk "$am_one" 2>/dev/null) || true
      printf 'holds %s %s\n' "$1" "${am_size%%[!0-9]*}"
    elif am_said=$(rm -rf "$am_one" 2>&1); then
      printf 'removed %s\n' "$1"
    else
      printf 'failed %s %s\n' "$1" "$(printf '%s' "$am_said" | head -n 1)"
    fi
  )
}
