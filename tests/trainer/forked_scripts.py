"""Run the trainer's scripts in forks of this process, which has loaded what takes each of them seconds to load.

Started by ``warm_interpreter.WarmInterpreter`` in the trainer's environment; prints ``ready`` when they are loaded.
Then each line of standard input is a request; the answer is a line with the exit statuses of its processes. A fork runs
the script as ``__main__``, with the request's arguments and environment, and ends as an interpreter does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
from typing import Any

LIBRARIES = (
    # what transformers imports; not transformers itself, which reads HF_MODULES_CACHE when it is imported
    "accelerate",
    "huggingface_hub.hf_api",
    "scipy.optimize",
    "numpy",
    "torch",
    "torch.distributed.checkpoint",
    "torch.utils.data",
    "megatron.core.datasets.blended_megatron_dataset_builder",
    "megatron.core.datasets.gpt_dataset",
    "megatron.core.dist_checkpointing",
    "megatron.core.distributed",
    "megatron.core.models.gpt",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel",
    "megatron.core.tensor_parallel.random",
)


def main() -> None:
    """Serve requests until standard input ends; return in a fork, when its script has been run."""
    # as pretrain_gpt.py: read when torch is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    while line := sys.stdin.readline():
        request = json.loads(line)
        children = []
        for one in request["processes"]:
            child = os.fork()
            if child == 0:
                run(request["script"], request["arguments"], one)
                return
            children.append(child)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(statuses), flush=True)


def run(script: str, arguments: list[str], process: dict[str, Any]) -> None:
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, process["stdout"], os.O_WRONLY | os.O_CREAT),
        (2, process["stderr"], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(process["environment"])
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(script)  # noqa: PTH120
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
