"""Run megatron-core on machines without a GPU.

megatron-core hard-codes the CUDA device: ``device="cuda"``, ``tensor.cuda()``, ``torch.cuda.Stream``, checks such as
``param.type() == "torch.cuda.FloatTensor"``. :func:`install` redirects these calls to the CPU. It replaces functions
that are called while a model is built or an optimizer steps, not every torch operation, so it does not slow iterations
down. Call it before ``megatron.core`` is imported; it is never used if CUDA is available.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._device import _device_constructors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FACTORIES = (
    "arange",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "randint",
    "randn",
    "tensor",
    "zeros",
    "zeros_like",
)


def is_needed(distributed_backend: str | None = None) -> bool:
    """Return whether this machine has no usable CUDA device.

    :param distributed_backend: the value of ``--distributed-backend``. ``gloo`` does not force the CPU, because
        upstream accepts gloo between GPUs too.
    """
    return not torch.cuda.is_available()


_MISSING = object()
_originals: list[tuple[Any, str, Any]] = []
#: Packages whose norms, optimizers and kernels megatron-core prefers if they can be imported, and which need a GPU.
_GPU_PACKAGES = ("transformer_engine", "apex", "amp_C")
_hidden: list[str] = []


def install() -> None:
    """Route megatron-core's CUDA calls to the CPU, once per process."""
    if _originals:
        return
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    _hide_gpu_packages()
    # ``with torch.device(...)`` identifies the factory functions by object identity and collects them on first use.
    _device_constructors()
    _replace_compile()
    _replace_factories()
    _replace_tensor_methods()
    _replace_cuda_module()


def uninstall() -> None:
    """Undo :func:`install`, before code other than megatron-core runs in the same process."""
    while _originals:
        owner, name, original = _originals.pop()
        if original is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    while _hidden:
        del sys.modules[_hidden.pop()]


def _hide_gpu_packages() -> None:
    """Make imports of these packages fail as if they were not installed; without a GPU, some fail in other ways."""
    for name in _GPU_PACKAGES:
        if name not in sys.modules:
            sys.modules[name] = None  # type: ignore[assignment]
            _hidden.append(name)


def _replace(owner: Any, name: str, value: Any) -> None:
    _originals.append((owner, name, vars(owner).get(name, _MISSING)))
    setattr(owner, name, value)


