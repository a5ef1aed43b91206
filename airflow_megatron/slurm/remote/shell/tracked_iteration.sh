# shellcheck shell=sh
# Reads Megatron's tracker file, into which its job may have written any amount of anything.

am_tracked_iteration() { # TRACKER; prints its first line, nothing if there is none
  [ -s "$1" ] || return 0
  head -c 32 "$1" | tr -d '\000' | {
    read -r am_line || true
    printf '%s' "$am_line"
  }
}
