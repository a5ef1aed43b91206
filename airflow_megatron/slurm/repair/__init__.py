"""Putting a run's checkpoints in order between two attempts: quarantine, rollback, fresh start, lost trackers.

Imports the other rooms of ``slurm``.
Others use each module's script and its reader.
"""
