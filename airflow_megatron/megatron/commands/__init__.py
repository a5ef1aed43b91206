"""The command line of each kind of job, for each trainer.

Imports ``arguments``, ``rules`` and ``spec``.
Others use ``commands`` and ``changed_command``.
"""
