"""Run the first iterations of a checkout of upstream Megatron-LM as one rank of a simulated job.

    python upstream_first_iterations.py CHECKOUT <LINES

Lines are JSON: ``{"argv": […], "world_size": n, "rank": r}``. Upstream's own ``pretrain_gpt.py`` runs as this one rank,
on the CPU, without Transformer Engine and Apex. Collectives are simulated: all other ranks are assumed to have the same
data as this one. For each line the program prints ``{"ok", "message", "source"}``: ``ok`` if two iterations have
ended, and a validation between them with ``--eval-interval 1``; ``source`` is the line of upstream that ended the job.
Each line runs in a separate process, forked after the imports.
"""

from __future__ import annotations

import argparse
import functools
import gc
import inspect
import json
import os
import resource
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "Megatron-LM")]
SECONDS = 10
"""Processor time of one line."""
ITERATIONS = 2


class Passed(BaseException):  # upstream catches Exception in places
    """Enough iterations have ended."""


def _answer_collectives() -> None:
    """Simulate that every rank has the data of this one, and that other ranks send zeros."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    start, group = dist.init_process_group, dist.new_group

    def init(*_: Any, **settings: Any) -> None:
        world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        start(backend="fake", rank=rank, world_size=world, store=FakeStore())

    def new_group(ranks: Any = None, *_: Any, **settings: Any) -> Any:
        return group(ranks, backend="fake", group_desc=settings.get("group_desc"))

    def repeat(output: Any, given: Any, *_: Any, **settings: Any) -> Any:
        flat, own = output.view(-1), given.reshape(-1)
        with torch.no_grad():
            for start in range(0, flat.numel(), max(own.numel(), 1)):
                flat[start : start + own.numel()].copy_(own[: flat.numel() - start])
        return _Work()

    def repeat_into_list(outputs: Any, given: Any, *_: Any, **settings: Any) -> Any:
        with torch.no_grad():
            for output in outputs:
                if output.shape == given.shape:
                    output.copy_(given)
        return _Work()

    def scatter(output: Any, given: Any, *_: Any, **settings: Any) -> Any:
        with torch.no_grad():
            output.copy_(given.reshape(-1)[: output.numel()].view_as(output))
        return _Work()

    def exchange(
        output: Any, given: Any, outputs: Any = None, inputs: Any = None, *_: Any, **settings: Any
    ) -> Any:
        outputs = settings.get("output_split_sizes", outputs)
        inputs = settings.get("input_split_sizes", inputs)
        for sizes, tensor in ((outputs, output), (inputs, given)):
            if sizes is not None and sum(int(size) for size in sizes) != tensor.shape[0]:
                raise RuntimeError("Split sizes doesn't match total dim 0 size")  # PyTorch's words
        with torch.no_grad():
            if output.shape == given.shape:
                output.copy_(given)
            else:
                output.zero_()
        return _Work()

    def objects_of_all(output: Any, given: Any, *_: Any, **settings: Any) -> None:
        output[:] = [given] * len(output)

    # PyTorch's names: its writer of distributed checkpoints gives them as keywords
    def gathered(obj: Any, object_gather_list: Any = None, *_: Any, **settings: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def received(tensor: Any, *_: Any, **settings: Any) -> Any:
        with torch.no_grad():
            tensor.zero_()
        return _Work()

    def sent_and_received(operations: Any) -> list[Any]:
        return [
            received(item.tensor) if getattr(item.op, "__name__", "") == "received" else _Work()
            for item in operations
        ]

    replaced = {
        "batch_isend_irecv": sent_and_received,
        "irecv": received,
        "recv": received,
        "isend": lambda *_, **settings: _Work(),
        "send": lambda *_, **settings: None,
        "init_process_group": init,
        "new_group": new_group,
        "all_gather_into_tensor": repeat,
        "_all_gather_base": repeat,
        "all_gather": repeat_into_list,
        "reduce_scatter_tensor": scatter,
        "_reduce_scatter_base": scatter,
        "all_to_all_single": exchange,
        "all_gather_object": objects_of_all,
        "gather_object": gathered,
        "broadcast_object_list": lambda *_, **settings: None,
        "monitored_barrier": lambda *_, **settings: None,
    }
    for module in (dist, dist.distributed_c10d):
        for name, function in replaced.items():
            setattr(module, name, function)


class _Work:
    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _prepare(checkout: Path) -> None:
    """Prepare the process so that upstream can be imported and run without a GPU."""
    import torch
    import upstream_on_cpu
    from megatron_core_trainer import cpu_device

    cpu_device.install()
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # the default assumption of the rules
    upstream_on_cpu._complete_typing()
    upstream_on_cpu._provide_triton()
    sys.path.insert(0, str(checkout))
    _answer_collectives()
    upstream_on_cpu._provide_index_builder()
    upstream_on_cpu._skip_cuda_kernels(checkout)
    upstream_on_cpu._skip_warm_up()
    upstream_on_cpu._keep_queue_in_process()
    upstream_on_cpu._exchange_tokens_of_experts()
    cpu_device.install_rng_tracker()
    runpy.run_path(str(checkout / "pretrain_gpt.py"), run_name="imported")  # its imports, once for all lines
    _read_sources_once()
    torch.set_num_threads(1)
    _stop_after_iterations()


def _read_sources_once() -> None:
    """Make the parser once, because it takes the help of its arguments from the sources of classes, and keep those."""
    from megatron.training.arguments import add_megatron_arguments

    inspect.getsource = functools.cache(inspect.getsource)
    add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))


def _stop_after_iterations() -> None:
    """End the job when it begins an iteration beyond the requested ones; upstream calls this function."""
    from megatron.training import training

    original, count = training.train_step, iter(range(ITERATIONS))

    def step(*words: Any, **settings: Any) -> Any:
        if next(count, None) is None:
            raise Passed
        return original(*words, **settings)

    training.train_step = step


def _verdict(checkout: Path, line: dict[str, Any]) -> dict[str, Any]:
    world, rank = line["world_size"], line.get("rank", 0)
    os.environ.update({str(name): str(value) for name, value in line.get("env", {}).items()})
    os.environ.update(
        WORLD_SIZE=str(world), RANK=str(rank), LOCAL_RANK=str(rank % 8), LOCAL_WORLD_SIZE=str(min(world, 8))
    )
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    sys.argv = [str(checkout / "pretrain_gpt.py"), *line["argv"]]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Passed:
        pass
    except SystemExit as error:
        if error.code not in (None, 0):
            return {"ok": False, "message": f"SystemExit: {error.code}", "source": "parser"}
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename.startswith(f"{checkout}/")]
        place = own[-1] if own else frames[-1]
        source = f"{place.filename.removeprefix(f'{checkout}/')}:{place.lineno}"
        return {"ok": False, "message": f"{type(error).__name__}: {error}"[:400], "source": source}
    return {"ok": True, "message": "", "source": ""}


def _give_up(*_: Any) -> None:
    raise TimeoutError(f"it took more than {SECONDS} s")


def _in_a_process(checkout: Path, line: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="first-iteration-", ignore_cleanup_errors=True) as folder:
        return _in_a_folder(folder, checkout, line)


def _in_a_folder(folder: str, checkout: Path, line: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            os.chdir(folder)
            sink = os.open("log", os.O_WRONLY | os.O_CREAT)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            signal.signal(signal.SIGXCPU, _give_up)
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
            answer = _verdict(checkout, line)
            with os.fdopen(writing, "w") as pipe:
                pipe.write(json.dumps(answer))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"ok": False, "message": "the process ended", "source": "signal"}


def main() -> None:
    """Answer each line."""
    checkout = Path(sys.argv[1]).resolve()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # upstream prints
    gc.disable()  # nearly all objects of the imports live as long as the process
    _prepare(checkout)
    gc.freeze()
    for line in sys.stdin.read().splitlines():
        print(json.dumps(_in_a_process(checkout, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
