# shellcheck shell=sh disable=SC2154
# Functions of finished_stages.py's script; calls of am_point follow.

am_judged() { # INDEX DIRECTORY; the stage's verdict and the numbers of its attempts, status 1 where it has no verdict
  [ -s "$2/$am_verdict_file" ] || return
  printf 'stage %s\n' "$1"
  while IFS= read -r am_line || [ -n "$am_line" ]; do printf 'verdict %s\n' "$am_line"; done <"$2/$am_verdict_file"
  for am_attempt in "$2"/*/; do
    am_attempt=${am_attempt%/}
    case ${am_attempt##*/} in '' | *[!0-9]*) continue ;; esac
    printf 'attempt %s\n' "${am_attempt##*/}"
  done
}

am_point() { # [INDEX DIRECTORY]...; up to the first stage without a verdict
  while [ $# -gt 0 ]; do
    am_judged "$1" "$2" || return 0
    shift 2
  done
}

am_started() { # NUMBER DIRECTORY...; whether one of the stages has an attempt
  am_number=$1
  shift
  for am_stage in "$@"; do
    for am_attempt in "$am_stage"/*/; do
      am_attempt=${am_attempt%/}
      case ${am_attempt##*/} in
        '' | *[!0-9]*) ;;
        *)
          printf 'started %s\n' "$am_number"
          return
          ;;
      esac
    done
  done
}
