"""The interface of trackers (W&B, MLflow, trackio, …), their registry, and the connections that specs may use.

Imports ``documents``, ``registry`` and ``trust``.
``model`` has the key ``trackers:`` from it; ``results.trackers`` has the classes.
"""
