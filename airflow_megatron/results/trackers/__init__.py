"""Trackers (W&B, MLflow, trackio) and the records that they receive from the store.

Its modules: ``tracked_records`` (rows of the store as records of one run for each training), ``pushing``, and one
module for each tracker. Imports ``store``, ``readings`` and ``spec``; no Airflow. The operator that pushes and the
command line use ``pushing``.
"""
