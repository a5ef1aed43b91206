# shellcheck shell=sh disable=SC2154,SC2015
# Part of cluster_install.py's scripts. Each function prints a word for what it did, or "failed REASON".
# Each version is created in its own folder in PATH.versions. PATH is a link, which one rename switches to the new version
# when it is complete: running jobs continue to use their version, and no job sees an incomplete one.

am_failed() {
  printf 'failed %s\n' "$(printf '%s\n' "$*" | tail -n 12)"
}

am_unwritable() { # PATH OUTPUT: of a program that failed; after its first line, tar names the same reason for each file
  am_failed "$1 cannot be written: $(printf '%s\n' "$2" | head -n 1)"
}

am_is_ours() { # PATH: whether it does not exist, or is a link that these functions have created
  if [ -h "$1" ]; then
    case $(readlink "$1") in "$(basename "$1").versions/"*) return 0 ;; esac
    return 1
  fi
  [ ! -e "$1" ]
}

am_turn_to() { # PATH NAME: switches PATH to the version NAME
  am_link=$1.versions/.link.$$
  am_before=$(readlink "$1") || am_before=
  ln -s "$(basename "$1").versions/$2" "$am_link" && mv -fT "$am_link" "$1" || return 1
  # am_prune uses the time at which a version was replaced
  if [ -n "$am_before" ]; then touch -c "$(dirname "$1")/$am_before"; fi
}

am_prune() { # PATH DAYS: removes versions that were replaced or abandoned more than DAYS ago; prints their names
  [ -h "$1" ] && am_is_ours "$1" && [ -d "$1.versions" ] || return 0
  am_now=$(basename "$(readlink "$1")")
  am_old=$(cd "$1.versions" && find . -mindepth 1 -maxdepth 1 -type d ! -name "$am_now" ! -name wheels -mtime "+$(($2 - 1))")
  if am_why=$(cd "$1.versions" && printf '%s\n' "$am_old" | sed -n 's,^\./\(.\),\1,p' | tr '\n' '\0' | xargs -0 -r rm -rf 2>&1); then
    printf '%s\n' "$am_old" | sed 's,^\./,,'
  else
    am_failed "old versions of $1 cannot be removed: $am_why"
  fi
}

am_matches() { # FOLDER MANIFEST (lines of sha256sum): whether the files have these checksums
  [ -d "$1" ] && (cd "$1" && printf '%s\n' "$2" | sha256sum --check --status 2>/dev/null)
}

am_put_programs() { # PATH DIGEST MANIFEST BASE64 (of a tar.gz)
  if am_matches "$1" "$3"; then
    echo same
    return
  fi
  if ! am_is_ours "$1"; then
    am_failed "$1 holds something else, which was not put there by this command: move it away, or name another folder"
    return
  fi
  am_draft=$1.versions/$2.$$
  if ! am_why=$(
    exec 2>&1
    mkdir -p "$am_draft" && printf '%s' "$4" | base64 -d | tar -xzf - -C "$am_draft"
  ) || ! am_matches "$am_draft" "$3"; then
    rm -rf "$am_draft"
    am_unwritable "$1" "$am_why"
    return
  fi
  if am_why=$(am_turn_to "$1" "$2.$$" 2>&1); then echo made; else am_failed "$1 cannot be put in place: $am_why"; fi
}

am_stamp() { # PROGRAMS: prints the stamp that install.sh writes into a complete environment
  cat "$1/requirements.lock" "$1/install.sh" | sha256sum
}

am_environment_is_current() { # VENV PROGRAMS
  [ -x "$1/bin/python" ] && [ "$(cat "$1/.requirements.sha256" 2>/dev/null)" = "$(am_stamp "$2")" ]
}

am_report_environment_state() { # VENV PROGRAMS
  if am_environment_is_current "$1" "$2"; then echo same; else echo other; fi
}

am_make_environment() { # VENV PROGRAMS [PIP_ARGUMENT...]; environment variables: PYTHON and those of pip
  am_venv=$1 am_programs=$2
  shift 2
  if am_environment_is_current "$am_venv" "$am_programs"; then
    echo same
    return
  fi
  if ! am_is_ours "$am_venv"; then
    am_failed "$am_venv is another environment, which was not made by this command: move it away, or name another one"
    return
  fi
  am_draft=$(date +%Y%m%dT%H%M%S).$$
  am_place=$am_venv.versions/$am_draft
  if ! am_why=$(
    exec 2>&1
    trap 'rm -rf "$am_place"; exit 1' HUP INT TERM
    mkdir -p "$am_venv.versions" && sh "$am_programs/install.sh" "$am_place" "$@"
  ); then
    rm -rf "$am_place"
    am_failed "$am_why"
  elif am_why=$(am_turn_to "$am_venv" "$am_draft" 2>&1); then
    echo made
  else
    am_failed "$am_venv cannot be put in place: $am_why"
  fi
}

am_checkout() { # PROGRAMS RELEASE DIR
  if am_why=$(sh "$1/checkout.sh" "$2" "$3" 2>&1); then
    case $am_why in *already) echo same ;; *) echo made ;; esac
  else
    am_failed "$am_why"
  fi
}

am_unpack_checkout() { # DIR COMMIT ARCHIVE
  am_draft=$1.$$
  if ! am_why=$(
    exec 2>&1
    trap 'rm -rf "$am_draft"; exit 1' HUP INT TERM
    mkdir -p "$am_draft" && tar -xzf "$3" -C "$am_draft"
  ); then
    rm -rf "$am_draft"
    am_unwritable "$1" "$am_why"
  elif [ -e "$1" ] || ! mv -T "$am_draft" "$1"; then
    rm -rf "$am_draft"
    am_failed "$1 was created by another process in the meantime; run the command again"
  else
    rm -f "$3"
    echo made
  fi
}

am_commit_of() { # DIR: prints "absent", or "at" and the checked-out commit (empty if unknown)
  if [ -e "$1" ] || [ -h "$1" ]; then
    am_head=$(cat "$1/.git/HEAD" 2>/dev/null)
    case $am_head in "ref: "*) am_head=$(cat "$1/.git/${am_head#ref: }" 2>/dev/null) ;; esac
    echo "at $am_head"
  else
    echo absent
  fi
}

am_size() { # FILE DIGEST: prints "complete", or the number of bytes received so far
  if [ -f "$1" ]; then
    if [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$2" ]; then echo complete; else rm -f "$1" && echo 0; fi
  else
    stat -c %s "$1.part" 2>/dev/null || echo 0
  fi
}

am_append() { # FILE OFFSET BASE64: appends to FILE.part and prints its new size
  am_why=$(
    exec 2>&1
    mkdir -p "$(dirname "$1")" || exit 1
    am_there=$(stat -c %s "$1.part" 2>/dev/null) || am_there=0
    if [ "$am_there" = "$2" ]; then printf '%s' "$3" | base64 -d >>"$1.part"; fi
  ) || {
    am_unwritable "$1" "$am_why"
    return
  }
  stat -c %s "$1.part"
}

am_complete() { # FILE DIGEST
  if [ "$(sha256sum <"$1.part" | cut -d' ' -f1)" = "$2" ]; then
    mv -f "$1.part" "$1" && echo made
  else
    rm -f "$1.part"
    am_failed "$1 did not arrive as it was sent; run the command again"
  fi
}

am_about_python() { # PYTHON: prints its version, machine and C library
  am_why=$("$1" -c 'import platform, sys
print("%d.%d" % sys.version_info[:2], platform.machine(), *platform.libc_ver())' 2>&1) \
    && printf 'python %s\n' "$am_why" || am_failed "$1: $am_why"
}
