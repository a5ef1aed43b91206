# shellcheck shell=sh
# Included by provenance.py.

am_last=
am_read() { # NUMBER STAGE_DIR ENVIRONMENTS: prints the newest record of a stage, unless an earlier stage had one
  [ -z "$am_last" ] || return 0
  for am_one in "$2"/[0-9]*/provenance.json; do
    if [ -s "$am_one" ]; then am_last=$am_one; fi
  done
  [ -n "$am_last" ] || return 0
  printf 'record %s %s\n' "$1" "$(head -c 1000000 "$am_last" | tr -d '\n')"
  am_id=$(sed -n 's/.*"environment": "\([0-9a-f]*\)".*/\1/p' "$am_last")
  if [ -s "$3/$am_id.json" ]; then printf 'packages %s\n' "$(head -c 1000000 "$3/$am_id.json" | tr -d '\n')"; fi
}
