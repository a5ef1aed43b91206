# shellcheck shell=sh disable=SC2154,SC2034,SC2016,SC2089,SC2090
# The functions of poll.py's script; they use am_root (common prefix of all paths), am_squeue, am_sacct and
# am_own_name.
# Calls with the lists of ids and paths follow. The functions start no process per job, except for new log bytes.

am_newline='
'

# A job's name may contain line breaks followed by text that looks like another job's row. Each row therefore has a
# random mark that no name can contain; lines without it are printed as "q" and "a" (errors, and text after a line
# break). Output without any mark comes from a wrapper with its own format.
am_mark=am$$.$(date +%s%N)
export am_mark

am_new_folder() { # start-up files may set TMPDIR to a folder that only compute nodes or jobs have
  mktemp -d 2>/dev/null || TMPDIR=/tmp mktemp -d
}

# am_queue FORMAT; -t all: jobs that ended within MinJobAge show their final state. A "K" line has the id and the former
# name of a renamed job, from its comment. The later functions read the "Q" and "q" lines from the variable am_queue.
am_queue() {
  am_queue=$(am_squeue --me -h -t all -o "$am_mark|$1|$am_mark|%k" 2>&1)
  am_status=$?
  case $am_queue in
    *"$am_mark"*) am_unmarked=q ;;
    *) am_unmarked=Q ;;
  esac
  am_queue=$(printf '%s\n' "$am_queue" | awk -v mark="$am_mark" -v unmarked="$am_unmarked" "$am_own_name"'
    {
      cut = index($0, "|" mark "|")
      row = cut ? substr($0, 1, cut - 1) : $0
    }
    index(row, mark "|") != 1 { print unmarked " " row; next }
    {
      row = substr(row, length(mark) + 2)
      own = cut ? own_name(substr($0, cut + length(mark) + 2)) : ""
      if (own != "" && substr(row, length(row) - length(own)) != "|" own)
        print "K " substr(row, 1, index(row, "|") - 1) " " own
      print "Q " row
    }')
  printf '%s\nqueue_status %s\n' "$am_queue" "$am_status"
}

