"""GPUs: memory and peak rate, from the vendors' data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MIB: Final = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    :param memory_bytes: total memory by ``nvidia-smi`` (``rocm-smi``)
    :param operations_per_s: peak dense bf16 rate of the matrix units
    :param compute_capability: major number from ``torch.cuda.get_device_capability``
    """

    memory_bytes: int
    operations_per_s: float
    compute_capability: int = 9


GPUS: Final = {
    "a100-40gb": Gpu(40_960 * _MIB, 312e12, 8),
    "a100-80gb": Gpu(81_920 * _MIB, 312e12, 8),
    "h100-80gb": Gpu(81_559 * _MIB, 989.4e12),
    "h200": Gpu(143_771 * _MIB, 989.4e12),
    "gh200-96gb": Gpu(97_871 * _MIB, 989.4e12),
    "b200": Gpu(183_359 * _MIB, 2250e12, 10),
    "mi250x-gcd": Gpu(65_536 * _MIB, 191.5e12),
    "mi300x": Gpu(196_592 * _MIB, 1307.4e12),
}
