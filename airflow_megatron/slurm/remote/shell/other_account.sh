# shellcheck shell=sh disable=SC2154,SC2034
# Included by the scripts that read the records of attempts, which are private to the account that submitted them.

# am_other_account ATTEMPT_DIR; succeeds, and sets am_account, if this account cannot read the submission's records
am_other_account() {
  am_account=
  if [ ! -x "$1" ]; then
    am_account=$(stat -c %U "$1")
    return
  fi
  for am_path in "$1/$am_job_id_file" "$1/created" "$1"/claim.*/owner; do
    if [ -e "$am_path" ] && [ ! -r "$am_path" ]; then
      am_account=$(stat -c %U "$am_path")
      return
    fi
  done
  return 1
}
