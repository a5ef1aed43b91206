"""Samples of the GPUs beside a training: the shell text that takes them, and their reader for the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_megatron.slurm.remote.shell_files import shell_file

SUMMARY: Final = r"""
BEGIN { FS = " *, *" }
$1 ~ /^[0-9]+$/ && $2 ~ /^[0-9.]+$/ {
  n++; gpu[n] = $1; memory[n] = $2; used[n] = $3; power[n] = $4
  if (!($1 in most) || $2 + 0 > most[$1] + 0) most[$1] = $2
}
END {
  for (i = 1; i <= n; i++) {
    if (memory[i] * 2 < most[gpu[i]]) continue
    count[gpu[i]]++; busy[gpu[i]] += used[i]; watts[gpu[i]] += power[i]
  }
  for (g in most) printf " %s,%d,%.0f,%.1f,%.1f\n", g, count[g], most[g], busy[g] / count[g], watts[g] / count[g]
}
"""
"""An awk program: a line for each GPU of a node's samples, ``index,samples,MiB at most,mean %,mean W``.

The means are over the samples with at least half of the most memory: those of the training, not of its start. What a
GPU does not report (``[N/A]``) counts as 0.
"""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What one GPU did during an attempt.

    :param node: its node
    :param index: its number there
    :param samples: how many samples the means are over
    :param memory_mib: the most memory in use, all processes together, in 2^20 bytes
    :param utilisation: mean, in percent of the time
    :param power_w: mean, in watts
    """

    node: str
    index: int
    samples: int
    memory_mib: float
    utilisation: float
    power_w: float


def sampling_functions() -> str:
    """Return the shell functions of a job script whose GPUs are watched."""
    return shell_file("gpu_samples")


def read_summary(node: str, text: str) -> list[GpuUse]:
    """Read what :data:`SUMMARY` printed of a node; lines that are not its are passed over."""
    found = []
    for line in text.splitlines():
        cells = line.split(",")
        try:
            index, samples, memory, utilisation, power = map(float, cells)
        except ValueError:
            continue
        found.append(GpuUse(node, int(index), int(samples), memory, utilisation, power))
    return sorted(found, key=lambda use: use.index)
