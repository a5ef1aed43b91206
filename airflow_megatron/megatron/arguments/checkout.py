"""Read the arguments of any checkout of a trainer, forks included, without PyTorch and Transformer Engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.megatron.arguments.parser_dump import BUILDERS, module_file
from airflow_megatron.megatron.arguments.table_writer import make_table
from airflow_megatron.megatron.arguments.tables import PRETRAIN_GPT, ArgumentTable, table_of

_DUMP_SCRIPT: Final = Path(__file__).with_name("parser_dump.py")
_MOST_PACKAGES: Final = 60
_TIME_LIMIT_S: Final = 120
_MODULE: Final = "megatron.training.arguments"
#: Programs that are executed to find the arguments and defaults that they add.
PROGRAMS: Final = (
    PRETRAIN_GPT,
    *("pretrain_bert.py", "pretrain_t5.py", "pretrain_mamba.py", "pretrain_vlm.py"),
)
#: Packages whose presence a program checks before it adds arguments.
_OPTIONAL: Final = ("modelopt",)
#: A package without which a program cannot be imported.
_IMPORTED_BY: Final = {"pretrain_bert.py": "transformer_engine"}
#: Packages that every release imports; others are found by trying.
_IMPORTED_BY_ALL: Final = ("torch", "numpy", "regex", "einops", "triton")


class CheckoutError(AirflowMegatronError, ValueError):
    """A folder whose argument parser cannot be built."""


def dump_checkout(checkout: Path, release: str | None = None) -> dict[str, Any]:
    """Build a checkout's argument parser and describe it.

    The checkout's code runs in a separate process, with empty packages in place of those that it imports.

    :param checkout: folder of Megatron-LM, Megatron-DeepSpeed, or of this project's thin trainer.
    :param release: name of the release; default: the folder's name.
    :returns: ``{"release", "arguments": [{"flags", "dest", "group", "action", "type", "nargs", "choices",
        "default", "required"}, …], "programs": {script: {"defaults": {dest: value}, "adds": [argument, …],
        "packages": {package: [argument, …]}}}, "notes": [text, …]}``, what
        :func:`~airflow_megatron.megatron.arguments.table_writer.make_table` reads. ``notes`` says which program
        did not run.
    :raises CheckoutError: if the folder is not a checkout, or its parser does not build.
    """
    checkout = checkout.resolve()
    files = [module_file(module) for module in BUILDERS]
    if not any((checkout / file).is_file() for file in files):
        raise CheckoutError(f"{checkout} is not a checkout of a trainer: it has none of {', '.join(files)}")
    packages = list(_IMPORTED_BY_ALL)
    found = _tried(checkout, release or checkout.name, packages)
    programs, notes = {}, []
    for script in PROGRAMS:
        if not (checkout / module_file(_MODULE)).is_file() or not (checkout / script).is_file():
            continue
        try:
            programs[script] = _program(checkout, script, packages, found["arguments"])
        except CheckoutError as error:
            notes.append(f"arguments and defaults of {script} itself are not in the table: {error}")
    return {**found, "programs": programs, "notes": notes}


def _program(checkout: Path, script: str, packages: list[str], known: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the arguments that a program adds to those of its release, without and with its optional packages."""
    if script in _IMPORTED_BY:
        packages = [*packages, _IMPORTED_BY[script]]
    plain = _tried(checkout, script, packages, script)
    adds = [argument for argument in plain["arguments"] if argument not in known]
    optional = {}
    for package in _OPTIONAL:
        with_package = _tried(checkout, script, [*packages, package], script)["arguments"]
        more = [argument for argument in with_package if argument not in known and argument not in adds]
        if more:
            optional[package] = more
    return {"defaults": plain["defaults"], "adds": adds, "packages": optional}


def _tried(checkout: Path, release: str, packages: list[str], program: str | None = None) -> dict[str, Any]:
    """Dump a parser, with the necessary empty packages; missing ones are added to ``packages``."""
    while True:
        answer = _dump(checkout, release, packages, program)
        if "missing" not in answer:
            return answer
        if len(packages) == _MOST_PACKAGES:
            raise CheckoutError(
                f"{checkout}: the arguments import more than {_MOST_PACKAGES} missing packages"
            )
        packages.append(answer["missing"])


def checkout_table(checkout: Path, release: str | None = None) -> ArgumentTable:
    """Return the argument table of a checkout (see :func:`dump_checkout`)."""
    dump = dump_checkout(checkout, release)
    return table_of(make_table([dump]), dump["release"], PRETRAIN_GPT)


def _dump(checkout: Path, release: str, packages: list[str], program: str | None) -> dict[str, Any]:
    chosen = ["--program", program] if program else []
    words = [str(_DUMP_SCRIPT), str(checkout), release, *chosen, *packages]
    command = [sys.executable, "-I", "-W", "ignore", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIME_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CheckoutError(f"{checkout}: its arguments did not import in {_TIME_LIMIT_S} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise CheckoutError(f"{checkout}: its argument parser does not build: {reason}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer
