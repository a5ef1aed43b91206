#!/usr/bin/env python3
"""Evaluate a Hugging Face model with lm-evaluation-harness, offline.

Tasks come from the task directories (``*.yaml``; their data paths are relative to their directory), or from the harness
itself if their data is on this machine. The results file has the harness's structure and is written atomically. Exit
status 2 means that a task, the model or the data is missing.
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

from megatron_core_trainer.atomic_output import write_json
from megatron_core_trainer.conversion.errors import ConversionError
from megatron_core_trainer.evaluation import environment_report, task_templates
from megatron_core_trainer.evaluation.evaluation_models import (
    EvaluationError,
    load_model,
    model_arguments,
    tokenizer_problem,
)
from megatron_core_trainer.evaluation.evaluation_requests import directory_of, merged_results, parse_requests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from megatron_core_trainer.evaluation.evaluation_requests import TaskRequest

# Parts of the harness's results that are not stored; samples are long and contain the data.
_LEFT_OUT = ("samples",)

# What ``random.sample`` says, with which the harness draws examples.
_TOO_FEW = "Sample larger than population"


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--model", type=Path, required=True, help="directory with the converted model")
    add(
        "--tasks",
        required=True,
        help="names of tasks, separated by commas; NAME@N: N examples before each question",
    )
    add(
        "--tasks-dir", type=Path, action="append", default=[], help="directory of task files; may be repeated"
    )
    add("--output", type=Path, required=True, help="results file to write")
    add("--limit", type=float, help="maximum number of items of each task; below 1: share of the items")
    add("--batch-size", default="16", help="a number, auto, or auto:N (default: %(default)s)")
    add("--num-fewshot", type=int, help="examples of tasks without @; default: the task's setting")
    add("--device", default="auto", help="cuda, cpu or auto (default)")
    add(
        "--backend",
        choices=["hf", "vllm"],
        default="hf",
        help="library that runs the model (default: %(default)s)",
    )
    add(
        "--backend-argument",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the harness's model class, such as tensor_parallel_size=2; may be repeated",
    )
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
    except (EvaluationError, ConversionError) as error:
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
        raise EvaluationError(f"{model} is not a model directory: it has no config.json")
    absent = next((directory for directory in args.tasks_dir if not directory.is_dir()), None)
    if absent is not None:
        raise EvaluationError(f"--tasks-dir {absent} does not exist")
    directories = [directory.resolve() for directory in args.tasks_dir]
    try:
        requests = parse_requests(args.tasks, args.num_fewshot)
    except ValueError as error:
        raise EvaluationError(f"--tasks {args.tasks}: {error}") from error
    with tempfile.TemporaryDirectory(prefix="evaluation-") as scratch:
        os.environ["HF_MODULES_CACHE"] = f"{scratch}/modules"
        results = _run(args, model, requests, directories, Path(scratch))
    write_json(output, {name: value for name, value in results.items() if name not in _LEFT_OUT})
    for name, figures in sorted(results["results"].items()):
        for metric, value in sorted(figures.items()):
            if isinstance(value, float):
                print(f"{name} {metric}: {value:.6g}")
    print(f"wrote {output}")


def _run(
    args: argparse.Namespace,
    model: Path,
    requests: Sequence[TaskRequest],
    directories: Sequence[Path],
    scratch: Path,
) -> dict[str, Any]:
    """Run the harness once for the tasks that share a few-shot setting and a directory; the model stays loaded."""
    arguments = model_arguments(args.backend, model, args.backend_argument, batch_size=args.batch_size)
    own = {path.stem for directory in directories for path in directory.glob("*.yaml")}
    names = {request.name for request in requests}
    if names <= own:
        # Use a private cache, so that jobs with the same home directory neither wait for nor read each other's files.
        # The data of the harness's tasks stays in the common cache.
        os.environ["HF_DATASETS_CACHE"] = f"{scratch}/datasets"
    from lm_eval import evaluator
    from lm_eval.tasks import TaskManager

    # The harness would record the git commit of the working directory, which belongs to another project.
    evaluator.get_git_commit_hash = lambda: None
    environment_report.collect_in_process()
    task_templates.compile_once()
    # Reading the thousands of task files of the harness takes seconds, so do it only for a task that needs them.
    manager = TaskManager(
        include_path=[str(directory) for directory in directories] or None, include_defaults=not names <= own
    )
    unknown = sorted(names - set(manager.all_tasks))
    if unknown:
        where = ", ".join(map(str, directories)) or "no directory"
        known = ", ".join(sorted(own)) or "none"
        raise EvaluationError(f"there is no task {', '.join(unknown)}; tasks in {where}: {known}")
    together: dict[tuple[int | None, Path | None], list[str]] = {}
    for request in requests:
        place = (request.num_fewshot, directory_of(request.name, directories))
        together.setdefault(place, []).append(request.name)
    with _quiet():
        loaded = load_model(args.backend, arguments, device=args.device)
        runs = []
        for (num_fewshot, directory), tasks in together.items():
            if directory:
                os.chdir(directory)
            runs.append(_evaluated(evaluator, loaded, tasks, manager, num_fewshot, args.limit))
    return merged_results(runs)


def _evaluated(
    evaluator: Any, model: Any, tasks: list[str], manager: Any, num_fewshot: int | None, limit: float | None
) -> dict[str, Any]:
    from datasets.exceptions import DatasetNotFoundError

    try:
        results = evaluator.simple_evaluate(
            model=model,
            tasks=tasks,
            num_fewshot=num_fewshot,
            task_manager=manager,
            limit=int(limit) if limit is not None and limit >= 1 else limit,
            log_samples=False,
        )
    except (IndexError, RuntimeError) as error:
        outside = isinstance(error, IndexError) or "device-side assert" in str(error)
        problem = tokenizer_problem(model) if outside else None
        if problem is None:
            raise
        raise EvaluationError(problem) from error
    except ValueError as error:
        if _TOO_FEW not in str(error):
            raise
        examples = "its number of" if num_fewshot is None else num_fewshot
        raise EvaluationError(
            f"{', '.join(tasks)} has too little data for {examples} examples before each question"
        ) from error
    except (ConnectionError, DatasetNotFoundError, FileNotFoundError) as error:
        raise EvaluationError(
            f"the data of {', '.join(tasks)} is not on this machine: {error}; evaluate it once where there is a"
            " network, with the same HF_HOME"
        ) from error
    if results is None:
        raise EvaluationError("the harness returned no results")
    return dict(results)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide progress bars and warnings about long questions in the job's log unless something fails."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            yield
    except BaseException:
        print(messages.getvalue()[-4000:], file=sys.stderr)
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
