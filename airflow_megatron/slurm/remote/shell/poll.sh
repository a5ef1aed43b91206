# shellcheck shell=sh disable=SC2154,SC2034
# The functions of polling.py's script, after: am_root (common beginning of all paths), am_squeue, am_sacct.
# Calls with the lists of ids and paths follow. Nothing here starts a process per job, except for new log bytes.

am_newline='
'

# A job's name may hold line breaks, and then what looks like another job's row. So each row has a mark that no name can
# know; lines without it are told as "q" and "a" (errors, and what follows a line break). An answer without any mark is
# one of a wrapper that has formats of its own.
am_mark=am$$.$(date +%s%N)
export am_mark

am_broken=

am_queue() { # FORMAT; -t all: jobs that ended within MinJobAge show their final state
  am_queue=$(am_squeue --me -h -t all -o "$am_mark|$1" 2>&1)
  am_status=$?
  case $am_queue in
    *"$am_mark"*)
      printf '%s\n' "$am_queue" | sed -e "s/^$am_mark|/Q /;t" -e 's/^/q /'
      am_broken=$(printf '%s\n' "$am_queue" | awk -F'|' -v mark="$am_mark" '
        $1 == mark { id = $2; sub(/\+0$/, "", id); next }
        id != "" { print "broken|" id }')
      am_queue=$(printf '%s\n' "$am_queue" | sed -n "s/^$am_mark|//p")
      ;;
    *) printf '%s\n' "$am_queue" | sed 's/^/Q /' ;;
  esac
  printf 'queue_status %s\n' "$am_status"
}

# am_controller ID,ID… CALLS; what slurmctld remembers of those that squeue lists as ended, of CALLS of them at most. It is
# not asked for a job with a line break in its name: the answer could tell of another one.
am_controller() {
  am_asked=$({
    printf '%s\n' "$am_queue"
    printf '%s\n' "$am_broken"
    printf '=\n'
    printf '%s\n' "$1" | tr ',' '\n'
  } | awk -F'|' -v most="$2" -v ended="^($am_ended)" '
    $1 == "=" { ids = 1; next }
    $1 == "broken" { delete over[$2]; next }
    !ids { sub(/\+0$/, "", $1); if ($2 ~ ended) over[$1] = 1; next }
    ($1 in over) && n++ < most { print "show job " $1 }')
  [ -n "$am_asked" ] || return
  printf '%s\n' "$am_asked" | am_scontrol -o 2>&1 | sed 's/^/J /'
}

# am_accounting FORMAT IDS_PER_CALL ENDED_STATES CONTROLLER_CALLS ID…
# Asks only for ids that squeue does not list as active, and not at all without squeue's answer: the last record of a
# requeued job looks like its end.
am_accounting() {
  [ "$am_status" -eq 0 ] || return
  am_format=$1 am_per_call=$2 am_ended=$3 am_calls=$4
  shift 4
  am_chunks=$({
    printf '%s\n' "$am_queue"
    printf '=\n'
    printf '%s\n' "$@"
  } | awk -F'|' -v per_call="$am_per_call" -v ended="^($am_ended)" '
    function mark(id,   array, parts, n, part, bounds, m, step, task) { # 7_[1-3,8-12:2%4]: waiting tasks
      active[id] = 1
      if (!match(id, /_\[/)) return
      array = substr(id, 1, RSTART)
      id = substr(id, RSTART + 2)
      sub(/[]%].*/, "", id)
      n = split(id, parts, ",")
      for (part = 1; part <= n; part++) {
        m = split(parts[part], bounds, /[-:]/)
        step = m > 2 ? bounds[3] : 1
        for (task = bounds[1] + 0; task <= bounds[m > 1 ? 2 : 1] + 0; task += step) active[array task] = 1
      }
    }
    $1 == "=" { ids = 1; next }
    !ids { sub(/\+[0-9]+$/, "", $1); if ($2 !~ ended) mark($1); next }
    !($1 in active) {
      line = line sep $1; sep = ","
      if (++n == per_call) { print line; line = sep = ""; n = 0 }
    }
    END { if (n) print line }')
  for am_chunk in $am_chunks; do
    am_rows=$(am_sacct -X -n -P "--delimiter=|$am_mark|" -j "$am_chunk" -o "$am_format" 2>&1)
    am_status=$?
    case $am_rows in
      *"$am_mark"*) printf '%s\n' "$am_rows" | sed -e "/|$am_mark|/!{s/^/a /;b" -e '}' -e "s/|$am_mark|/|/g" -e 's/^/A /' ;;
      *) printf '%s\n' "$am_rows" | sed 's/^/A /' ;;
    esac
    printf 'accounting_status %s\n' "$am_status"
    case $am_status$am_rows in
      [!0]* | *'accounting storage is disabled'*) am_controller "$am_chunk" "$am_calls" ;;
    esac
  done
}

