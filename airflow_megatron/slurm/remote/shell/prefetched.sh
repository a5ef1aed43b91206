# shellcheck shell=bash
# Refuse to start an offline job if prefetched files are missing.

# The first argument has the lines that the plan wrote: the cache, the sweep, then key and name of each item.
am_check_prefetched() {
  local home sweep key name size path line many text=''
  local -a lines missing=()
  mapfile -t lines <<<"$1"
  home=${lines[0]} sweep=${lines[1]}
  for line in "${lines[@]:2}"; do
    key=${line%% *} name=${line#* }
    if [ ! -r "$home/prefetched/$key" ]; then
      missing+=("$name")
      continue
    fi
    while IFS=$'\t' read -r size path; do
      if [ "$(stat -Lc %s -- "$home/$path" 2>/dev/null </dev/null)" != "$size" ]; then
        missing+=("$name ($path)")
        break
      fi
    done <"$home/prefetched/$key"
  done
  many=${#missing[@]}
  [ "$many" -gt 0 ] || return 0
  for name in "${missing[@]:0:10}"; do text+="${text:+, }$name"; done
  [ "$many" -le 10 ] || text+=" and $((many - 10)) more"
  echo "airflow-megatron: error: $many of $((${#lines[@]} - 2)) items are not in $home: $text; this job runs offline:" \
    "clear the prefetch stage of $sweep, or run: airflow-megatron prefetch $sweep" >&2
  return 1
}
