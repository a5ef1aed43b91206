# shellcheck shell=bash
# Part of job scripts with secrets.

am_secret() { # NAME FILE; exports what a file holds that is our own and closed to everybody else
  local am_tracing=$- am_file=$2 am_wrong='' am_owner='' am_mode='' am_secret_value=''
  { set +x; } 2>/dev/null
  case $am_file in "~/"*) am_file=$HOME/${am_file#"~/"} ;; esac
  if [ ! -f "$am_file" ]; then
    am_wrong='is no file here'
  else
    read -r am_owner am_mode <<<"$(stat -L -c '%u %a' -- "$am_file" 2>/dev/null)"
    if [ "$am_owner" != "$(id -u)" ]; then
      am_wrong='belongs to somebody else'
    elif [[ $am_mode != *00 ]]; then
      am_wrong="can be read by others (mode $am_mode); run chmod 600"
    elif ! am_secret_value=$(cat -- "$am_file" 2>/dev/null); then
      am_wrong='cannot be read'
    elif [ -z "$am_secret_value" ]; then
      am_wrong='is empty'
    else
      export "$1=$am_secret_value"
    fi
  fi
  case $am_tracing in *x*) set -x ;; esac
  if [ -n "$am_wrong" ]; then
    echo "airflow-megatron: the secret $1: $2 $am_wrong on $(uname -n)" >&2
    return 77
  fi
}
