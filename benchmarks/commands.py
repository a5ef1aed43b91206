"""Time whole commands, start to end, beside those of AutoExperiment and oellm-autoexp, in one run on one machine.

What a person waits for is the process, imports included. Each command runs several times in a fresh process; the best
counts, as other work only adds. The other tools are installed as by ``expansion.py``. Usage::

    python benchmarks/commands.py [--autoexperiment PATH] [--oellm PATH] [--environments DIRECTORY] [--only-ours]
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from expansion import AUTOEXPERIMENT, OELLM, OELLM_VARIABLES, ROOT, SCALING_STUDY, installed, parsed_options

REPETITIONS = 5
COMMAND_SWEEP = """\
name: many
point: "a{{{{ a }}}}_b{{{{ b }}}}"
sweep:
  params: {{a: {a}, b: {b}}}
stages:
  go: {{kind: command, command: [echo, "{{{{ a }}}}", "{{{{ b }}}}"]}}
"""
TRAINING_SWEEP = """\
name: many
trainer: megatron_lm
release: core_v0.16.1
cluster: local
point: "lr{{{{ lr }}}}_wd{{{{ weight_decay }}}}"
sweep:
  params: {{lr: {rates}, weight_decay: {decays}}}
megatron: {{num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 64, max_position_embeddings: 64,
  micro_batch_size: 1, global_batch_size: 4, train_iters: 10, lr_decay_iters: 10, save_interval: 10, eval_iters: 1,
  eval_interval: 10, mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 128}}
stages:
  train: {{kind: train}}
"""
TEMPLATE = "#!/bin/bash\n#SBATCH --job-name={name}\necho {LR} {TRAIN_ITERS}\n"
ONE_JOB = """\
cmd: "sbatch {{sbatch_script}}"
sbatch_script: "{directory}/{{name}}.sbatch"
output_file: "{directory}/{{name}}.out"
template: {directory}/job.sbatch
termination_str: done
name: one
LR: 1
TRAIN_ITERS: 1
"""
OELLM_SWEEP = (
    "++sweep.type=product",
    "++sweep.groups=[{params:{backend.megatron.lr:[%s]}}]",
)
OELLM_POINTS = 20


@dataclass(frozen=True)
class Row:
    """One line of the table.

    :param seconds: wall time of the best run
    :param processor: processor time of that run, its children included
    :param memory: largest resident size of any of the runs so far, MiB
    """

    what: str
    seconds: float
    processor: float
    memory: float


def timed(
    what: str,
    words: list[str],
    *,
    repetitions: int = REPETITIONS,
    clean: Path | None = None,
    **options: object,
) -> Row:
    """Run a command several times.

    :param clean: folder that it writes and that is removed before each run
    """
    best: tuple[float, float] | None = None
    for _ in range(repetitions):
        if clean is not None:
            shutil.rmtree(clean, ignore_errors=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        done = subprocess.run(words, capture_output=True, check=False, **options)  # type: ignore[call-overload]
        seconds = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"{what}: {done.stderr.decode().strip().splitlines()[-1:]}")
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if best is None or seconds < best[0]:
            best = seconds, processor
    assert best is not None
    return Row(what, *best, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)


def scaling_study(directory: Path) -> Path:
    """Write AutoExperiment's scaling study with a script template and paths that exist here; 1,080 jobs."""
    directory.mkdir()
    (directory / "job.sbatch").write_text(TEMPLATE, encoding="utf-8")
    text = SCALING_STUDY.read_text(encoding="utf-8")
    text = re.sub(r"template: .*", f"template: {directory / 'job.sbatch'}", text)
    spec = directory / "scaling_exps.yaml"
    spec.write_text(re.sub(r"(?<=\")/p/", f"{directory}/p/", text), encoding="utf-8")
    return spec


def of_ours(directory: Path) -> list[Row]:
    spec = scaling_study(directory / "ours")
    one_job = directory / "ours" / "one_job.yaml"
    one_job.write_text(ONE_JOB.format(directory=one_job.parent), encoding="utf-8")
    program = [sys.executable, "-m", "airflow_megatron.cli.app"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AIRFLOW_MEGATRON_LOCAL": str(directory)}
    rows = [
        timed("airflow-megatron --help", [*program, "--help"], env=environment),
        timed("lint, 4 points", [*program, "lint", "quickstart"], env=environment),
        timed(
            "lint --build-dags, 4 points", [*program, "lint", "quickstart", "--build-dags"], env=environment
        ),
        timed(
            "plan --format json, AutoExperiment's file with one job",
            [*program, "plan", str(one_job), "--format", "json"],
            env=environment,
        ),
        timed(
            "plan --format json, 1,080 jobs",
            [*program, "plan", str(spec), "--format", "json"],
            env=environment,
        ),
        timed(
            "build, 1,080 scripts",
            [*program, "build", str(spec), str(directory / "scripts")],
            env=environment,
            clean=directory / "scripts",
        ),
    ]
    for points in (1000, 100_000):
        many = directory / f"many_{points}.yaml"
        many.write_text(
            COMMAND_SWEEP.format(a=list(range(points // 100)), b=list(range(100))), encoding="utf-8"
        )
        words = [*program, "plan", str(many), "--format", "json"]
        rows.append(timed(f"plan --format json, {points:,} points", words, repetitions=2, env=environment))
    decays = [round((number + 1) * 1e-2, 9) for number in range(100)]
    for count in (100, 1000):
        trainings = directory / f"trainings_{count}.yaml"
        rates = [round((number + 1) * 1e-3 / count, 9) for number in range(count)]
        trainings.write_text(TRAINING_SWEEP.format(rates=rates, decays=decays), encoding="utf-8")
        words = [*program, "plan", str(trainings), "--format", "json"]
        what = f"plan --format json, {100 * count:,} trainings"
        rows.append(timed(what, words, repetitions=2, env=environment))
    return rows


def of_autoexperiment(checkout: Path | None, directory: Path) -> Row:
    python, _ = installed("autoexperiment", AUTOEXPERIMENT, checkout, directory, "omegaconf", "clize")
    spec = scaling_study(directory / "theirs")
    words = [python, "-c", "from autoexperiment.cli import main; main()", "build", str(spec)]
    return timed("AutoExperiment: build, 1,080 scripts", words)


def of_oellm(checkout: Path | None, directory: Path) -> Row:
    python, source = installed("oellm", OELLM, checkout, directory)
    rates = ",".join(f"{(number + 1) * 1e-5:.6f}" for number in range(OELLM_POINTS))
    environment = {**os.environ, **dict.fromkeys(OELLM_VARIABLES, "/tmp"), "USER": "user"}
    words = [python, "scripts/visualize_plan.py", "--config-name", "experiments/megatron_sanity_check"]
    words += [OELLM_SWEEP[0], OELLM_SWEEP[1] % rates]
    what = f"oellm-autoexp: plan, {OELLM_POINTS} points"
    return timed(what, words, repetitions=1, cwd=source, env=environment)


def main() -> int:
    options = parsed_options(__doc__ or "")
    with tempfile.TemporaryDirectory() as temporary:
        rows = of_ours(Path(temporary))
        if not options.only_ours:
            environments = (options.environments or Path(temporary) / "environments").absolute()
            environments.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(environments / "theirs", ignore_errors=True)
            for measure, checkout in ((of_autoexperiment, options.autoexperiment), (of_oellm, options.oellm)):
                try:
                    rows.append(measure(checkout, environments))
                except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
                    print(f"left out: {error}")
    for row in rows:
        print(f"{row.what:54} {row.seconds:8.2f} s {row.processor:8.2f} s CPU {row.memory:8.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
