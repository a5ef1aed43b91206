"""How the tests of ``Megatron-LM/`` run its scripts, in the trainer's own environment, and read what they print."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warm_interpreter import WarmInterpreter

from airflow_megatron.cli.local.free_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "Megatron-LM"
UPSTREAM_RELEASE = "core_v0.16.1"

ITERATION = re.compile(
    r"^ \[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6})\] iteration +(?P<iteration>\d+)/ +(?P<train_iters>\d+)"
    r" \| consumed samples: +(?P<consumed>\d+) \| elapsed time per iteration \(ms\): (?P<ms>\d+\.\d)"
    r"(?: \| throughput per GPU \(TFLOP/s/GPU\): \d+\.\d)?"
    r" \| learning rate: (?P<lr>\d\.\d{6}E[+-]\d\d) \| global batch size: +(?P<batch>\d+)"
    r"(?: \| lm loss: (?P<loss>\d\.\d{6}E[+-]\d\d))? \| loss scale: \d+\.\d \| grad norm: (?P<grad>\S+)"
    r" \| number of skipped iterations: +(?P<skipped>\d+) \| number of nan iterations: +(?P<nan>\d+) \|$",
    re.MULTILINE,
)
VALIDATION = re.compile(
    r"^(-+)\n validation loss at iteration (?P<iteration>\d+)(?P<set> on (?:validation|test) set)? \|"
    r" lm loss value: (?P<loss>\d\.\d{6}E[+-]\d\d) \| lm loss PPL: (?P<ppl>\d\.\d{6}E[+-]\d\d) \| \n\1$",
    re.MULTILINE,
)

RUN_WARM: Final = frozenset({"pretrain_gpt.py", "convert_to_hf.py"})
"""Scripts that load little else than the warm interpreter has loaded."""
TIMEOUT_S: Final = 1800
"""Seconds for a script, ten times what the longest takes on idle cores."""


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without variables of jobs, and with additional variables."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "MASTER_", "RANK", "WORLD_"))}
    return {**ours, "OMP_NUM_THREADS": "1", **more}


@dataclass(frozen=True)
class Line:
    """An iteration line."""

    iteration: int
    consumed: int
    lr: str
    loss: str
    grad: str


@dataclass(frozen=True)
class Outcome:
    """The output and exit status of a script."""

    status: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> dict[int, Line]:
        """The iteration lines, by iteration."""
        found = ITERATION.finditer(self.stdout)
        return {
            int(m["iteration"]): Line(int(m["iteration"]), int(m["consumed"]), m["lr"], m["loss"], m["grad"])
            for m in found
        }

    @property
    def validations(self) -> dict[str, str]:
        """Validation losses, by iteration and set, for example ``20 on test set``."""
        return {f"{m['iteration']}{m['set'] or ''}": m["loss"] for m in VALIDATION.finditer(self.stdout)}


class Trainer:
    """Runs the scripts.

    :param python: the trainer environment's interpreter.
    """

    def __init__(self, python: Path) -> None:
        self.python = python
        self.warm = WarmInterpreter(python)

    def start(
        self, script: str | Path, *args: object, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a script.

        :param script: its file name, or the path of a script of the tests.
        :param args: its arguments.
        :param environment: variables to add.
        """
        return subprocess.Popen(
            [str(self.python), str(SCRIPTS / script), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(environment or {}),
        )

    def run(self, script: str, *args: object, environment: Mapping[str, str] | None = None) -> Outcome:
        """Run a script to its end.

        :param script: its file name.
        :param args: its arguments.
        :param environment: variables to add.
        """
        if script in RUN_WARM and not environment:
            (outcome,) = self._run_warm(script, args, [{}])
            return outcome
        return self.wait(self.start(script, *args, environment=environment))

    def _run_warm(
        self, script: str, args: Sequence[object], environments: Sequence[Mapping[str, str]]
    ) -> list[Outcome]:
        """Run a script in forks of an interpreter that has loaded torch."""
        words = [str(word) for word in args]
        found = self.warm.run(SCRIPTS / script, words, [*map(clean_environment, environments)], TIMEOUT_S)
        return [Outcome(*one) for one in found]

    def wait(self, process: subprocess.Popen[str]) -> Outcome:
        """Wait for a script.

        :param process: as returned by :meth:`start`.
        """
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
        return Outcome(process.returncode, stdout, stderr)

    def answers(self, script: Path, request: str) -> list[Any]:
        """Run a script of the tests; return the JSON value of each line of its output.

        :param script: its file.
        :param request: its standard input.
        """
        result = subprocess.run(
            [str(self.python), str(script)],
            input=request,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    def run_ranks(self, count: int, *args: object, script: str | Path = "pretrain_gpt.py") -> list[Outcome]:
        """Run a script as several processes, in the way torchrun starts them.

        :param count: number of processes.
        :param args: arguments.
        :param script: as for :meth:`start`.
        """
        common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        if script in RUN_WARM:
            return self._run_warm(str(script), args, ranks)
        processes = [self.start(script, *args, environment=rank) for rank in ranks]
        return [self.wait(process) for process in processes]


@dataclass(frozen=True)
class Data:
    """Prepared data."""

    directory: Path

    def args(self) -> list[str]:
        """Return the arguments that train on it."""
        return [
            *("--train-data-path", f"{self.directory}/train_text_document"),
            *("--valid-data-path", f"{self.directory}/valid_text_document"),
            *("--test-data-path", f"{self.directory}/test_text_document"),
            *("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", f"{self.directory}/tokenizer"),
        ]


SMALL_DATA = (
    *("--train-tokens", "60000", "--valid-tokens", "8000", "--test-tokens", "8000"),
    *("--heldout-pieces", "3", "--heldout-size", "300", "--questions", "12"),
)
MODEL = (
    *("--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--ffn-hidden-size", "64"),
    *("--seq-length", "64", "--max-position-embeddings", "64", "--position-embedding-type", "rope"),
    *("--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear"),
    *("--attention-dropout", "0", "--hidden-dropout", "0"),
)
SCHEDULE = (
    *("--micro-batch-size", "2", "--global-batch-size", "4", "--train-iters", "12"),
    *("--lr", "1e-2", "--min-lr", "1e-3", "--lr-warmup-iters", "3"),
    *("--lr-decay-style", "WSD", "--lr-wsd-decay-style", "minus_sqrt", "--lr-wsd-decay-iters", "4"),
)
LOOP = (
    *("--log-interval", "1", "--save-interval", "4", "--eval-interval", "6", "--eval-iters", "2"),
    *("--num-workers", "0"),
)


def pretrain_args(data: Data, save: Path, extra: Sequence[object] = ()) -> list[object]:
    """Return the arguments of a twelve-iteration run with checkpoints at 4, 8 and 12.

    :param data: what to train on.
    :param save: where to keep checkpoints.
    :param extra: further arguments; later ones win.
    """
    return [*MODEL, *SCHEDULE, *LOOP, *data.args(), "--save", save, *extra]
