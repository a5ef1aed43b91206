# shellcheck shell=sh disable=SC2154,SC2034
# Begins every script of framing.py: a known shell and environment, whatever the account's profile did.

set +euCfx
unset CDPATH
IFS=$(printf ' \t\n_')
IFS=${IFS%_}
am_site_locale=${LC_ALL-}
LC_ALL=C
export LC_ALL
# Site profiles export options for Slurm's commands (SBATCH_ACCOUNT, SQUEUE_FORMAT …): they override what the scripts
# and job files say. SLURM_CONF and SLURM_CLUSTERS choose the cluster and stay.
for am_name in $(env | sed -n 's/^\(S[A-Z]*_[A-Za-z0-9_]*\)=.*/\1/p'); do
  case $am_name in
    SBATCH_* | SQUEUE_* | SACCT_* | SCANCEL_* | SCONTROL_*) unset "$am_name" ;;
    SLURM_TIME_FORMAT | SLURM_BITSTR_LEN | SLURM_EXIT_ERROR | SLURM_HINT) unset "$am_name" ;;
  esac
done
