"""``airflow-megatron fit`` on a login node with the logs of runs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from login_site import LoginSite

    from airflow_megatron.spec.model.jobs import Job

pytestmark = pytest.mark.slow

SPEC = """\
name: study
description: sizes and learning rates
cluster: site
trainer: megatron_core
release: core_v0.16.1
point: "h{{ hidden_size }}_lr{{ lr }}"
megatron:
  num_attention_heads: "{{ hidden_size // 32 }}"
  seq_length: 256
  max_position_embeddings: 256
  micro_batch_size: 8
  global_batch_size: 16
  tokenizer_type: NullTokenizer
  vocab_size: 1000
  mock_data: true
  train_iters: 100
  lr_decay_iters: 100
  save_interval: 100
  eval_interval: 100
  eval_iters: 2
sweep:
  type: product
  groups:
    - configs:
        - {num_layers: 2, hidden_size: 64}
        - {num_layers: 4, hidden_size: 128}
        - {num_layers: 8, hidden_size: 256}
    - params:
        lr: [3.75e-4, 7.5e-4, 1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2]
stages:
  pretrain: {kind: train}
"""


def leave_log(site: LoginSite, job: Job, number: int) -> float:
    """Write the log of a training whose final loss lies on a parabola; return the best learning rate."""
    layers, hidden, rate = (float(job.params[name]) for name in ("num_layers", "hidden_size", "lr"))
    parameters = int(12 * layers * hidden**2 + 1000 * hidden)
    best = 3e-3 * (1e6 / parameters) ** 0.3
    loss = (2 + (parameters / 1e5) ** -0.12) * math.exp(0.01 * math.log(rate / best) ** 2)
    site.finished(job, str(number))
    log = site.place / job.run_dir / "logs" / "pretrain-1.out"
    log.parent.mkdir(parents=True)
    log.write_text(
        f" > number of parameters on (tensor, pipeline) model parallel rank (0, 0): {parameters}\n"
        "[before the start of training step] datetime: 2026-11-22 09:00:00.000000 \n"
        " [2026-11-22 09:01:00.000000] iteration      100/     100 | consumed samples:         1600 |"
        f" elapsed time per iteration (ms): 125.0 | learning rate: 0.000000E+00 | global batch size:    16 |"
        f" lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 0.908 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |\n"
        "[after training is done] datetime: 2026-11-22 09:02:00.000000 \n"
        f" validation loss at iteration 100 on validation set | lm loss value: {loss:.6E} | lm loss PPL:"
        f" {math.exp(loss):.6E} | \n"
    )
    return best


def test_a_run_is_fitted_and_the_next_spec_lints(site: LoginSite) -> None:
    site.spec.write_text(SPEC)
    best = [leave_log(site, job, 100 + number) for number, job in enumerate(site.run_sweep("first"))]
    answer = site.call("fit", "study", "--export", "sweep_specs/next.yaml")
    assert answer.status == 0, answer.stderr
    assert "N: unpadded parameters; validation loss; in brackets: 95 % intervals" in answer.stdout
    assert "Laws of the optimum" in answer.stdout
    assert "wrote sweep_specs/next.yaml: 1 job, no errors" in answer.stderr
    assert site.call("lint", "sweep_specs/next.yaml").status == 0
    written = (site.place / "sweep_specs" / "next.yaml").read_text()
    # the prediction is for the trained tokens: 100 iterations of 16 samples of 256 tokens
    assert "D 410k tokens" in written
    assert [
        path.name for path in (site.place / "sweep_specs").iterdir() if path.name.startswith(".fit")
    ] == []
    answer = site.call("fit", "study", "--export", "sweep_specs/next.yaml", "--scale", "2")
    assert (answer.status, answer.stdout) == (1, "")
    assert "sweep_specs/next.yaml exists already: choose another file, or add --overwrite" in answer.stderr
    assert (site.place / "sweep_specs" / "next.yaml").read_text() == written
    answer = site.call("fit", "study", "--export", "sweep_specs/next.yaml", "--scale", "2", "--overwrite")
    assert answer.status == 0, answer.stderr
    assert "# 2 times the largest size" in (site.place / "sweep_specs" / "next.yaml").read_text()
    answer = site.call("fit", "study", "--format", "json", "--kind", "optimum", "--kind", "optimum-law")
    assert answer.status == 0, answer.stderr
    (family,) = json.loads(answer.stdout)["families"]
    rates = [row["estimates"]["lr"] for row in family["fits"]["optimum"]]
    for rate, true in zip(rates, best[::7], strict=True):
        assert rate["low"] <= true <= rate["high"]
    answer = site.call(
        "fit", "study", "--parameters", "non-embedding", "--format", "json", "--kind", "optimum"
    )
    assert answer.status == 0, answer.stderr
    (family,) = json.loads(answer.stdout)["families"]
    # the log's 162,304 without 1,024 x 64 of the padded vocabulary and 256 x 64 of the positions
    assert family["fits"]["optimum"][0]["name"].startswith("N 80.4k")


def test_a_sweep_without_losses(site: LoginSite) -> None:
    site.run_sweep("first")
    answer = site.call("fit", "study")
    assert answer.status == 1
    assert answer.stderr == "there is no finished run to fit\n"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("sweep_specs/study.yaml", "is the sweep's own spec"),
        ("nowhere/next.yaml", "is not a file in an existing folder"),
        ("sweep_specs", "is not a file in an existing folder"),
    ],
)
def test_a_target_that_cannot_be_written_is_refused_before_anything_is_read(
    site: LoginSite, target: str, problem: str
) -> None:
    site.spec.write_text(SPEC)
    answer = site.call("fit", "study", "--export", target, "--overwrite")
    assert (answer.status, answer.stdout) == (1, "")
    assert problem in answer.stderr
    assert site.spec.read_text() == SPEC


def test_a_next_spec_with_errors_leaves_no_file(site: LoginSite) -> None:
    site.spec.write_text(SPEC)
    for number, job in enumerate(site.run_sweep("first")):
        leave_log(site, job, 100 + number)
    broken = SPEC.replace("  train_iters: 100\n", "  train_iters: 100\n  no_such_argument: 1\n")
    site.spec.write_text(broken)
    answer = site.call("fit", "study", "--export", "sweep_specs/next.yaml")
    assert answer.status == 1
    assert "no_such_argument" in answer.stderr
    assert [path.name for path in (site.place / "sweep_specs").iterdir()] == ["study.yaml"]
