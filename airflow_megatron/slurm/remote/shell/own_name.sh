# shellcheck shell=sh disable=SC2034
# An awk function for rows of squeue: the name in the comment that submit.sh gives to a job, empty for other comments. A
# user may rename a job (scontrol update); its comment still says whose it is.

am_own_name='
  function own_name(comment) {
    if (!match(comment, /airflow-megatron:[A-Za-z0-9_-]+:[A-Za-z0-9._=+:@-]+/)) return ""
    comment = substr(comment, RSTART, RLENGTH)
    sub(/^[^:]*:[^:]*:/, "", comment)
    return comment
  }'
