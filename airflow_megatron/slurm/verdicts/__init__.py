"""From the observation of an attempt to its verdict: outcome, evidence in its log, whether it gets another attempt.

Imports ``states`` and ``remote``; runs nothing.
Others use ``verdict``, ``outcomes``, ``signatures`` and ``restarts``.
"""
