"""Who looks after jobs on a simulated site: this project's policy, a person, a loop.

Imports ``site`` and ``supervision``.
``run`` and ``scenarios`` use it.
"""
