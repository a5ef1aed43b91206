# shellcheck shell=sh
# Waits between two polls of poller.py.

# am_job_ends SECONDS PATH…
# Prints the index of the first PATH that exists, as soon as there is one; nothing after SECONDS.
am_job_ends() {
  am_left=$(($1 * 2))
  shift
  while [ "$am_left" -gt 0 ]; do
    am_index=0
    for am_file; do
      if [ -e "$am_file" ]; then
        sleep 0.7 # Slurm notices the end just after the script has recorded it
        printf '%s\n' "$am_index"
        return
      fi
      am_index=$((am_index + 1))
    done
    am_left=$((am_left - 1))
    sleep 0.5
  done
}
