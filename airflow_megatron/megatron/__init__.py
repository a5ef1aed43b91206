"""What is known about Megatron itself: its arguments, its log lines and its checkpoint directories.

Nothing here imports Airflow or Megatron; every function works on text, bytes and listings that were fetched
by other layers.
"""
