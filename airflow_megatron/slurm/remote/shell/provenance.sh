# shellcheck shell=sh disable=SC2154,SC2016
# Included by provenance.py; it uses am_python, am_inputs, and for a job in a container am_image and am_in_container.

am_digest() { # PATH: prints a cheap identification of a large file
  am_stat=$(stat -L -c '"bytes": %s, "modified": %Y' "$1" 2>/dev/null) || { printf '"bytes": null'; return; }
  [ -f "$1" ] || { printf '%s' "$am_stat"; return; }
  am_sum=$(head -c 1048576 "$1" 2>/dev/null | sha256sum)
  printf '%s, "sha256_of_first_mib": "%s"' "$am_stat" "${am_sum%% *}"
}

am_git() { git -c 'safe.directory=*' -C "$@" 2>/dev/null; }

am_commit() { # FOLDER: prints its commit, and whether files differ from it
  am_id=$(am_git "$1" rev-parse HEAD) || am_id=
  case $am_id in '' | *[!0-9a-f]*) printf '"commit": null'; return ;; esac
  am_changed=null
  if am_changes=$(timeout 20 git -c 'safe.directory=*' -C "$1" status --porcelain --untracked-files=no 2>/dev/null); then
    if [ -n "$am_changes" ]; then am_changed=true; else am_changed=false; fi
  fi
  printf '"commit": "%s", "changed": %s' "$am_id" "$am_changed"
}

am_plain_packages() { grep -x '[A-Za-z0-9._-]*==[0-9A-Za-z.+!_]*' | head -n 10000 || true; }

am_kept_list() { # FOLDER: sets am_kept, the cached package list of the image; that of a registry's image is valid for a day
  am_identity=$(am_digest "$am_image")
  am_sum=$(printf '%s %s %s' "$am_image" "$am_identity" "$am_python" | sha256sum)
  am_kept=$1/image-${am_sum%% *}
  case $am_identity in
    *sha256*) ;;
    *) find "$am_kept" -mtime +0 -exec rm -f {} + 2>/dev/null || true ;;
  esac
}

am_packages() { # FOLDER: prints the packages that the job sees; starts a container only if there is no cached list
  [ -n "$am_image" ] || { am_packages_here; return 0; }
  am_kept_list "$1"
  if [ ! -s "$am_kept" ]; then
    [ -n "${SLURM_JOB_ID:-}" ] && mkdir -p "$1" || return 0
    am_listed=$(am_in_container </dev/null 2>/dev/null) || return 0
    printf '%s\n' "$am_listed" | head -c 1000000 >"$am_kept.$$" && mv -fT "$am_kept.$$" "$am_kept"
  fi
  am_plain_packages <"$am_kept"
}

am_json_list() { # lines of plain characters
  sed -e 's/.*/"&"/' | paste -s -d, -
}

am_host() { uname -n | tr -cd 'A-Za-z0-9._-'; }

am_write_record() { # FILE ENVIRONMENT
  printf '{%s, "environment": %s, "host": "%s"}\n' "$(am_inputs)" "$2" "$(am_host)" >"$1.new" && mv -fT "$1.new" "$1"
}

am_record_provenance() { # FILE FOLDER: called once for an attempt; attempts with the same packages share one list
  [ ! -e "$1" ] || return 0
  # the job may end before the packages in its container are listed
  [ -z "$am_image" ] || am_write_record "$1" null
  am_found=$(am_packages "$2")
  am_environment=null
  if [ -n "$am_found" ] && mkdir -p "$2"; then
    am_sum=$(printf '%s\n' "$am_found" | sha256sum)
    am_environment="\"${am_sum%% *}\""
    am_file=$2/${am_sum%% *}.json
    if [ ! -e "$am_file" ]; then
      printf '{"packages": [%s]}\n' "$(printf '%s\n' "$am_found" | am_json_list)" >"$am_file.$$" && mv -fT "$am_file.$$" "$am_file"
    fi
  fi
  am_write_record "$1" "$am_environment"
}

am_print_provenance() { # FOLDER
  printf 'provenance {%s, "packages": [%s]}\n' "$(am_inputs)" "$(am_packages "$1" | am_json_list)"
}
