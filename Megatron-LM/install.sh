#!/bin/sh
# Create the environment of training, conversion and evaluation jobs: install.sh VENV_DIR [PIP_ARGUMENT...]
#
# PYTHON is the interpreter (default python3; 3.11 or newer). Further arguments are passed to pip, for example the index
# of a torch build for this machine. If the environment is up to date, the script does nothing.
# install.sh --check-compiler only checks whether PYTHON needs a compiler that is missing; then the exit status is 1.
set -eu
# pip would take packages there for installed ones, or install into a user's folder
unset PYTHONPATH PYTHONHOME
export PIP_USER=0

if [ $# -lt 1 ]; then
    echo "usage: install.sh VENV_DIR [PIP_ARGUMENT...]" >&2
    exit 2
fi
python=${PYTHON:-python3}

# megatron-core has no wheel for newer versions; without a compiler, pip leaves out its module that indexes data
check_compiler() {
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 14))'; then return; fi
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    if command -v c++ >/dev/null && [ -e "$headers/Python.h" ]; then return; fi
    echo "install.sh: $("$python" --version) needs a C++ compiler and its headers, because megatron-core is compiled:" \
        "install them (Debian and Ubuntu: apt-get install g++ python3-dev), or set PYTHON to an older one from 3.11" >&2
    exit 1
}

if [ "$1" = --check-compiler ]; then
    check_compiler
    exit
fi
venv=$1
shift
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
lock=$here/requirements.lock
torch=torch==2.13.0
stamp=$venv/.requirements.sha256
wanted=$(cat "$lock" "$0" | sha256sum)

if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    echo "trainer environment $venv is up to date"
    exit 0
fi

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "install.sh: $python is not Python 3.11 or newer; set PYTHON to one that is" >&2
    exit 1
fi
check_compiler
if ! [ -x "$venv/bin/python" ]; then
    echo "making the environment $venv"
    if ! "$python" -m venv "$venv"; then
        echo "install.sh: could not make $venv; on Debian and Ubuntu the package python3-venv is needed" >&2
        exit 1
    fi
fi
echo "installing torch, megatron-core, transformers and lm-evaluation-harness (some minutes the first time)"
rm -f "$stamp"
# torch has many builds with different libraries, so it is not in the lock file: the caller's index selects the build
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$torch" "$@"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes \
    --requirement "$lock"
# Python imports this module when it starts
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp "$here/numpy_product.py" "$here/numpy_product.pth" "$site/"
# pip would compile all files; this compiles those that jobs import
if ! found=$(PYTHONDONTWRITEBYTECODE='' "$venv/bin/python" -W ignore "$here/check_environment.py" 2>&1); then
    printf 'install.sh: the environment is incomplete; delete %s and run again:\n%s\n' "$venv" "$found" >&2
    exit 1
fi
printf '%s\n' "$found" | grep '^torch '
echo "$wanted" > "$stamp"
echo "trainer environment $venv is ready"