def install_rng_tracker() -> None:
    """Make ``tensor_parallel`` track states of the CPU generator; call after importing ``megatron.core``.

    The original warns if the state of the CPU generator changes during a fork, which always happens on a CPU.
    """
    from megatron.core.tensor_parallel import random as tp_random

    class CpuRNGStatesTracker(tp_random.CudaRNGStatesTracker):  # type: ignore[misc]
        """Named states of the CPU generator."""

        def add(self, name: str, seed: int) -> None:
            """Create the state ``name``; each seed and each name may be used once.

            :param name: name of the state.
            :param seed: seed of its generator.
            """
            if seed in self.seeds_ or name in self.states_:
                raise ValueError(f"random state {name!r} or seed {seed} is already in use")
            self._is_initialized = True
            self.seeds_.add(seed)
            self.states_[name] = torch.Generator().manual_seed(seed).get_state()

        @contextlib.contextmanager
        def fork(self, name: str = tp_random._MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
            """Use the state ``name`` inside the block, then restore the caller's state.

            :param name: name of the state.
            """
            outside = torch.get_rng_state()
            torch.set_rng_state(self.states_[name])
            try:
                yield
            finally:
                self.states_[name] = torch.get_rng_state()
                torch.set_rng_state(outside)

    tp_random._CUDA_RNG_STATE_TRACKER = CpuRNGStatesTracker()
    tp_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


def install_checkpoint_writer() -> None:
    """Write checkpoint shards in this process; call after importing ``megatron.core.dist_checkpointing``.

    The original forks writers, although OpenMP threads are running, and spawns a queue manager, which imports
    everything again and takes seconds even for a tiny model. The files are the same.
    """
    import queue

    from megatron.core.dist_checkpointing.strategies import filesystem_async

    writer_class = filesystem_async.FileSystemWriterAsync

    def write_in_process(
        transform_list: list[Any], use_msc: bool, rank: int, write_buckets: list[Any], results: Any
    ) -> None:
        written: dict[int, Any] | Exception = {}
        for index, bucket in enumerate(write_buckets):
            answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
            pending: queue.Queue[int] = queue.Queue()
            pending.put(index)
            writer_class.write_preloaded_data(
                transform_list, index, bucket, answers, pending, use_fsync=True, use_msc=use_msc
            )
            _, outcome = answers.get()
            if isinstance(outcome, Exception):
                written = outcome
                break
            assert isinstance(written, dict)
            written[index] = outcome
        results.put(written)

    filesystem_async._results_queue = queue.SimpleQueue()
    writer_class.write_preloaded_data_multiproc = staticmethod(write_in_process)


def _is_cuda(device: object) -> bool:
    if isinstance(device, str):
        return device.startswith("cuda")
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return create


def _replace_compile() -> None:
    # megatron-core decorates functions with torch.compile at import; loading the compiler takes half a second.
    def uncompiled(model: Any = None, **_: Any) -> Any:
        return model if model is not None else (lambda function: function)

    _replace(torch, "compile", uncompiled)
    # these load the compiler to tell it that it must not compile them
    for name in ("add_param_group", "load_state_dict", "state_dict"):
        _replace(torch.optim.Optimizer, name, inspect.unwrap(getattr(torch.optim.Optimizer, name)))
    for optimizer in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        if "step" in vars(optimizer):
            _replace(optimizer, "step", torch.no_grad()(inspect.unwrap(optimizer.step)))


def _replace_factories() -> None:
    for name in _FACTORIES:
        _replace(torch, name, _on_cpu(getattr(torch, name)))


def _replace_tensor_methods() -> None:
    tensor: Any = torch.Tensor
    to, type_ = tensor.to, tensor.type

    def to_on_cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and _is_cuda(args[0]):
            args = ("cpu", *args[1:])
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return to(self, *args, **kwargs)

    def type_as_cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return type_(self, *args, **kwargs)
        return type_(self).replace("torch.", "torch.cuda.", 1)

    _replace(tensor, "to", to_on_cpu)
    _replace(tensor, "type", type_as_cuda)
    _replace(tensor, "cuda", lambda self, *args, **kwargs: self)
    _replace(torch.nn.Module, "cuda", lambda self, device=None: self)


class _Stream:
    """A stream whose operations are always complete."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> _Event:
        return event or _Event()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class _Event:
    """An event that has already been recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, *args: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait(self, *args: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


def _constant(value: Callable[[], Any]) -> Callable[..., Any]:
    # One function object per name: torch's tables reject a function that has two names.
    def answer(*args: Any, **kwargs: Any) -> Any:
        return value()

    return answer


def _replace_cuda_module() -> None:
    cuda: Any = torch.cuda
    cpu = torch.device("cpu")
    # A build for CUDA would pin the memory of batches where torch.cuda.is_available is replaced, and fail.
    _replace(torch.accelerator, "is_available", _constant(lambda: False))

    def get_state(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(state: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        torch.set_rng_state(state)

    def seed(value: int) -> None:
        torch.default_generator.manual_seed(value)

    for name in (
        "set_device",
        "synchronize",
        "empty_cache",
        "reset_peak_memory_stats",
        "_lazy_init",
        "_lazy_call",
    ):
        _replace(cuda, name, _constant(lambda: None))
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        _replace(cuda, name, _constant(lambda: 0))
    for name, value in (
        ("current_device", _constant(lambda: cpu)),
        ("is_current_stream_capturing", _constant(lambda: False)),
        ("device_count", _constant(lambda: 1)),
        ("memory_stats", _constant(lambda: defaultdict(int))),
        ("get_device_capability", _constant(lambda: (0, 0))),
        ("get_device_properties", _constant(lambda: SimpleNamespace(name="cpu", major=0, minor=0))),
        ("Stream", _Stream),
        ("Event", _Event),
        ("current_stream", _constant(_Stream)),
        ("default_stream", _constant(_Stream)),
        ("stream", lambda stream: stream if isinstance(stream, _Stream) else _Stream()),
    ):
        _replace(cuda, name, value)
    for module in (cuda, cuda.random):
        _replace(module, "get_rng_state", get_state)
        _replace(module, "set_rng_state", set_state)
        _replace(module, "manual_seed", seed)
