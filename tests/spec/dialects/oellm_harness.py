"""What the tests of the oellm-autoexp dialect share: a file with places for further lines."""

from __future__ import annotations

from airflow_megatron.spec.spec_files import load_sweep_text

TEXT = """\
job:
  name: "m_${backend.megatron.lr}"
  JOB: 1
backend:
  class_name: MegatronBackend
  BACKEND: 1
  megatron:
    num_layers: 2
    lr: 1e-3
    train_iters: 100
    save_interval: 50
    MEGATRON: 1
slurm:
  sbatch:
    nodes: 2
    gpus_per_node: 4
    cpus_per_task: 12
    time: "01:00:00"
    SBATCH: 1
  SLURM: 1
TOP: 1
sweep:
  type: product
  groups:
    - params:
        backend.megatron.lr: [1e-3, 2e-3]
        SWEPT: 1
"""


def text_of(**lines: str) -> str:
    """Return a file in which each word above stands for a line, or for nothing."""
    text = TEXT
    for word in ("JOB", "BACKEND", "MEGATRON", "SBATCH", "SLURM", "TOP", "SWEPT"):
        text = text.replace(f"{word}: 1", lines.get(word.lower(), "{}"))
    return "\n".join(line for line in text.splitlines() if line.strip() != "{}") + "\n"


def warnings_of(**lines: str) -> list[str]:
    """Return the warnings about such a file."""
    sweep = load_sweep_text(text_of(**lines), "study.yaml")
    return [problem.message for problem in sweep.warnings()]
