"""The page *Megatron sweeps* in Airflow's web UI."""
