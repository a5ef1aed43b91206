# shellcheck shell=sh disable=SC2154
# Functions of finished_stages.py's script; calls of am_point and then am_verdicts follow.

am_newline='
'
am_found=

am_point() { # [INDEX DIRECTORY]...; collects the stages up to the first one without a verdict
  while [ $# -gt 0 ]; do
    [ -s "$2/$am_verdict_file" ] || return 0
    am_found=$am_found$1\ $2$am_newline
    shift 2
  done
}

# Prints the verdict of each stage and the numbers of its attempts. The shell reads byte by byte, so verdicts of more than
# 64 KiB (written by a job) are not read.
am_verdicts() {
  am_large=$(printf '%s' "$am_found" | while IFS= read -r am_line; do
    printf '%s/%s\0' "${am_line#* }" "$am_verdict_file"
  done | xargs -0 -r sh -c 'exec find -H "$@" -maxdepth 0 ! \( -type f -size -129 \)' find 2>/dev/null)
  while IFS= read -r am_one; do
    [ -n "$am_one" ] || continue
    am_stage=${am_one#* }
    printf 'stage %s\n' "${am_one%% *}"
    case $am_newline$am_large$am_newline in
      *"$am_newline$am_stage/$am_verdict_file$am_newline"*) ;;
      *)
        while IFS= read -r am_line || [ -n "$am_line" ]; do
          printf 'verdict %s\n' "$am_line"
        done <"$am_stage/$am_verdict_file"
        ;;
    esac
    for am_attempt in "$am_stage"/*/; do
      am_attempt=${am_attempt%/}
      case ${am_attempt##*/} in '' | *[!0-9]*) continue ;; esac
      printf 'attempt %s\n' "${am_attempt##*/}"
    done
  done <<AM_FOUND
$am_found
AM_FOUND
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