# am_controller ID,ID… CALLS; prints slurmctld's records of jobs that squeue lists as ended, for at most CALLS jobs. Jobs
# with a line break in their names are left out, because the output could belong to another job.
am_controller() {
  am_asked=$({
    printf '%s\n=\n' "$am_queue"
    printf '%s\n' "$1" | tr ',' '\n'
  } | awk -F'|' -v most="$2" -v ended="^($am_ended)" '
    $1 == "=" { ids = 1; next }
    !ids && /^Q / { id = substr($1, 3); sub(/\+0$/, "", id); if ($2 ~ ended) over[id] = 1; next }
    !ids { if (/^q / && id != "") broken[id]; next }
    ($1 in over) && !($1 in broken) && n++ < most { print "show job " $1 }')
  [ -n "$am_asked" ] || return
  printf '%s\n' "$am_asked" | am_scontrol -o 2>&1 | sed 's/^/J /'
}

# am_accounting FORMAT IDS_PER_CALL ENDED_STATES CONTROLLER_CALLS ID…
# Queries only ids that squeue does not list as active, and none if squeue failed, because the last record of a requeued
# job looks like its end.
am_accounting() {
  [ "$am_status" -eq 0 ] || return
  am_format=$1 am_per_call=$2 am_ended=$3 am_calls=$4
  shift 4
  am_chunks=$({
    printf '%s\n' "$@"
    printf '=\n%s\n' "$am_queue"
  } | awk -F'|' -v per_call="$am_per_call" -v ended="^($am_ended)" '
    function mark(id,   array, parts, n, part, bounds, m, step, task) { # 7_[1-3,8-12:2%4]: waiting tasks
      active[id] = 1
      if (!match(id, /_\[/) || !(substr(id, 1, RSTART - 1) in arrays)) return
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
    !rows && $1 == "=" { rows = 1; next }
    !rows { ids[++asked] = $1; sub(/_.*/, "", $1); arrays[$1]; next }
    /^Q / { id = substr($1, 3); sub(/\+[0-9]+$/, "", id); if ($2 !~ ended) mark(id) }
    END {
      for (i = 1; i <= asked; i++) if (!(ids[i] in active)) {
        line = line sep ids[i]; sep = ","
        if (++n == per_call) { print line; line = sep = ""; n = 0 }
      }
      if (n) print line
    }')
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

# am_one_liners PATH…; prints the first line of each existing file. The shell reads byte by byte, so files that are too
# large (written by a job) are not read. A job may put a pipe in place of a file at any moment, which would block the
# shell: "one_liners_cut" is printed if the files after the last line were not read in 10 s.
am_one_liners() {
  am_large=$(for am_file; do printf '%s%s\0' "$am_root" "$am_file"; done |
    xargs -0 -r sh -c 'exec find -H "$@" -maxdepth 0 -size +16' find 2>/dev/null)
  am_first_lines "$@" &
  am_reader=$!
  {
    am_sleep=
    trap 'kill $am_sleep; exit' TERM
    sleep 10 &
    am_sleep=$!
    wait $am_sleep && kill -9 $am_reader
  } >/dev/null 2>&1 &
  am_watch=$!
  wait $am_reader 2>/dev/null || printf 'one_liners_cut\n'
  kill $am_watch 2>/dev/null
}

am_first_lines() {
  am_index=0
  for am_file; do
    am_file=$am_root$am_file
    am_read=yes
    case $am_newline$am_large$am_newline in *"$am_newline$am_file$am_newline"*) am_read=no ;; esac
    if [ $am_read = yes ] && [ -f "$am_file" ]; then
      case $am_file in
        */"$am_exit_file")
          am_exit_record "${am_file%/*}"
          am_file=$am_exit_path
          ;;
      esac
      am_line=
      read -r am_line <"$am_file"
      printf 'L %s %s\n' "$am_index" "$am_line"
    fi
    am_index=$((am_index + 1))
  done
  return 0
}

# Script of a separate shell with arguments FROM PATH…: prints as N the iter_* and global_step* directories before
# iteration FROM, and as D the others, each followed by its files (two levels deep: mp_rank_00/…), whose listing is slow
# on a busy file system. Then it prints the exit status of each of the three parts, because checkpoints would appear to
# be missing if a part was killed. A line break in a file name becomes "?". A checkpoint directory with too many bytes
# of names, which a job may give to its files, gets a "T" line.
am_find='exec find -H "$@" -maxdepth 2 -printf "%H\t%y\t%s\t%P\0"'
am_files='
  $1 != last {
    last = $1
    folder = $1
    sub(/\/[^\/]*$/, "", folder)
    if (bytes[folder] <= ENVIRON["am_most"]) print "D " $1
  }
  $2 != "d" && NF >= 4 && bytes[folder] <= ENVIRON["am_most"] {
    bytes[folder] += length($0) - length($1)
    if (bytes[folder] > ENVIRON["am_most"]) print "T " folder
    else print "C " $3 " " substr($0, length($1 $2 $3) + 4)
  }'
am_folders='
  exec 3>&1
  am_found=$(
    {
      while [ $# -gt 0 ]; do
        for am_path in "$am_root$2"/iter_*/ "$am_root$2"/global_step*/; do
          [ -d "$am_path" ] || continue
          am_path=${am_path%/}
          am_number=${am_path##*/}
          am_number=${am_number#iter_}
          am_number=${am_number#global_step}
          while [ "${am_number#0}" != "$am_number" ]; do am_number=${am_number#0}; done
          # a job may give its directories any name
          case $am_number in
            *[!A-Za-z0-9._-]* | ????????????????*) continue ;;
            *[!0-9]*) am_number=$1 ;;
          esac
          if [ "${am_number:-0}" -ge "$1" ]; then
            printf "%s\0" "$am_path"
          else
            printf "N %s\n" "$am_path" >&3
          fi
        done
        shift 2
      done
      printf "listed %s\n" $? >&3
    } | {
      xargs -0 -r sh -c "$am_find" find 2>/dev/null
      printf "listed %s\n" $? >&3
    } | tr "\n\000" "?\n" | awk -F"\t" "$am_files"
  )
  am_listed=$?
  printf "%s\nlisted %s\n" "$am_found" "$am_listed"'
# Lists some of the directories into a separate file, within the time limit.
am_group='
  am_part=$(mktemp "$am_answers/part.XXXXXX") || exit
  timeout "$am_seconds" sh -c "$am_folders" sh "$@" >"$am_part"
  am_status=$?
  [ $am_status -ne 124 ] || { printf "%s\0" "$@" >>"$am_part.left" && : >"$am_part"; }
  case $am_status in 0 | 124) ;; *) printf "listed %s\n" $am_status >>"$am_part" ;; esac'

# am_checkpoints SECONDS BYTES BYTES_IN_ALL [FROM PATH]…; BYTES limits the list of one directory. If all lists together
# are longer than BYTES_IN_ALL, the longest ones become "T" lines.
am_checkpoints() {
  am_all=$1 am_most=$2 am_most_in_all=$3
  shift 3
  export am_find am_files am_folders am_answers am_seconds am_most
  am_found=$(am_listed_checkpoints "$@")
  {
    printf '%s\n' "$am_found"
    printf '=\n'
    printf '%s\n' "$am_found"
  } | awk -v most="$am_most" -v most_in_all="$am_most_in_all" '
    function take(place) { folder = place; sub(/\/[^\/]*$/, "", folder) }
    $0 == "=" && !again {
      again = 1
      for (; most >= 1; most /= 2) {
        sum = 0
        for (one in bytes) if (bytes[one] <= most) sum += bytes[one]
        if (sum <= most_in_all) break
      }
      for (one in bytes) if (bytes[one] > most) print "T " one
      next
    }
    /^D / { take(substr($0, 3)) }
    !again { if (/^[DC] /) bytes[folder] += length($0) + 1; next }
    /^[DC] / && bytes[folder] > most { next }
    { print }'
}

# am_listed_checkpoints [FROM PATH]…; lists all directories at once within a fifth of the time. If that fails, it lists
# groups in parallel, and then each directory of a slow group separately. A directory with millions of files gets a "T"
# line and does not delay the others.
am_listed_checkpoints() {
  am_seconds=$(((am_all + 4) / 5))
  am_list=$(printf '%s\0' "$@" | timeout $am_seconds xargs -0 -r -n 4000 sh -c "$am_folders" sh)
  am_listed=$?
  if [ $am_listed -ne 124 ]; then
    printf '%s\nlisted %s\n' "$am_list" $am_listed
    return
  fi
  am_answers=$(am_new_folder) || {
    printf 'listed 1\n'
    return
  }
  printf '%s\0' "$@" >"$am_answers/all.left"
  am_grouped 32 8
  am_seconds=$((am_all - 2 * am_seconds))
  am_grouped 1 64
  cat "$am_answers"/*.left 2>/dev/null | tr '\n\000' '?\n' | while read -r am_number && IFS= read -r am_path; do
    printf 'T %s%s\n' "$am_root" "$am_path"
  done
  rm -rf "$am_answers"
}

am_grouped() { # FOLDERS PROCESSES
  for am_left in "$am_answers"/*.left; do
    [ ! -e "$am_left" ] || mv "$am_left" "$am_left.now"
  done
  cat "$am_answers"/*.now 2>/dev/null | xargs -0 -r -n $((2 * $1)) -P "$2" sh -c "$am_group" sh
  printf 'listed %s\n' $?
  rm -f "$am_answers"/*.now
  cat "$am_answers"/part.?????? 2>/dev/null
  rm -f "$am_answers"/part.??????
}

am_checks() { # PATH…; the index of each that exists
  am_index=0
  for am_file; do
    [ -e "$am_root$am_file" ] && printf 'E %s\n' "$am_index"
    am_index=$((am_index + 1))
  done
}

# am_globs SECONDS BYTES BYTES_IN_ALL PATTERN…; prints the paths that match each pattern. Separate shells expand the
# patterns in parallel. A pattern that exceeds the time limit (it may cover a whole file system), or whose paths have
# more than BYTES, has no "g" line; of all together, those with the fewest bytes are printed.
am_globs() {
  am_seconds=$1 am_blocks=$(($2 / 512)) am_most_in_all=$3
  shift 3
  am_index=0
  am_answers=$(am_new_folder) || return 0
  export am_newline am_index
  am_body='
    case $am_file in *"$am_newline"*) continue ;; esac
    [ -e "$am_file" ] && printf "G %s %s\n" "$am_index" "$am_file"
    am_told=$((am_told + 1))
    [ "$am_told" -lt 10000 ] || break
  done
  printf "g %s\n" "$am_index"'
  for am_text; do
    {
      timeout "$am_seconds" sh -c "ulimit -v 1000000; ulimit -f $am_blocks; ulimit -c 0; am_told=0
        for am_file in $am_text; do $am_body" </dev/null >"$am_answers/$am_index.part" &&
        mv "$am_answers/$am_index.part" "$am_answers/$am_index"
    } 2>/dev/null &
    am_index=$((am_index + 1))
  done
  wait
  (
    cd "$am_answers" || exit
    find . -type f ! -name '*.part' -printf '%s %f\n' | sort -n |
      awk -v most="$am_most_in_all" '(sum += $1) <= most { print $2 }' | xargs -r cat
  )
  rm -rf "$am_answers"
}

# am_commands SECONDS TEXT…; runs the commands in parallel and prints the exit status and first output bytes of each
am_commands() {
  am_seconds=$1
  shift
  am_index=0
  am_answers=$(am_new_folder) || return 0
  for am_text; do
    (
      timeout -k 2 "$am_seconds" bash -c "$am_text" </dev/null >"$am_answers/$am_index.out" 2>/dev/null
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
# One stat call returns all sizes, which are printed first; only files with new bytes need further processes. After
# SLOW_FILES files that exceeded the time limit, the next poll reads the others.
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