# am_one_liners PATH…; first line of each file that exists. The shell reads byte by byte: of files that are too large for
# what they should be (a job has written there) nothing is read.
am_one_liners() {
  am_large=$(for am_file; do printf '%s%s\0' "$am_root" "$am_file"; done |
    xargs -0 -r sh -c 'exec find -H "$@" -maxdepth 0 -size +16' find 2>/dev/null)
  am_index=0
  for am_file; do
    am_file=$am_root$am_file
    am_read=yes
    case $am_newline$am_large$am_newline in *"$am_newline$am_file$am_newline"*) am_read=no ;; esac
    if [ $am_read = yes ] && [ -f "$am_file" ]; then
      am_line=
      read -r am_line <"$am_file"
      printf 'L %s %s\n' "$am_index" "$am_line"
    fi
    am_index=$((am_index + 1))
  done
}

# am_iterations [FROM PATH]…; the iter_* and global_step* directories: those of iteration FROM and later with NUL after
# each, the names of the others as N lines on descriptor 4. To list files is what costs a busy file system.
am_iterations() {
  while [ $# -gt 0 ]; do
    for am_path in "$am_root$2"/iter_*/ "$am_root$2"/global_step*/; do
      [ -d "$am_path" ] || continue
      am_path=${am_path%/}
      am_number=${am_path##*/}
      am_number=${am_number#iter_}
      am_number=${am_number#global_step}
      while [ "${am_number#0}" != "$am_number" ]; do am_number=${am_number#0}; done
      # a job gives its directories any name
      case $am_number in
        *[!A-Za-z0-9._-]* | ????????????????*) continue ;;
        *[!0-9]*) am_number=$1 ;;
      esac
      if [ "${am_number:-0}" -ge "$1" ]; then
        printf '%s\0' "$am_path"
      else
        printf 'N %s\n' "$am_path" >&4
      fi
    done
    shift 2
  done
}

# am_checkpoints [FROM PATH]…; directory lines, each followed by its files (two levels deep: mp_rank_00/…), and how each
# of the three parts has ended: with one that was killed, checkpoints would seem to be gone. A line break in a file's name
# becomes "?". Of one folder as many files are told as no checkpoint has: a job that writes more spoils its own list alone.
am_checkpoints() {
  {
    am_files=$(
      { am_iterations "$@" 4>&3 && printf 'listed 0\n' >&3; } | {
        xargs -0 -r sh -c 'exec find -H "$@" -maxdepth 2 -printf "%H\t%y\t%s\t%P\0"' find 2>/dev/null
        printf 'listed %s\n' "$?" >&3
      } | tr '\n\000' '?\n' | awk -F'\t' -v most=500000 '
        $1 != last { last = $1; print "D " $1; folder = $1; sub(/\/[^\/]*$/, "", folder) }
        $2 != "d" && NF >= 4 && told[folder]++ < most {
          name = substr($0, length($1 $2 $3) + 4)
          print "C " $3 " " name
        }'
    )
    am_listed=$?
  } 3>&1
  printf '%s\nlisted %s\n' "$am_files" "$am_listed"
}

am_checks() { # PATH…; the index of each that exists
  am_index=0
  for am_file; do
    [ -e "$am_root$am_file" ] && printf 'E %s\n' "$am_index"
    am_index=$((am_index + 1))
  done
}

# am_globs SECONDS PATTERN…; the paths that each pattern finds. Each is expanded in a shell of its own, all at once: one that
# goes through a whole file system is ended, and then it alone has no "g" line.
am_globs() {
  am_seconds=$1
  shift
  am_index=0
  am_answers=$(mktemp -d) || return 0
  export am_newline am_index
  am_body='
    case $am_file in *"$am_newline"*) continue ;; esac
    [ -e "$am_file" ] && printf "G %s %s\n" "$am_index" "$am_file"
    am_told=$((am_told + 1))
    [ "$am_told" -lt 10000 ] || break
  done
  printf "g %s\n" "$am_index"'
  for am_text; do
    timeout "$am_seconds" sh -c "ulimit -v 1000000; am_told=0; for am_file in $am_text; do $am_body" \
      </dev/null >"$am_answers/$am_index" 2>/dev/null &
    am_index=$((am_index + 1))
  done
  wait
  cat "$am_answers"/*
  rm -rf "$am_answers"
}

# am_commands SECONDS TEXT…; runs all at once: exit status and the beginning of what each prints
am_commands() {
  am_seconds=$1
  shift
  am_index=0
  am_answers=$(mktemp -d) || return 0
  for am_text; do
    (
      timeout "$am_seconds" bash -c "$am_text" </dev/null >"$am_answers/$am_index.out" 2>/dev/null
      printf 'R %s %s ' "$am_index" "$?"
      head -c 4096 "$am_answers/$am_index.out" | base64 | tr -d '\n'
      printf '\n'
    ) >"$am_answers/$am_index.line" &
    am_index=$((am_index + 1))
  done
  wait
  cat "$am_answers"/*.line
  rm -rf "$am_answers"
}

# am_streams BYTES_PER_FILE BYTES_IN_ALL SECONDS_PER_FILE SLOW_FILES; am_stream_list prints OFFSET<tab>PATH lines
# One stat finds the sizes of all, which are told first; only files with news cost processes of their own. After
# SLOW_FILES that did not come in time, the others have their turn in the next poll.
am_streams() {
  am_sizes=$({
    am_stream_list | awk -F'\t' '{ print ENVIRON["am_root"] $2 }' | tr '\n' '\0' |
      xargs -0 -r stat -L -c '%s|%n' 2>/dev/null
    printf '=\n'
    am_stream_list
  } | awk -v cap="$1" -v total="$2" '
    $0 == "=" { list = 1; next }
    !list { cut = index($0, "|"); size[substr($0, cut + 1)] = substr($0, 1, cut - 1); next }
    {
      cut = index($0, "\t")
      offset = substr($0, 1, cut - 1)
      path = ENVIRON["am_root"] substr($0, cut + 1)
      at = n++
      if (!(path in size)) next
      want = size[path] - offset
      if (want < 0) want = 0
      if (want > cap) want = cap
      if (want > total) want = total
      total -= want
      printf "%.0f\t%.0f\t%.0f\t%.0f\t%s\n", at, size[path], offset, want, path
    }')
  {
    printf '%s\n' "$am_sizes" | awk -F'\t' 'BEGIN { print "M", ENVIRON["am_mark"] } NF { print "F", $1, $2, $4 } END { print "=" }'
    printf '%s\n' "$am_sizes" | awk -F'\t' '$4 > 0' | {
      am_tab=$(printf '\t') am_slow=0
      while IFS=$am_tab read -r am_index am_size am_offset am_want am_file; do
        if [ -r "$am_file" ] && timeout "$3" dd "if=$am_file" bs=65536 iflag=skip_bytes,count_bytes \
          "skip=$am_offset" "count=$am_want" 2>/dev/null; then
          printf '\nE %s %s\n' "$am_index" "$am_mark"
        else
          [ $? -eq 124 ] && am_slow=$((am_slow + 1))
          printf '\nX %s %s\n' "$am_index" "$am_mark"
          [ "$am_slow" -lt "$4" ] || break
        fi
      done
    }
  } | base64 | sed 's/^/S /'
}
