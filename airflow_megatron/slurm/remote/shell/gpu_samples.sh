# shellcheck shell=bash disable=SC2154,SC2016
# Included by gpu_samples.py, after job_guard.sh, in the script of a training with GPU samples. Variable: am_attempt_dir.

am_sampler=

am_sample_gpus() { # NODES SECONDS COMMAND; on each node, until the training has ended
  mkdir -p "$am_attempt_dir/$am_gpus_folder" || return 0
  am_sampling='
    asked="--query-gpu=index,memory.used,utilization.gpu,power.draw --format=csv,noheader,nounits"
    own=${CUDA_VISIBLE_DEVICES:+--id=$CUDA_VISIBLE_DEVICES}
    exec "$2" $asked --loop="$1" $own >"$0/$(uname -n).csv" 2>"$0/$(uname -n).err"'
  set -- "$1" bash -c "$am_sampling" "$am_attempt_dir/$am_gpus_folder" "$2" "$3"
  am_nodes=$1
  shift
  if [ "$am_nodes" -gt 1 ]; then set -- srun --overlap --nodes="$am_nodes" --ntasks-per-node=1 "$@"; fi
  "$@" 9>&- &
  am_sampler=$!
}

am_stop_sampling() { # keeps the exit status of the previous command
  am_status=$?
  if [ -n "$am_sampler" ]; then kill "$am_sampler" 2>/dev/null || true; fi
  wait "$am_sampler" 2>/dev/null || true
  return "$am_status"
}
