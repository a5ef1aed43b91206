"""What a tracker is (W&B, MLflow, trackio, …), which are registered, and which connections specs may name for them.

Imports ``registry`` and ``trust``. ``model`` has the key ``trackers:`` from it; ``results.trackers`` holds the classes.
"""
