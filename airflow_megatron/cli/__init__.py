"""The command ``airflow-megatron``.

``command_line`` names the commands; rooms: ``console``, ``plans``, ``local``, ``runs``.
Nothing imports it.
"""
