"""The command ``airflow-megatron``.

Its packages, lowest first: ``console``, ``plans`` and ``local``, ``runs``, ``housekeeping`` and ``setup``.
``command_line`` lists the commands. No other package imports this one.
"""
