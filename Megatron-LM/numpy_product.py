"""Define ``numpy.product`` for numpy 2; releases of upstream before 0.16 call it when they save checkpoints.

``numpy_product.pth`` in the environment imports this module when Python starts. Upstream's checkouts are therefore not
changed, and programs that do not use numpy do not load it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _WithProduct(Loader):
    """Loads numpy and adds the function."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        if not hasattr(module, "product"):
            module.product = module.prod


class _NumpyFinder(MetaPathFinder):
    """Finds numpy with the other finders, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "numpy":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithProduct(spec.loader)
        return spec


sys.meta_path.insert(0, _NumpyFinder())
