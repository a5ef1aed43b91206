#!/usr/bin/env bash
# Install the requirements of the local cluster, Airflow and the trainer; skip what is installed already.
#
#   docker/install.sh [LOCAL_DIR]     default: .local in the checkout, or $AIRFLOW_MEGATRON_LOCAL
set -euo pipefail
# pip would take packages there for installed ones, or install into a user's folder
unset PYTHONPATH PYTHONHOME
export PIP_USER=0

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
local_dir=${1:-${AIRFLOW_MEGATRON_LOCAL:-$root/.local}}

say() { printf '%s install: %s\n' "$(date +%T)" "$*"; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

apt_install() { # PACKAGE...
  say "installing $*"
  as_root apt-get update -q || say "apt-get update reported errors; continuing with the existing package lists"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "install: Python 3.11 or newer is needed; install it and run again with PYTHON=/path/to/python3" >&2
  return 1
}

# Python compiles a module when it is first imported. Processes that start together, such as the components of Airflow,
# would compile the same files. Two thirds of the files in the environment are never imported. Airflow writes to its home.
compile_imported() { # VENV_DIR
  local home
  home=$(mktemp -d)
  AIRFLOW_HOME=$home PYTHONDONTWRITEBYTECODE='' "$1/bin/python" -c 'import airflow_megatron.airflow_commands.preloaded_command
import airflow.api_fastapi.app, airflow.api_fastapi.core_api.routes.public, airflow.api_fastapi.core_api.routes.ui
import airflow.executors.local_executor, airflow.jobs.dag_processor_job_runner, airflow.jobs.scheduler_job_runner
import airflow.jobs.triggerer_job_runner, airflow.utils.db, alembic.command, matplotlib.pyplot, scipy.optimize' >/dev/null 2>&1 || true
  rm -rf "$home"
}

# The stamp is written last, so that an incomplete virtual environment is created again.
airflow_environment() {
  local venv=$local_dir/venv-airflow stamp
  stamp=$(cat "$root/requirements.lock" "$root/pyproject.toml" | sha256sum | cut -d' ' -f1)-$root
  if [ "$(cat "$venv/.installed" 2>/dev/null)" = "$stamp" ]; then
    # restore the scripts of the page if they are missing in the checkout; nothing else needs them
    "$venv/bin/python" "$root/hatch_build.py" || say "the web page shows no curves until 'python hatch_build.py' can fetch its scripts"
    say "Airflow environment is ready: $venv"
    return
  fi
  say "creating the Airflow environment: $venv"
  rm -f "$venv/.installed"
  [ -x "$venv/bin/python" ] || "$python" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes \
    -r "$root/requirements.lock"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --editable "$root"
  compile_imported "$venv"
  printf '%s\n' "$stamp" >"$venv/.installed"
}

# make clean deletes the folder with all its content; a checkout of Megatron-LM may be there before the installation
own_folder() {
  local other
  [ "$local_dir" = "$root/.local" ] || [ -d "$local_dir/venv-airflow" ] || [ ! -e "$local_dir" ] && return
  other=$(find "$local_dir" -mindepth 1 -maxdepth 1 ! -name Megatron-LM -printf '%f' -quit)
  [ -n "$other" ] || return 0
  echo "install: $local_dir has other files, such as $other; use a folder that is new or empty, for example AIRFLOW_MEGATRON_LOCAL=${local_dir%/}/airflow-megatron" >&2
  return 1
}

python=$(find_python)
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  apt_install python3-venv
fi
# without apt-get, the trainer's installer says later what it needs
if ! PYTHON=$python "$root/Megatron-LM/install.sh" --check-compiler 2>/dev/null && command -v apt-get >/dev/null; then
  apt_install g++ python3-dev
fi
own_folder
"$python" "$root/docker/local_cluster" install --dir "$local_dir/cluster"
mkdir -p "$local_dir"
if [ -O "$local_dir" ]; then chmod go= "$local_dir"; fi # it will contain keys and passwords
# The two environments are created in parallel: each uses one core. The second one runs in its own process group, so that
# it can be stopped when this script is interrupted.
set -m
PYTHON=$python "$root/Megatron-LM/install.sh" "$local_dir/venv-trainer" &
trainer=$!
set +m
trap 'kill -- "-$trainer" 2>/dev/null || true' EXIT
airflow_environment
if ! wait "$trainer"; then
  say "the trainer's environment could not be created: $local_dir/venv-trainer" >&2
  exit 1
fi
trap - EXIT
# Otherwise the components of Airflow, which start together, and the first jobs would each compile the same files. A
# checkout that cannot be written to runs without.
"$local_dir/venv-airflow/bin/python" -m compileall -q "$root"/{airflow_megatron,dags,docker,plugins} >/dev/null || true
"$local_dir/venv-trainer/bin/python" -m compileall -q "$root/Megatron-LM" >/dev/null || true
say "installation is complete"
