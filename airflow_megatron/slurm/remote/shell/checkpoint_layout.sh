# shellcheck shell=bash
# Set the Lustre layout of a directory of checkpoints before it has files: files keep the layout that they begin with.

# Arguments: the directory, and the options of lfs setstripe. A failure is a warning: the job runs without the layout.
am_set_layout() {
  local folder=$1 answer
  shift
  if [ -e "$folder" ] || ! command -v lfs >/dev/null; then
    return 0
  fi
  if ! answer=$({ mkdir -p "$folder" && lfs setstripe "$@" "$folder"; } 2>&1 </dev/null); then
    echo "airflow-megatron: warning: lfs setstripe $* $folder: ${answer:-failed}" >&2
  fi
}
