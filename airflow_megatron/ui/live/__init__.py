"""What the live pages show: the state of sweeps and points in Airflow, their plans, and what has been recorded of them.

``result_folders`` holds the reports, ``sweep_runs`` reads Airflow's database, ``planned_points`` stored plans,
``recorded`` defines what the store of results gives; ``sweep_list`` and ``point_table`` join them to JSON, which
``routes`` serves.
"""
