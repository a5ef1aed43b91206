"""Talking to Slurm: remote scripts, parsers of their answers, job states, verdicts and the shared poller.

Everything that runs on a login node is made here as text (pure functions) and read back here (pure parsers);
input and output happen only behind :class:`~airflow_megatron.slurm.transport.Transport`.
"""

from __future__ import annotations
