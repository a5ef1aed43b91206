#!/usr/bin/env python3
"""Run upstream's own, unchanged pretrain_gpt.py where there is no GPU.

    python upstream_on_cpu.py CHECKOUT/pretrain_gpt.py ARGUMENT…

Starters beside this one may stand before the checkout's script: ``upstream_index_cache.py``, ``upstream_lr_finder.py``.

Besides the CUDA calls that ``megatron_core_trainer/cpu_device.py`` answers, upstream wants what such a machine does not
have: Triton, and CUDA kernels compiled at start. The data set index builder, which it would compile inside the
checkout, is that of the installed megatron-core.
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
    """A module of kernels that are only ever defined: decorators give functions back, other names are modules too."""

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
    """Let modules import that define Triton kernels, where Triton is not installed."""
    if util.find_spec("triton") is not None:
        return
    import_module("torch._dynamo")  # PyTorch looks for the real one, once
    language = _Kernels("triton.language")
    sys.modules["triton"] = _Kernels("triton", __version__="3.4.0", language=language)
    sys.modules["triton.language"] = language


def _complete_typing() -> None:
    """Give Python 3.11 the name that core_v0.18 and later import from :mod:`typing`, as Python 3.12 has it."""
    if not hasattr(typing, "override"):
        vars(typing)["override"] = import_module("typing_extensions").override


def _provide_index_builder() -> None:
    """Take the compiled index builder of the installed megatron-core, instead of compiling it inside the checkout.

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
    """Compile no CUDA kernels; up to core_v0.16 upstream does so whether it uses them or not."""
    if (checkout / "megatron/legacy/fused_kernels").is_dir():
        vars(import_module("megatron.legacy.fused_kernels"))["load"] = lambda args: None


def _skip_warm_up() -> None:
    """Draw no random numbers for warming kernels up.

    On a GPU they come from its own generator; here it is the one that the weights are drawn from.
    """
    vars(import_module("megatron.training.initialize"))["_warmup_jit_function"] = lambda **_: None


def _name_what_transformer_engine_would() -> None:
    """Complete what asks by name for parts that only Transformer Engine brings, whether it uses them or not.

    Those are the router of experts, and ``pretrain_bert.py``, which takes the other layers with ``--spec local``.
    """
    vars(import_module("megatron.core.transformer.moe.moe_utils")).setdefault("te_general_gemm", None)
    layers = vars(import_module("megatron.core.models.bert.bert_layer_specs"))
    layers.setdefault("bert_layer_with_transformer_engine_spec", None)


def _exchange_tokens_of_experts() -> None:
    """Take sizes of what ranks exchange as tensors too: upstream makes lists of those that are on a GPU only."""
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
    """Let PyTorch's norms stand where Apex's or Transformer Engine's would, under sequence parallelism too.

    Upstream's wrapper refuses them there because nothing marks their weights, whose gradients each rank has a part of;
    its ``FusedLayerNorm`` marks them in this way.
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
    """Collect what a checkpoint's writers report in this process.

    The original starts a queue manager as a new process, which would import the training script once more, without
    any of this.
    """
    writers = import_module("megatron.core.dist_checkpointing.strategies.filesystem_async")
    vars(writers)["_results_queue"] = queue.SimpleQueue()


def main(words: list[str]) -> None:
    """Run the script that the first word names, with the other words as its arguments.

    :param words: the command line, without this program's name.
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
        _name_what_transformer_engine_would()
        _exchange_tokens_of_experts()
        _let_norms_be_sequence_parallel()
        _keep_queue_in_process()
        cpu_device.install_rng_tracker()
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
