"""One poll loop per cluster: what to ask, how often, and the reading of the answer.

Imports ``verdicts``, ``states`` and ``remote``.
Others use ``poller`` and ``jobs_without_verdict``.
"""
