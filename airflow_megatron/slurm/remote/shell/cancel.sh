# shellcheck shell=sh disable=SC2154,SC2034
# Body of cancellation.py's script; it uses am_wanted (prints ID|NAME lines), am_squeue, am_scancel_ids and am_own_name.

am_rows=$(am_squeue --me -h -r -o 'queue|%i|%j|%k' 2>&1) || {
  printf 'failed squeue: %s\n' "$(printf '%s' "$am_rows" | tr '\n' ' ')"
  am_rows=
}
am_rows=$(printf '%s\n' "$am_rows" | awk -F'|' "$am_own_name"'
  $1 == "queue" {
    own = own_name(substr($0, length($1 $2 $3) + 4))
    $0 = $1 "|" $2 "|" (own == "" ? $3 : own)
  }
  { print }')
am_ids=$({
  printf '%s\n' "$am_rows"
  am_wanted
} | awk -F'|' '
  $1 == "queue" { sub(/\+0$/, "", $2)
    if (($2 in queued) && queued[$2] != $3) unclear[$2] # a name with a line break in it
    queued[$2] = $3
    next
  }
  NF == 2 && ($1 in queued) && queued[$1] == $2 && !($1 in unclear) && !printed[$1]++ { print $1 }')
if [ -n "$am_ids" ]; then
  printf '%s\n' "$am_ids" | sed 's/^/cancelled /'
  printf '%s\n' "$am_ids" | am_scancel_ids 2>&1 | sed 's/^/scancel /'
fi
