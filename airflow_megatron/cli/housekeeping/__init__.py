"""Commands for the data of sweeps: archive and delete.

Imports ``cli.runs``, ``cli.plans``, ``dag_factory`` and the layers below.
``command_line`` lists them.
"""
