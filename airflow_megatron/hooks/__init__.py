"""Airflow hooks: connections to login nodes and trackers, and how a login is kept, shared and renewed.

Imports ``slurm``, ``spec`` and the other layers that know no Airflow but ``simulation``.
Operators, triggers, sensors and ``cli`` use ``slurm``; the connections to trackers are in ``tracker_access``.
"""
