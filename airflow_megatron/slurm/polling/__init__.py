"""One poll loop per cluster: the remote script, its parser, and the polling interval.

Imports ``verdicts``, ``states`` and ``remote``.
Others use ``poller`` and ``jobs_without_verdict``.
"""
