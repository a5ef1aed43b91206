#!/usr/bin/env python3
"""Put command lines through upstream's own parser and ``validate_args``, as on a machine with GPUs.

    python validate_arguments.py CHECKOUT SCRIPTS <COMMAND_LINES

Reads JSON lines ``{"argv": […], "world_size": n, "env": {…}}``; prints for each the error's text, or null. SCRIPTS is
this project's ``Megatron-LM/`` folder. The GPUs are H100, and Transformer Engine is 2.8: what a profile that says
nothing else has.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CAPABILITY = (9, 0)
TRANSFORMER_ENGINE = "2.8.0"


def prepare(checkout: Path, scripts: Path) -> Any:
    """Return upstream's module of arguments."""
    sys.path[:0] = [str(checkout), str(scripts)]
    import torch
    import upstream_on_cpu
    from megatron_core_trainer import cpu_device
    from packaging.version import Version

    cpu_device.install()
    upstream_on_cpu._complete_typing()
    upstream_on_cpu._provide_triton()
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *_: CAPABILITY
    properties = type("Properties", (), {"name": "H100", "major": CAPABILITY[0], "minor": CAPABILITY[1]})
    torch.cuda.get_device_properties = lambda *_: properties
    utils = import_module("megatron.core.utils")
    vars(utils)["get_te_version"] = lambda: Version(TRANSFORMER_ENGINE)
    return import_module("megatron.training.arguments")


def problem(arguments: Any, argv: list[str], world_size: int, env: dict[str, str]) -> str | None:
    """Return why upstream refuses a command line, None when it takes it."""
    os.environ.update(env, RANK="0", WORLD_SIZE=str(world_size), LOCAL_RANK="0")
    sys.argv = ["pretrain_gpt.py", *argv]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            arguments.validate_args(arguments.parse_args())
    except SystemExit:
        return printed.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(checkout: str, scripts: str) -> None:
    """Answer every line, each in a process of its own, for a check may leave the environment changed."""
    arguments = prepare(Path(checkout), Path(scripts))
    for line in sys.stdin:
        given = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            found = problem(arguments, given["argv"], given["world_size"], given.get("env", {}))
            os.write(write, json.dumps(found).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            print(answer.read() or json.dumps("the check crashed"), flush=True)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
