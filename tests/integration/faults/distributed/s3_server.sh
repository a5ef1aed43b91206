#!/usr/bin/env bash
# Create the environment of the tests' S3 server: s3_server.sh FOLDER
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if ! cmp -s "$here/s3_requirements.txt" "$1/.installed"; then
  python3 -m venv --clear "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$here/s3_requirements.txt"
  cp "$here/s3_requirements.txt" "$1/.installed"
fi
