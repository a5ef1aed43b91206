"""Commands for runs of sweeps: status, report, cancel, quickstart, ui.

Imports ``cli.plans``, ``cli.local``, ``cli.console``, ``dag_factory`` and the layers below.
``command_line`` lists them; ``cli.housekeeping`` and ``cli.setup`` use their options.
"""
