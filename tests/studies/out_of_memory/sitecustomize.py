"""Make upstream's first iteration fail with CUDA's out-of-memory error."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any

_SCHEDULES = "megatron.core.pipeline_parallel.schedules"


class _Patch(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _SCHEDULES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            module.forward_step = _run_out_of_memory

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _run_out_of_memory(*_: Any, **__: Any) -> Any:
    import torch

    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 3.12 GiB. GPU 0 has a total capacity of 79.11 GiB of which 2.06 GiB is "
        "free. Including non-PyTorch memory, this process has 77.04 GiB memory in use."
    )


sys.meta_path.insert(0, _Patch())
