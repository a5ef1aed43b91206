"""Time the expansion of sweeps side by side with AutoExperiment and oellm-autoexp, in one run on one machine.

The other tools are installed from their public repositories into throw-away environments and run there, one after the
other with ours; whatever cannot be installed is left out and reported. oellm-autoexp is run on small sweeps and
extrapolated, as 10,000 points take it about ten minutes. Usage::

    python benchmarks/expansion.py [--autoexperiment PATH] [--oellm PATH] [--environments DIRECTORY] [--only-ours]

``PATH`` is a checkout to install from instead of cloning the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCALING_STUDY = ROOT / "tests" / "fixtures" / "conformance" / "scaling_exps.yaml"
REPETITIONS = 3
"""Each measurement is the best of so many fresh processes."""

AUTOEXPERIMENT = ("https://github.com/SLAMPAI/autoexperiment", "3093b6b")
OELLM = ("https://github.com/OpenEuroLLM/oellm-autoexp", "c6d0cc0")

OURS = r"""
import json, resource, sys, time
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep

cluster = load_cluster("local")
started = time.perf_counter()
sweep = load_sweep(sys.argv[1])
loaded = time.perf_counter()
points = sweep.points
expanded = time.perf_counter()
if sys.argv[2] == "jobs":
    jobs = sum(len(sweep.jobs(point, cluster)) for point in points)
elif sys.argv[2] == "plan":
    jobs = len(plan_sweep(sweep, cluster).jobs)
else:
    jobs = len(points)
ended = time.perf_counter()
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"count": jobs, "seconds": ended - started, "load": loaded - started, "memory": memory}))
"""

THEIRS_AUTOEXPERIMENT = r"""
import json, resource, sys, time
from autoexperiment.template import generate_job_defs
from omegaconf import OmegaConf

started = time.perf_counter()
jobs = generate_job_defs(OmegaConf.load(sys.argv[1]))
seconds = time.perf_counter() - started
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"count": len(jobs), "seconds": seconds, "memory": memory}))
"""

THEIRS_OELLM = r"""
import json, resource, sys, time
from pathlib import Path
from oellm_autoexp.config.loader import load_config_reference
from oellm_autoexp.config.schema import ConfigSetup
from oellm_autoexp.hydra_staged_sweep.dag_resolver import resolve_sweep_with_dag
from oellm_autoexp.hydra_staged_sweep.expander import expand_sweep

rates = ",".join(f"{(i + 1) * 1e-6:.7f}" for i in range(int(sys.argv[1]) // 10))
batches = ",".join(str(16 * (i + 1)) for i in range(10))
axes = [("backend.megatron.lr", rates), ("backend.megatron.global_batch_size", batches)]
groups = ",".join("{params:{%s:[%s]}}" % axis for axis in axes)
setup = ConfigSetup(
    config_name="experiments/megatron_sanity_check", config_path=None, config_dir=Path("config"),
    overrides=["++sweep.type=product", f"++sweep.groups=[{groups}]"], pwd=".",
)
config = load_config_reference(config_setup=setup)
started = time.perf_counter()
points = {point.index: point for point in expand_sweep(config.sweep)}
jobs = resolve_sweep_with_dag(config, points, config_setup=setup, config_class=type(config))
seconds = time.perf_counter() - started
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"count": len(jobs), "seconds": seconds, "memory": memory}))
"""
OELLM_VARIABLES = (
    "CONTAINER_CACHE_DIR",
    "DATA_DIR",
    "HF_HOME",
    "OUTPUT_DIR",
    "SLURM_ACCOUNT",
    "SLURM_PARTITION",
    "SLURM_QOS",
)
"""What its configuration reads from the environment."""


@dataclass(frozen=True)
class Measurement:
    """One row of the table.

    :param count: points, or jobs
    :param memory: largest resident size in MiB
    :param note: how the number came about, where it was not simply measured
    """

    what: str
    count: int
    seconds: float
    memory: float
    note: str = ""


def native_spec(points: int) -> str:
    """Return a native spec of so many points: models, learning rates, seeds, a filter, a derived schedule."""
    seeds = ", ".join(map(str, range(points // 20)))
    return f"""
name: large
point: "{{{{ size }}}}_lr{{{{ lr }}}}_s{{{{ seed }}}}"
params: {{tokens: 2B}}
megatron:
  seq_length: 2048
  micro_batch_size: 8
  global_batch_size: "{{{{ micro_batch_size * nodes * gpus_per_node }}}}"
  weight_decay: "{{{{ 1e-4 / lr }}}}"
  lr_decay_style: WSD
  lr_warmup_iters: 10
  train_iters: "{{{{ iterations(tokens, seq_length, global_batch_size) }}}}"
  lr_decay_iters: "{{{{ train_iters }}}}"
  lr_wsd_decay_iters: "{{{{ train_iters // 5 }}}}"
  save_interval: 1000
sweep:
  filter: "{{{{ not (lr > 0.5 and num_layers > 100) }}}}"
  groups:
    - configs:
        - {{size: S, num_layers: 2, hidden_size: 64, num_attention_heads: 4}}
        - {{size: M, num_layers: 4, hidden_size: 96, num_attention_heads: 4}}
    - params:
        lr: [1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4, 8e-4, 9e-4, 1e-3]
        seed: [{seeds}]
stages:
  pretrain: {{kind: train}}
