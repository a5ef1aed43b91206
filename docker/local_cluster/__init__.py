"""A complete Slurm cluster on one machine: munge, MariaDB, slurmdbd, slurmctld, several slurmd and an SSH server.

Run it as ``python3 docker/local_cluster <command>``. It uses only the standard library, because it must work before
the project is installed.
"""
