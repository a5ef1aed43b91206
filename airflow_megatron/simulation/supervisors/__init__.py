"""Supervisors of jobs on a simulated site: this project's policy, a person, a relaunch loop.

Imports ``site``, ``supervision`` and the layers below.
``run`` and ``scenarios`` use it.
"""
