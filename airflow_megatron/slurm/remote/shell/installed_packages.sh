# shellcheck shell=sh disable=SC2154
# Included by provenance.py. Variable: am_python. Runs on a node, and in the container of a job.

# Prints the packages of a Python, name==version, from directory names, because Python starts slowly on a shared disk.
am_packages_here() {
  am_prefix=$(command -v "$am_python") || return 0
  am_prefix=${am_prefix%/*}
  am_prefix=${am_prefix%/*}
  for am_one in "$am_prefix"/lib/python3*/site-packages "$am_prefix"/lib64/python3*/site-packages \
    "$am_prefix"/lib/python3/dist-packages "$am_prefix"/local/lib/python3*/dist-packages; do
    if [ -d "$am_one" ]; then ls "$am_one" 2>/dev/null || true; fi
  done |
    sed -n -e 's/-py3[0-9.]*\.egg-info$/.egg-info/' -e 's/^\([A-Za-z0-9._-]*\)-\([0-9A-Za-z.+!_]*\)\.\(dist\|egg\)-info$/\1==\2/p' |
    LC_ALL=C sort -u
}
