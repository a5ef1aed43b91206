"""What a sweep will do, put together from spec, Megatron and Slurm knowledge; imports no Airflow."""
