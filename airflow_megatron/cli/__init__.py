"""The command ``airflow-megatron``."""
