"""The command line of each kind of job, for each trainer.

Imports ``arguments``, ``rules``, ``trainers`` and ``spec``.
Other packages use ``commands`` and ``changed_command``; stage kinds extend ``trainer_stage``.
"""
