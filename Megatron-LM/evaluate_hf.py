#!/usr/bin/env python3
"""Evaluate a Hugging Face model with lm-evaluation-harness, offline.

Tasks are those of the task directory (``*.yaml``; data paths in them are relative to it) and any that the harness
brings along whose data is on this machine. The results file has the harness's own structure and appears complete or
not at all. Exit status 2: a task, the model or the data is not there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What the harness returns besides the figures; samples are long and hold the data.
_LEFT_OUT = ("samples",)


class EvaluationError(Exception):
    """Something to evaluate, or to evaluate on, is missing."""


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--model", type=Path, required=True, help="directory with the converted model")
    add("--tasks", required=True, help="names of tasks, with commas between")
    add("--tasks-dir", type=Path, help="directory of task files")
    add("--output", type=Path, required=True, help="results file to write")
    add("--limit", type=int, help="items of each task at most")
    add("--batch-size", type=int, default=16, help="(default: %(default)s)")
    add("--num-fewshot", type=int, help="examples before each question; default: as the task says")
    add("--device", default="auto", help="cuda, cpu or auto (default)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Evaluate and return the exit status.

    :param argv: the arguments, without the program's name.
    """
    args = build_parser().parse_args(argv)
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        evaluate(args)
    except EvaluationError as error:
        print(f"evaluate_hf.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def evaluate(args: argparse.Namespace) -> None:
    """Run the harness and write its results.

    :param args: parsed arguments.
    :raises EvaluationError: if the model or a task does not exist.
    """
    model, output = args.model.resolve(), args.output.resolve()
    if not (model / "config.json").is_file():
        raise EvaluationError(f"{model} is no model directory: it has no config.json")
    if args.tasks_dir is not None and not args.tasks_dir.is_dir():
        raise EvaluationError(f"--tasks-dir {args.tasks_dir} does not exist")
    names = [name.strip() for name in args.tasks.split(",") if name.strip()]
    # A cache of its own: jobs that share a home directory do not wait for, or read, each other's.
    with tempfile.TemporaryDirectory(prefix="evaluation-") as scratch:
        os.environ["HF_DATASETS_CACHE"] = scratch
        results = _run(args, model, names)
    from megatron_core_trainer.atomic_output import write_json

    write_json(output, {name: value for name, value in results.items() if name not in _LEFT_OUT})
    for name, figures in sorted(results["results"].items()):
        for metric, value in sorted(figures.items()):
            if isinstance(value, float):
                print(f"{name} {metric}: {value:.6g}")
    print(f"wrote {output}")


def _run(args: argparse.Namespace, model: Path, names: Sequence[str]) -> dict[str, Any]:
    import torch
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    # The harness would record the git commit of the working directory, which is not its own.
    evaluator.get_git_commit_hash = lambda: None

    directory = args.tasks_dir.resolve() if args.tasks_dir else None
    local = {path.stem for path in directory.glob("*.yaml")} if directory else set()
    # Reading the harness's thousands of task files takes seconds; only do so for a task that is not ours.
    manager = TaskManager(
        include_path=str(directory) if directory else None, include_defaults=not set(names) <= local
    )
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        known = ", ".join(sorted(local)) or "none"
        raise EvaluationError(f"there is no task {', '.join(unknown)}; tasks in {directory}: {known}")
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if directory:
        os.chdir(directory)
    with _quiet():
        results = evaluator.simple_evaluate(
            model=HFLM(pretrained=str(model), device=device, batch_size=args.batch_size),
            tasks=list(names),
            num_fewshot=args.num_fewshot,
            task_manager=manager,
            limit=args.limit,
            log_samples=False,
        )
    if results is None:
        raise EvaluationError("the harness returned no results")
    return dict(results)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars, and a warning for every long question, out of the job's log unless something fails."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except BaseException:
        print(said.getvalue()[-4000:], file=sys.stderr)
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
