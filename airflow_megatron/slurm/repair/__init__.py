"""Repair of a run's checkpoints between two attempts: quarantine, rollback, fresh start, lost trackers.

Imports the other packages of ``slurm``.
Other packages use the script and the parser of each module.
"""
