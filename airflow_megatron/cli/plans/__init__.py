"""Commands for specs and plans: lint, plan, diff, render, build, import.

Imports ``cli.console``, ``dag_factory`` and the layers below.
``cli.runs`` and ``cli.housekeeping`` use ``spec_options``; ``command_line`` lists the commands.
"""
