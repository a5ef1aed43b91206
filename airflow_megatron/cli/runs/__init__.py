"""Commands on runs of sweeps: status, report, cancel, quickstart, ui.

Imports ``plans``, ``local``, ``console`` and the layers below.
``command_line`` names them.
"""