"""


def measure(
    what: str, command: list[str], *, repetitions: int = REPETITIONS, **options: object
) -> Measurement:
    """Return the best of a few runs of a command that prints its own measurement as JSON."""
    best: dict[str, float] | None = None
    for _ in range(repetitions):
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
        if done.returncode:
            raise RuntimeError(f"{what}: {done.stderr.strip().splitlines()[-1:]}")
        found = json.loads(done.stdout.strip().splitlines()[-1])
        if best is None or found["seconds"] < best["seconds"]:
            best = found
    assert best is not None
    return Measurement(what, int(best["count"]), best["seconds"], best["memory"])


def ours(what: str, spec: Path, until: str) -> Measurement:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return measure(what, [sys.executable, "-c", OURS, str(spec), until], env=environment)


def installed(
    name: str, repository: tuple[str, str], checkout: Path | None, directory: Path, *more: str
) -> tuple[str, Path]:
    """Install a tool into an environment of its own; return its Python and its checkout."""
    python = directory / name / "bin" / "python"
    source = checkout or directory / f"{name}-source"
    if not source.exists():
        address, commit = repository
        subprocess.run(["git", "clone", "--quiet", address, str(source)], check=True)
        subprocess.run(["git", "-C", str(source), "checkout", "--quiet", commit], check=True)
    if not python.exists():
        venv.create(directory / name, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(source), *more], check=True)
    return str(python), source


def autoexperiment(checkout: Path | None, directory: Path) -> Measurement:
    python, _ = installed("autoexperiment", AUTOEXPERIMENT, checkout, directory, "omegaconf", "clize")
    template = directory / "empty.sbatch"
    template.write_text("#!/bin/bash\n#SBATCH --job-name={name}\n", encoding="utf-8")
    spec = directory / "scaling_exps.yaml"
    text = SCALING_STUDY.read_text(encoding="utf-8")
    spec.write_text(re.sub(r"template: .*", f"template: {template}", text), encoding="utf-8")
    return measure("AutoExperiment: scaling study", [python, "-c", THEIRS_AUTOEXPERIMENT, str(spec)])


def oellm(checkout: Path | None, directory: Path) -> tuple[Measurement, Measurement, Measurement]:
    """Return two measurements, and what 10,000 points would take when each further point costs the same."""
    python, source = installed("oellm", OELLM, checkout, directory)
    environment = {**os.environ, **dict.fromkeys(OELLM_VARIABLES, "/tmp"), "USER": "user"}
    environment["HYDRA_STAGED_SWEEP_WORKERS"] = "1"
    first, second = (
        measure(
            f"oellm-autoexp: {count} points",
            [python, "-c", THEIRS_OELLM, str(count)],
            repetitions=1,
            cwd=source,
            env=environment,
        )
        for count in (100, 200)
    )
    each = (second.seconds - first.seconds) / (second.count - first.count)
    total = first.seconds + each * (10_000 - first.count)
    return (
        first,
        second,
        Measurement(
            "oellm-autoexp: 10,000 points",
            10_000,
            total,
            second.memory,
            f"extrapolated, {each * 1000:.0f} ms each",
        ),
    )


def parsed_options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--autoexperiment", type=Path)
    parser.add_argument("--oellm", type=Path)
    parser.add_argument("--environments", type=Path, help="keep the environments here")
    parser.add_argument("--only-ours", action="store_true")
    return parser.parse_args()


def main() -> int:
    options = parsed_options(__doc__ or "")
    rows: list[Measurement] = []
    ratios: list[tuple[str, float, float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.environments or Path(temporary)).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        specs = {count: directory / f"native_{count}.yaml" for count in (1000, 10_000, 100_000)}
        for count, path in specs.items():
            path.write_text(native_spec(count), encoding="utf-8")
        same_file = ours("ours: scaling study, AutoExperiment's file", SCALING_STUDY, "jobs")
        native = ours(
            "ours: scaling study, native (more stages)", ROOT / "sweep_specs" / "scaling_exps.yaml", "jobs"
        )
        points = {count: ours(f"ours: {count:,} points", path, "points") for count, path in specs.items()}
        plan = ours("ours: 10,000 points with their jobs' commands", specs[10_000], "plan")
        rows += [same_file, native, *points.values(), plan]
        if not options.only_ours:
            try:
                theirs = autoexperiment(options.autoexperiment, directory)
                rows.append(theirs)
                ratios.append(("1,080 jobs of AutoExperiment's file", theirs.seconds / same_file.seconds, 10))
                per_job = (theirs.seconds / theirs.count) / (native.seconds / native.count)
                ratios.append(("the same study natively, per job", per_job, 10))
            except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
                print(f"AutoExperiment is left out: {error}")
            try:
                measured = oellm(options.oellm, directory)
                rows += measured
                ratios.append(("10,000 points", measured[-1].seconds / points[10_000].seconds, 500))
                ratios.append(
                    ("10,000 points, ours with all commands", measured[-1].seconds / plan.seconds, 100)
                )
            except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
                print(f"oellm-autoexp is left out: {error}")
    for row in rows:
        print(f"{row.what:48} {row.count:8,} {row.seconds:10.3f} s {row.memory:8.0f} MiB  {row.note}")
    growth = points[100_000].seconds / points[10_000].seconds
    print(f"ten times the points take {growth:.1f} times as long")
    failed = growth > 13 or points[100_000].seconds > 10 or points[100_000].memory > 1024
    for what, ratio, wanted in ratios:
        print(f"{what:48} {ratio:10.1f} × faster (aim: {wanted} ×)")
        failed |= ratio < wanted
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
