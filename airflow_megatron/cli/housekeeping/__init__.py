"""Commands on what sweeps leave behind: archive and delete.

Imports ``runs``, ``plans`` and the layers below.
``command_line`` names them.
"""
