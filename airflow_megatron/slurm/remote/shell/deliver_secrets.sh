# shellcheck shell=sh disable=SC2154,SC2034
# Part of submit.sh's scripts, see secret_delivery.py; values are arguments of shell functions, never of a process.

am_open_secrets() { # sets am_secrets, a private folder of this user; fails for an existing link
  am_secrets=$1/$am_secrets_folder
  mkdir -m 700 "$am_secrets" 2>/dev/null
  if [ ! -h "$am_secrets" ] && [ -d "$am_secrets" ]; then
    case $(stat -c '%u %a' "$am_secrets") in "$(id -u) "*700) return ;; esac
  fi
  am_trouble="$am_secrets is not a private folder of this user, or cannot be created; remove it"
  return 1
}

am_write_secret() { # NAME BASE64
  am_new=$am_secrets/.$1.$am_token.$$
  (umask 077 && printf '%s' "$2" | base64 -d >"$am_new") && chmod 600 "$am_new" && mv -fT "$am_new" "$am_secrets/$1"
}

am_deliver_secrets() { # ATTEMPT_DIR [NAME BASE64]…
  [ $# -gt 1 ] || return 0
  am_open_secrets "$1" || return
  shift
  while [ $# -gt 0 ]; do
    am_try am_write_secret "$1" "$2" || return
    shift 2
  done
}
