"""GPU samples during a training: the shell functions that take them, and the parser of their summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.spec.trust.json_records import reals, whole

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
"""An awk program that prints a line for each GPU of a node: ``index,samples,maximum MiB,mean %,mean W``.

The means include only samples with at least half of the maximum memory, which excludes the start of the training.
Values that a GPU does not report (``[N/A]``) count as 0.
"""


_LARGEST: Final = 1e12


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Use of one GPU during an attempt.

    :param node: the node of the GPU
    :param index: index of the GPU on its node
    :param samples: number of samples in the means
    :param memory_mib: maximum memory used by all processes, in MiB
    :param utilisation: mean utilisation in percent
    :param power_w: mean power in watts
    """

    node: str
    index: int
    samples: int
    memory_mib: float
    utilisation: float
    power_w: float


def sampling_functions() -> str:
    """Return the shell functions of a job script that samples its GPUs."""
    return shell_file("gpu_samples")


def read_summary(node: str, text: str) -> list[GpuUse]:
    """Parse the output of :data:`SUMMARY` for one node; other lines are ignored."""
    found = []
    for line in text.splitlines():
        cells = line.split(",")
        if len(cells) != 5:
            continue
        index, samples = map(whole, cells[:2])
        measured = [value for value in reals(cells[2:]) if 0 <= value < _LARGEST]
        # a job may write anything into its files
        if index is not None and samples is not None and len(measured) == 3:
            found.append(GpuUse(node, index, samples, *measured))
    return sorted(found, key=lambda use: use.index)
