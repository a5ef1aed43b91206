# shellcheck shell=sh disable=SC2088
# Part of job scripts with secrets. Works under "set -eu" of the job script.

am_secret() { # NAME FILE; exports the content of a file, which must belong to this user and be closed to all others
  am_secret_tracing=$-
  { set +x; } 2>/dev/null
  am_secret_file=$2 am_secret_wrong='' am_secret_value=''
  case $am_secret_file in "~/"*) am_secret_file=${HOME-}/${am_secret_file#"~/"} ;; esac
  if [ ! -f "$am_secret_file" ]; then
    am_secret_wrong='is not a file here'
  else
    am_secret_state=$(stat -L -c '%u %a %s' -- "$am_secret_file" 2>/dev/null) || am_secret_state='? ? 0'
    am_secret_size=${am_secret_state##* } am_secret_mode=${am_secret_state% *}
    if [ "${am_secret_mode% *}" != "$(id -u)" ]; then
      am_secret_wrong='belongs to somebody else'
    elif [ "${am_secret_mode%00}" = "$am_secret_mode" ]; then
      am_secret_wrong="can be read by others (mode ${am_secret_mode#* }); run chmod 600"
    elif [ ! -r "$am_secret_file" ]; then
      am_secret_wrong='cannot be read'
    elif [ "$am_secret_size" -gt 120000 ]; then
      am_secret_wrong='is longer than 120000 bytes, more than a variable can hold'
    elif [ "$(tr -d '\000' <"$am_secret_file" | wc -c)" -ne "$am_secret_size" ]; then
      am_secret_wrong='holds a NUL byte, which a variable cannot'
    elif am_secret_value=$(cat -- "$am_secret_file") && [ -n "$am_secret_value" ]; then
      export "$1=$am_secret_value"
    else
      am_secret_wrong='is empty'
    fi
  fi
  am_secret_value=
  case $am_secret_tracing in *x*) set -x ;; esac
  if [ -n "$am_secret_wrong" ]; then
    echo "airflow-megatron: the secret $1: $2 $am_secret_wrong on $(uname -n)" >&2
    return 77
  fi
}
