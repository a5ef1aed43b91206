# shellcheck shell=sh disable=SC2154,SC2016
# Included by provenance.py, after: am_python, empty in a container, and am_inputs.

# The packages beside a Python, name==version: from the folders' names, as starting it takes long on a shared disk.
am_packages() {
  [ -n "$am_python" ] || return 0
  am_prefix=$(command -v "$am_python") || return 0
  am_prefix=${am_prefix%/*}
  am_prefix=${am_prefix%/*}
  for am_one in "$am_prefix"/lib/python3*/site-packages "$am_prefix"/lib64/python3*/site-packages \
    "$am_prefix"/lib/python3/dist-packages "$am_prefix"/local/lib/python3*/dist-packages; do
    if [ -d "$am_one" ]; then ls "$am_one" 2>/dev/null || true; fi
  done |
    sed -n -e 's/-py3[0-9.]*\.egg-info$/.egg-info/' -e 's/^\([A-Za-z0-9._-]*\)-\([0-9A-Za-z.+!_]*\)\.\(dist\|egg\)-info$/\1==\2/p' |
    LC_ALL=C sort -u
}

am_digest() { # PATH: what identifies a large file cheaply
  am_stat=$(stat -L -c '"bytes": %s, "modified": %Y' "$1" 2>/dev/null) || { printf '"bytes": null'; return; }
  [ -f "$1" ] || { printf '%s' "$am_stat"; return; }
  am_sum=$(head -c 1048576 "$1" 2>/dev/null | sha256sum)
  printf '%s, "sha256_of_first_mib": "%s"' "$am_stat" "${am_sum%% *}"
}

am_git() { git -c 'safe.directory=*' -C "$@" 2>/dev/null; }

am_commit() { # FOLDER: its commit, and whether files differ from it
  am_id=$(am_git "$1" rev-parse HEAD) || am_id=
  case $am_id in '' | *[!0-9a-f]*) printf '"commit": null'; return ;; esac
  am_changed=null
  if am_changes=$(timeout 20 git -c 'safe.directory=*' -C "$1" status --porcelain --untracked-files=no 2>/dev/null); then
    if [ -n "$am_changes" ]; then am_changed=true; else am_changed=false; fi
  fi
  printf '"commit": "%s", "changed": %s' "$am_id" "$am_changed"
}

am_json_list() { # lines of plain characters
  sed -e 's/.*/"&"/' | paste -s -d, -
}

am_host() { uname -n | tr -cd 'A-Za-z0-9._-'; }

am_record_provenance() { # FILE FOLDER: once for an attempt; the list of packages once for all that have the same ones
  [ ! -e "$1" ] || return 0
  am_found=$(am_packages)
  am_environment=null
  if [ -n "$am_found" ] && mkdir -p "$2"; then
    am_sum=$(printf '%s\n' "$am_found" | sha256sum)
    am_environment="\"${am_sum%% *}\""
    am_file=$2/${am_sum%% *}.json
    if [ ! -e "$am_file" ]; then
      printf '{"packages": [%s]}\n' "$(printf '%s\n' "$am_found" | am_json_list)" >"$am_file.$$" && mv -f "$am_file.$$" "$am_file"
    fi
  fi
  printf '{%s, "environment": %s, "host": "%s"}\n' "$(am_inputs)" "$am_environment" "$(am_host)" >"$1.new" && mv -f "$1.new" "$1"
}

am_print_provenance() {
  printf 'provenance {%s, "packages": [%s]}\n' "$(am_inputs)" "$(am_packages | am_json_list)"
}
