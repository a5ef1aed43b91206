"""A complete Slurm cluster on one machine: munge, MariaDB, slurmdbd, slurmctld, several slurmd and an SSH server.

Run it as ``python3 docker/local_cluster <command>``.  Only the standard library is used, because it has to work
before anything of the project is installed.
"""
