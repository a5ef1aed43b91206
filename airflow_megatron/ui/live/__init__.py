"""Data of the live pages: the state of sweeps and points in Airflow, their plans, and their recorded results.

``result_folders`` has the reports, ``sweep_runs`` reads Airflow's database, ``planned_points`` reads stored plans, and
``recorded`` defines the data from the store of results. ``sweep_list`` and ``point_table`` join them to JSON, which
``routes`` serves to users whom ``permissions`` lets see them.
Imports ``plan`` and the layers below. ``ui.app`` uses ``routes``.
"""
