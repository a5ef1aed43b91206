# shellcheck shell=sh disable=SC2154,SC2034
# Start of every script of framing.py: a known shell and environment, independent of the account's profile.

set +euCfx
unset CDPATH
IFS=$(printf ' \t\n_')
IFS=${IFS%_}
am_site_locale=${LC_ALL-}
LC_ALL=C
export LC_ALL
# Site profiles export options of Slurm's commands (SBATCH_ACCOUNT, SQUEUE_FORMAT …), which override the options in
# scripts and job files. SLURM_CONF and SLURM_CLUSTERS select the cluster and are kept.
for am_name in $(env | sed -n 's/^\(S[A-Z]*_[A-Za-z0-9_]*\)=.*/\1/p'); do
  case $am_name in
    SBATCH_* | SQUEUE_* | SACCT_* | SCANCEL_* | SCONTROL_*) unset "$am_name" ;;
    SLURM_TIME_FORMAT | SLURM_BITSTR_LEN | SLURM_EXIT_ERROR | SLURM_HINT) unset "$am_name" ;;
  esac
done
