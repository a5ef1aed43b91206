# shellcheck shell=sh
# Included by run_folders.py.

am_folder() { # NUMBER ROOT PATH [remove]: prints the size of a folder below ROOT, and removes it if requested
  (
    cd -P "$2" 2>/dev/null || { printf 'absent %s\n' "$1"; exit; }
    am_rest=$3
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
