# shellcheck shell=sh disable=SC2154,SC2034
# The body of an array's job script (job_array.py). Variable: am_array_dir. Executes the script of the task's attempt.

am_task=$am_array_dir/tasks/$SLURM_ARRAY_TASK_ID
am_work_dir=
{ read -r am_attempt_dir && read -r am_work_dir; } <"$am_task/place"
if [ -z "$am_work_dir" ] || ! cd "$am_work_dir"; then
  echo "airflow-megatron: task $SLURM_ARRAY_TASK_ID of $am_array_dir cannot begin on $(uname -n)" >&2
  exit 73
fi
AIRFLOW_MEGATRON_ARRAY_TASK=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # job_guard.sh uses it as its job's id
export AIRFLOW_MEGATRON_ARRAY_TASK
read -r am_interpreter <"$am_attempt_dir/$am_script_file"
# shellcheck disable=SC2086 # as the kernel does: the program and its argument
exec ${am_interpreter#\#!} "$am_attempt_dir/$am_script_file"
