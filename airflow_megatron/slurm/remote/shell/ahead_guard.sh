# shellcheck shell=sh disable=SC2154,SC2034
# Included after job_guard.sh in the script of an attempt that was queued ahead. Variables: am_attempt_dir,
# am_stepped_back_status, am_settle_s, am_before (name of the previous stage), am_before_dir, am_before_first and
# am_before_last (its queued attempts), am_before_tracker and am_before_iteration (of a training, else empty), and the
# function am_before_outputs, which prints its required output files. No verdict on that stage may exist yet.
# am_look sets am_found: finished, open (missing files may still become visible) or over; and am_why.

am_newest_attempt() { # sets am_newest; 0 if there is none
  am_newest=0
  for am_path in "$am_before_dir"/*/; do
    am_path=${am_path%/}
    case ${am_path##*/} in '' | *[!0-9]*) continue ;; esac
    if [ "${am_path##*/}" -gt "$am_newest" ]; then am_newest=${am_path##*/}; fi
  done
}

am_outcome_in() { # VERDICT_FILE; sets am_outcome, and am_judged (the number of its attempt); empty without the file
  am_outcome='' am_judged=''
  [ -s "$1" ] || return 0
  am_outcome=$(sed -n 's/^  "outcome": "\([a-z_]*\)".*/\1/p' "$1") || true
  am_judged=$(sed -n 's/^  "attempt": \([0-9]*\).*/\1/p' "$1") || true
}

am_has_complete_checkpoint() { # DIRECTORY; by the rules of completeness.py that need only file names; fails for other formats
  [ -d "$1" ] || return 1
  (cd "$1" && find . -type f -exec stat -c '%s %n' {} +) 2>/dev/null | awk '
    { size = $1; sub(/^[0-9]+ \.\//, ""); file = $0; name = file; sub(/^.*\//, "", name) }
    name ~ /\.(tmp|partial)$/ || name ~ /\.distcp\./ || name == ".zarray" { unfinished = 1 }
    file == ".metadata" || file == "metadata.json" || file == "common.pt" { there[file] = 1; if (size == 0) empty = 1 }
    file ~ /^__[0-9]+_[0-9]+\.distcp$/ { shards++; if (size == 0) empty = 1 }
    file ~ /^mp_rank_[0-9]+(_[0-9]+)*\/[^\/]+\.pt$/ {
      if (size == 0) empty = 1
      split(file, parts, "/")
      if (!(parts[1] in ranks)) { ranks[parts[1]]; folders++; count = split(substr(parts[1], 9), numbers, "_")
        for (i = 1; i <= count; i++) if (numbers[i] + 1 > most[i] + 0) most[i] = numbers[i] + 1 }
      if (parts[2] == "model_optim_rng.pt" || parts[2] == "model_rng.pt") models++
      if (parts[2] == "distrib_optim.pt") optimizers++
    }
    END {
      if (unfinished || empty) exit 1
      if (folders && !there["metadata.json"]) {
        grid = 1
        for (i in most) grid *= most[i]
        exit !(models == folders && folders == grid && (!optimizers || optimizers == folders))
      }
      if (!shards || !there[".metadata"]) exit 1
      exit !(there["metadata.json"] || !there["common.pt"])
    }'
}

am_look() {
  am_found=over
  am_newest_attempt
  if [ "$am_newest" -gt "$am_before_last" ]; then
    am_why="its attempt $am_newest was submitted after this job"
    return
  fi
  am_outcome_in "$am_before_dir/$am_verdict_file"
  if [ -n "$am_outcome" ] && [ "${am_judged:-0}" -ge "$am_before_first" ]; then
    if [ "$am_outcome" = finished ]; then am_found=finished; fi
    am_why="it was judged: $am_outcome"
    return
  fi
  am_path=$am_before_dir/$am_newest
  am_outcome_in "$am_path/$am_verdict_file"
  if [ -n "$am_outcome" ] && [ "$am_outcome" != finished ]; then
    am_why="its attempt $am_newest was judged: $am_outcome"
    return
  fi
  # one that is older than this job is of an earlier run; the run of this job uses the attempt again
  if [ -e "$am_path/$am_withdrawn_file" ] &&
    [ -z "$(find "$am_attempt_dir/created" -newer "$am_path/$am_withdrawn_file" 2>/dev/null)" ]; then
    am_why="its attempt $am_newest was withdrawn"
    return
  fi
  am_exit_record "$am_path"
  if [ -s "$am_exit_path" ] && ! grep -qs '^{"exit_code": 0, "signal": null, ' "$am_exit_path"; then
    am_why="its attempt $am_newest did not end well"
    return
  fi
  am_found=open
  if [ "$am_newest" -lt "$am_before_first" ] || [ ! -s "$am_exit_path" ]; then
    am_why="there is no record of its end"
    return
  fi
  if [ -n "$am_before_tracker" ]; then
    am_reached=$(am_tracked_iteration "$am_before_tracker")
    if [ "$am_reached" != "$am_before_iteration" ]; then
      am_why="its newest checkpoint is of iteration ${am_reached:-0} of $am_before_iteration"
      return
    fi
    am_path=$(printf '%s/iter_%07d' "${am_before_tracker%/*}" "$am_before_iteration")
    if ! am_has_complete_checkpoint "$am_path"; then
      am_why="$am_path is not a complete checkpoint"
      return
    fi
  fi
  am_missing=$(am_before_outputs | while IFS= read -r am_path; do
    if [ ! -e "$am_path" ]; then
      printf '%s\n' "$am_path"
      break
    fi
  done)
  if [ -n "$am_missing" ]; then
    am_why="$am_missing is missing"
    return
  fi
  am_found=finished
}

am_decide() { # WORD; sets am_decision to the first decision, which may be an earlier one
  ln -s "decided.$1" "$am_attempt_dir/$am_decision_file" 2>/dev/null || true
  am_decision=$(readlink "$am_attempt_dir/$am_decision_file") || am_decision=
}

am_decision=$(readlink "$am_attempt_dir/$am_decision_file") || am_decision=
if [ -z "$am_decision" ]; then
  am_until=$(($(date +%s) + am_settle_s))
  while :; do
    am_look
    if [ "$am_found" != open ] || [ "$(date +%s)" -ge "$am_until" ] || [ -L "$am_attempt_dir/$am_decision_file" ]; then break; fi
    sleep 1
  done
  if [ "$am_found" = finished ]; then am_decide start; else am_decide back; fi
fi
case $am_decision in
  decided.start | decided.due) ;;
  *)
    echo "airflow-megatron: $am_before has not finished${am_why:+: $am_why}; this job steps back"
    exit "$am_stepped_back_status"
    ;;
esac
