# shellcheck shell=bash
# Runs a command, and stops it while the file "hold" exists and a line of FILE matches PATTERN, so that it does not end
# before the test acts. SIGTERM is passed to the command, and removes "hold".
# Usage: held.sh FILE PATTERN COMMAND...
file=$1 pattern=$2
shift 2
"$@" &
trap 'rm -f hold; kill -CONT $!; kill -TERM $!' TERM
while kill -0 $! 2>/dev/null; do
    if [ -e hold ] && grep -qs -- "$pattern" "$file"; then kill -STOP $!; else kill -CONT $!; fi
    sleep 0.2
done
wait $!
