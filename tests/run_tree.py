"""Run directories like those on a cluster, written to a local folder, with logs in Megatron's format."""

from __future__ import annotations

import json
import math
import random
import subprocess
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_megatron.results.readings.snapshot import SweepSnapshot, parse_snapshot, snapshot_script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SEQ_LENGTH = 256
BATCH = 16


def take_snapshot(run_dirs: Sequence[str], **options: Any) -> SweepSnapshot:
    """Run the snapshot command in a real shell."""
    done = subprocess.run(
        ["sh", "-s"], input=snapshot_script(run_dirs, **options), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return parse_snapshot("Welcome to the cluster\n" + done.stdout + "logout\n")


def iteration_line(iteration: int, train_iters: int, loss: float, lr: float, when: datetime) -> str:
    """Return an iteration line in the format of core_v0.16."""
    loss_field = "" if math.isnan(loss) else f" lm loss: {loss:.6E} |"
    return (
        f" [{when:%Y-%m-%d %H:%M:%S.%f}] iteration {iteration:8d}/{train_iters:8d} |"
        f" consumed samples: {iteration * BATCH:12d} | elapsed time per iteration (ms): 125.0 |"
        f" learning rate: {lr:.6E} | global batch size: {BATCH:5d} |{loss_field} loss scale: 1.0 |"
        f" grad norm: 0.908 | number of skipped iterations:   0 | number of nan iterations: "
        f"{int(math.isnan(loss)):3d} |\n"
    )


@dataclass
class RunTree:
    """A sweep of model sizes × learning rates with cooldowns, as files and as jobs of a plan."""

    root: Path
    jobs: list[dict[str, Any]] = field(default_factory=list)

    def add_point(
        self,
        size: dict[str, int],
        parameters: int,
        lr: float,
        *,
        train_iters: int = 400,
        budgets: dict[str, int] | None = None,
        diverges_at: int | None = None,
        seed: int = 0,
    ) -> str:
        """Write one point: its pretraining run and one cooldown per budget (name → last iteration)."""
        point = f"h{size['hidden_size']}_lr{lr:g}"
        directory = self.root / "toy" / point
        swept = {**size, "lr": lr}
        noise = random.Random(f"{point}{seed}")
        optimum = 3e-3 * (1e6 / parameters) ** 0.3
        penalty = 0.06 * math.log10(lr / optimum) ** 2

        def stable(iteration: int) -> float:
            floor = 1.2 + 2.0 * (parameters / 1e5) ** -0.12 + penalty
            return floor + 4.0 * math.exp(-iteration / 40) + 0.5 * (iteration + 20) ** -0.35 * 2

        losses = {
            iteration: math.nan if diverges_at and iteration >= diverges_at else stable(iteration)
            for iteration in range(10, train_iters + 1, 10)
        }
        self._train(point, directory, "pretrain", swept, parameters, losses, train_iters, noise, diverges_at)
        for budget, last in (budgets or {}).items():
            start = int(last * 0.8) // 10 * 10
            cooled = {
                iteration: stable(iteration) - 0.15 * (1 - ((last - iteration) / (last - start)) ** 2)
                for iteration in range(start + 10, last + 1, 10)
            }
            branch = f"cooldown_{budget}"
            self._train(
                point, directory / f"cooldown_s{budget}", branch, swept, parameters, cooled, last, noise, None
            )
        return point

    def _train(
        self,
        point: str,
        run_dir: Path,
        stage: str,
        swept: dict[str, Any],
        parameters: int,
        losses: dict[int, float],
        train_iters: int,
        noise: random.Random,
        diverges_at: int | None,
    ) -> None:
        params = {**swept, "seq_length": SEQ_LENGTH, "global_batch_size": BATCH, "train_iters": train_iters}
        for kind, name in (
            ("train", stage),
            ("convert", f"{stage}.convert"),
            ("evaluate", f"{stage}.evaluate"),
        ):
            self.jobs.append(
                {
                    "name": f"toy.{point}.{name}",
                    "point": point,
                    "stage": name,
                    "kind": kind,
                    "branch": stage,
                    "params": params,
                    "sweep_params": swept,
                    "run_dir": str(run_dir),
                    "depends_on": self._dependencies(point, stage, name),
                    "command": ["true"],
                }
            )
        now = datetime(2026, 11, 21, 9, 0)
        start = min(losses) - 10
        text = (
            f"  successfully loaded checkpoint from /r [ t 1/1, p 1/1 ] at iteration {start}\n"
            if start
            else ""
        )
        text += f" > number of parameters on (tensor, pipeline) model parallel rank (0, 0): {parameters}\n"
        text += f"[before the start of training step] datetime: {now:%Y-%m-%d %H:%M:%S.%f} \n"
        for iteration, loss in losses.items():
            now += timedelta(seconds=1.25)
            text += iteration_line(iteration, train_iters, loss + noise.gauss(0, 0.02), swept["lr"], now)
        failed = diverges_at is not None
        if not failed:
            final = losses[max(losses)] + 0.03
            text += f"[after training is done] datetime: {now:%Y-%m-%d %H:%M:%S.%f} \n"
            for split, extra in (("validation", 0.0), ("test", 0.01)):
                loss = final + extra
                text += (
                    f" validation loss at iteration {train_iters} on {split} set |"
                    f" lm loss value: {loss:.6E} | lm loss PPL: {math.exp(loss):.6E} | \n"
                )
        self.write(run_dir / "logs" / f"{stage}-1.out", text)
        reason = "exit code 1: the loss is not a number" if failed else f"iteration {train_iters} reached"
        self.attempt(run_dir, stage, 1, exit_code=int(failed))
        self.verdict(run_dir, stage, "failed" if failed else "finished", reason)
        if failed:
            return
        loss = losses[max(losses)]
        evaluation = {
            "results": {
                "heldout": {
                    "alias": "heldout",
                    "byte_perplexity,none": math.exp(loss),
                    "byte_perplexity_stderr,none": "N/A",
                },
                "next_line": {"acc,none": 1 - loss / 5, "acc_stderr,none": 0.02, "alias": "next_line"},
            }
        }
        self.write(run_dir / "eval_results" / f"iter_{train_iters}" / "results.json", json.dumps(evaluation))
        (run_dir / "converted_hf" / f"iter_{train_iters}").mkdir(parents=True)
        (run_dir / "checkpoints" / f"iter_{train_iters:07d}").mkdir(parents=True)
        self.write(run_dir / "checkpoints" / "latest_checkpointed_iteration.txt", str(train_iters))
        for name in (f"{stage}.convert", f"{stage}.evaluate"):
            self.attempt(run_dir, name, 1)
            self.verdict(run_dir, name, "finished", "exit code 0")

    @staticmethod
    def _dependencies(point: str, branch: str, stage: str) -> list[dict[str, str]]:
        if stage != branch:
            return [{"job": f"toy.{point}.{branch}", "until": "finished"}]
        if branch != "pretrain":
            return [{"job": f"toy.{point}.pretrain", "until": "checkpoint 200"}]
        return [{"job": "toy.prepare_data", "until": "finished"}]

    def attempt(self, run_dir: Path, stage: str, number: int, *, exit_code: int | None = 0) -> Path:
        """Write an attempt's records; no exit record for ``exit_code=None``."""
        directory = run_dir / ".jobs" / stage / str(number)
        self.write(directory / "jobid", f"{100 + number}\n")
        self.write(directory / "job.json", json.dumps({"job": stage, "attempt": number}))
        self.write(directory / "run" / "job_id", f"{100 + number}\n")
        if exit_code is not None:
            record = {"exit_code": exit_code, "started": 1000.0, "ended": 1060.5, "job_id": f"{100 + number}"}
            self.write(directory / "exit.json", json.dumps(record))
        return directory

    def verdict(self, run_dir: Path, stage: str, outcome: str, reason: str) -> None:
        """Write a stage's verdict."""
        self.write(
            run_dir / ".jobs" / stage / "verdict.json", json.dumps({"outcome": outcome, "reason": reason})
        )

    def write(self, path: Path, text: str) -> None:
        """Write a file and its parent directories."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
