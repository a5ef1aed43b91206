# shellcheck shell=sh disable=SC2154
# Functions of cluster_room.py's script; they use am_sinfo and am_sbatch. Calls follow.

am_partition() { # [PARTITION]; prints its state (up, down, drain, inact)
  if [ -n "${1:-}" ]; then
    am_answer=$(am_sinfo -h -o '%a' -p "$1" 2>/dev/null)
  else
    am_answer=
  fi
  printf 'partition %s\n' "$(printf '%s\n' "$am_answer" | head -n 1)"
}

am_estimate() { # job script on standard input; prints the seconds until Slurm would start it, or the reason of a refusal
  am_answer=$(am_sbatch --test-only 2>&1)
  case $am_answer in
    *' to start at '*)
      am_start=${am_answer##* to start at }
      am_start=$(date -d "${am_start%% *}" +%s) && printf 'wait %s\n' "$((am_start - $(date +%s)))"
      ;;
    *) printf 'refused %s\n' "$(printf '%s\n' "$am_answer" | grep . | head -n 1)" ;;
  esac
}
