#!/usr/bin/env python3
"""Run upstream's unchanged pretrain_gpt.py on a machine without a GPU.

    python upstream_on_cpu.py CHECKOUT/pretrain_gpt.py ARGUMENT…

The starters ``upstream_index_cache.py`` and ``upstream_lr_finder.py`` can precede the checkout's script.

``megatron_core_trainer/cpu_device.py`` redirects the CUDA calls. This program also replaces Triton, skips the CUDA
kernels that upstream compiles at its start, and uses the data set index builder of the installed megatron-core, which
upstream would compile inside the checkout.
"""

from __future__ import annotations

import queue
import runpy
import sys
import typing
from importlib import import_module, metadata, util
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.upstream_script import upstream_script

if TYPE_CHECKING:
    from pathlib import Path

_INDEX_BUILDER = "megatron.core.datasets.helpers_cpp"


class _Kernels(ModuleType):
    """A module for kernels that are defined but never called; its attributes act as decorators and as modules."""

    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__(name)
        self.__spec__, self.__path__ = ModuleSpec(name, None, is_package=True), []
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernels(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return args[0] if args and callable(args[0]) and not isinstance(args[0], _Kernels) else self


def _provide_triton() -> None:
    """Make modules with Triton kernels importable if Triton is not installed."""
    if util.find_spec("triton") is not None:
        return
    import_module("torch._dynamo")  # PyTorch looks for the real Triton once
    language = _Kernels("triton.language")
    sys.modules["triton"] = _Kernels("triton", __version__="3.4.0", language=language)
    sys.modules["triton.language"] = language


def _complete_typing() -> None:
    """Add the name to :mod:`typing` of Python 3.11 that core_v0.18 and later import; Python 3.12 has it."""
    if not hasattr(typing, "override"):
        vars(typing)["override"] = import_module("typing_extensions").override


def _provide_index_builder() -> None:
    """Use the compiled index builder of the installed megatron-core instead of compiling it inside the checkout.

    Its source, ``megatron/core/datasets/helpers.cpp``, is the same in core_v0.16.1 and core_v0.19.0.
    """
    for file in metadata.files("megatron-core") or ():
        if file.name.startswith("helpers_cpp.") and file.suffix == ".so":
            spec = util.spec_from_file_location(_INDEX_BUILDER, str(file.locate()))
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[_INDEX_BUILDER] = util.module_from_spec(spec)
            spec.loader.exec_module(module)
            vars(import_module("megatron.core.datasets.utils"))["compile_helpers"] = lambda: None
            return


def _skip_cuda_kernels(checkout: Path) -> None:
    """Skip the compilation of CUDA kernels; up to core_v0.16 upstream compiles them even if it does not use them."""
    if (checkout / "megatron/legacy/fused_kernels").is_dir():
        vars(import_module("megatron.legacy.fused_kernels"))["load"] = lambda args: None


def _skip_warm_up() -> None:
    """Skip the warm-up of kernels, which draws random numbers.

    A GPU has a separate generator for them; on a CPU they would change the initial weights.
    """
    vars(import_module("megatron.training.initialize"))["_warmup_jit_function"] = lambda **_: None


def _seed_loaders_apart() -> None:
    """Give each loader of data a random generator of its own.

    A loader draws a number when its iteration starts. On a GPU dropout has another generator than the loaders; on a CPU
    it would be the same one, and dropout would depend on the number of loaders and on whether a training was resumed.
    """
    loader = import_module("torch.utils.data").DataLoader
    original = loader.__init__

    def create(self: Any, *args: Any, **settings: Any) -> None:
        original(self, *args, **settings)
        if self.generator is None:
            self.generator = import_module("torch").Generator().manual_seed(0)

    loader.__init__ = create


def _name_what_transformer_engine_would() -> None:
    """Define names of Transformer Engine that upstream refers to even if it does not use them.

    The router of experts does so, and ``pretrain_bert.py``, which uses other layers with ``--spec local``.
    """
    vars(import_module("megatron.core.transformer.moe.moe_utils")).setdefault("te_general_gemm", None)
    layers = vars(import_module("megatron.core.models.bert.bert_layer_specs"))
    layers.setdefault("bert_layer_with_transformer_engine_spec", None)


def _exchange_tokens_of_experts() -> None:
    """Accept tensors as sizes of exchanged tokens: upstream converts only tensors on a GPU to lists."""
    distributed = import_module("torch.distributed")
    original = distributed.all_to_all_single

    def exchange(output: Any, given: Any, outputs: Any = None, inputs: Any = None, **settings: Any) -> Any:
        sizes = {"output_split_sizes": outputs, "input_split_sizes": inputs}
        for name in sizes:
            size = settings.pop(name, sizes[name])
            sizes[name] = size.tolist() if hasattr(size, "tolist") else size
        return original(output, given, **sizes, **settings)

    distributed.all_to_all_single = exchange


def _let_norms_be_sequence_parallel() -> None:
    """Allow PyTorch's norms instead of those of Apex or Transformer Engine with sequence parallelism.

    Upstream's wrapper refuses them because their weights are not marked, although each rank has only a part of their
    gradients. ``FusedLayerNorm`` of upstream marks its weights in the same way.
    """
    wrapper = import_module("megatron.core.transformer.torch_norm").WrappedTorchNorm
    original = wrapper.__new__

    def marked(cls: type, config: Any, *args: Any, **settings: Any) -> Any:
        parallel, config.sequence_parallel = config.sequence_parallel, False
        try:
            norm = original(cls, config, *args, **settings)
        finally:
            config.sequence_parallel = parallel
        for weight in norm.parameters():
            weight.sequence_parallel = parallel
        return norm

    wrapper.__new__ = staticmethod(marked)


def _keep_queue_in_process() -> None:
    """Collect the reports of a checkpoint's writers in this process.

    The original starts a queue manager as a new process, which would import the training script again without these
    patches.
    """
    writers = import_module("megatron.core.dist_checkpointing.strategies.filesystem_async")
    vars(writers)["_results_queue"] = queue.SimpleQueue()


def main(words: list[str]) -> None:
    """Run the script of the first argument with the other arguments.

    :param words: the arguments, without this program's name.
    """
    script = upstream_script(words)
    if not script.is_file():
        sys.exit(f"upstream_on_cpu.py: error: {str(script)!r} is not a file; name CHECKOUT/pretrain_gpt.py")
    import torch
    from megatron_core_trainer import cpu_device

    sys.argv = words
    sys.path[0] = str(script.parent)
    if cpu_device.is_needed():
        cpu_device.install()
        torch.cuda.is_available = lambda: True  # "Megatron requires CUDA."
        _complete_typing()
        _provide_triton()
        _provide_index_builder()
        _skip_cuda_kernels(script.parent)
        _skip_warm_up()
        _seed_loaders_apart()
        _name_what_transformer_engine_would()
        _exchange_tokens_of_experts()
        _let_norms_be_sequence_parallel()
        _keep_queue_in_process()
        cpu_device.install_rng_tracker()
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
