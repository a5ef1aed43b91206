"""Commands for the data of sweeps: archive and delete.

Imports ``runs``, ``plans`` and the layers below.
``command_line`` names them.
"""
