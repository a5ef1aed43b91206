# shellcheck shell=sh disable=SC2154,SC2015
# Included by run_archive.py. Variables: am_root, am_to, am_extra (base64 of a tar.gz), am_left_out (options of tar).

am_fail() { printf 'failed %s\n' "$*"; }

am_archive() { # FOLDER…: creates one archive of folders below am_root; an incomplete archive never becomes visible
  cd -P "$am_root" 2>/dev/null || { am_fail "there is no $am_root"; return; }
  if [ -z "$am_to" ]; then
    command -v zstd >/dev/null 2>&1 && am_to=$am_default.tar.zst || am_to=$am_default.tar.gz
    mkdir -p "${am_to%/*}" || { am_fail "${am_to%/*} cannot be created"; return; }
  fi
  case $am_to in
    *.tar.zst) am_pack='zstd -q -T0' ;;
    *) am_pack=gzip ;;
  esac
  if ! command -v "${am_pack%% *}" >/dev/null 2>&1; then am_fail "${am_pack%% *} is missing"; return; fi
  if [ -e "$am_to" ]; then am_fail "$am_to exists"; return; fi
  for am_one in "$@"; do
    am_part=.
    am_rest=$am_one
    while [ -n "$am_rest" ]; do
      am_part=$am_part/${am_rest%%/*}
      if [ -L "$am_part" ]; then am_fail "$am_root/${am_part#./} is a symbolic link"; return; fi
      case $am_rest in */*) am_rest=${am_rest#*/} ;; *) am_rest='' ;; esac
    done
    if [ ! -d "./$am_one" ]; then am_fail "there is no $am_root/$am_one"; return; fi
  done
  if [ ! -d "${am_to%/*}/" ]; then am_fail "there is no folder ${am_to%/*}"; return; fi
  am_parts=$(mktemp -d "${am_to%/*}/.archive.XXXXXX") || { am_fail "${am_to%/*} is not writable, or full"; return; }
  trap 'rm -rf "$am_parts"' EXIT
  am_full="no space in ${am_to%/*}" # a full disk does not hold the messages either
  am_said=$(printf '%s' "$am_extra" | base64 -d | tar -xzf - -C "$am_parts" 2>&1) ||
    { am_fail "${am_said:-$am_full}"; return; }
  # tar exits with 1 if a file changed during the run, such as the log of a running job
  {
    # shellcheck disable=SC2086
    tar -cf - $am_left_out -C "$am_parts" airflow-megatron -C "$am_root" -- "$@" 2>"$am_parts/.errors"
    printf '%s' "$?" >"$am_parts/.status"
  } | $am_pack >"$am_parts/.packed" || { am_fail "no space, or ${am_pack%% *} was killed"; return; }
  am_status=$(cat "$am_parts/.status")
  if [ "${am_status:-2}" -gt 1 ]; then
    am_said=$(tail -n 1 "$am_parts/.errors")
    am_fail "${am_said:-$am_full}"
    return
  fi
  # another archive may have been written there meanwhile
  mv -nT "$am_parts/.packed" "$am_to" && [ ! -e "$am_parts/.packed" ] || { am_fail "$am_to cannot be written"; return; }
  printf 'wrote %s %s\n' "$(wc -c <"$am_to")" "$am_to"
}
