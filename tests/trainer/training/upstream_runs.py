"""Run upstream's pretrain_gpt.py on the CPU, in forks of one process that has loaded it.

    python upstream_runs.py < REQUEST

The request is ``{"script": PATH, "runs": [[ARGUMENT, ...], ...]}``. Each line of the answer is ``[STATUS, OUTPUT]``.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[3] / "Megatron-LM"
LOADED = ("megatron.training", "megatron.training.checkpointing", "gpt_builders", "model_provider")


def main() -> None:
    """Let the starter prepare this process, and run the script where it would run it."""
    request = json.load(sys.stdin)
    sys.path.insert(0, str(SCRIPTS))
    starter: Any = import_module("upstream_on_cpu")
    answers = os.fdopen(os.dup(1), "w", buffering=1)

    def run_all(script: str, run_name: str) -> None:
        for name in LOADED:
            import_module(name)
        gc.freeze()
        for arguments in request["runs"]:
            print(json.dumps(_run(script, arguments, run_name)), file=answers)

    starter.runpy = SimpleNamespace(run_path=run_all)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", CUDA_DEVICE_MAX_CONNECTIONS="1")
    os.dup2(2, 1)
    starter.main([request["script"]])


def _run(script: str, arguments: list[str], run_name: str) -> tuple[int, str]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv = [script, *arguments]
            with socket.create_server(("127.0.0.1", 0)) as free:
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
            status = 1
            try:
                runpy.run_path(script, run_name=run_name)
                status = 0
            except SystemExit as error:
                status = int(error.code or 0)
            except BaseException:  # the test shows it
                import_module("traceback").print_exc()
            sys.stdout.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return status, output.read().decode()


if __name__ == "__main__":
    main()
