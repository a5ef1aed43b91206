"""Upstream's pretrain_gpt.py on two nodes, and a cooldown from its checkpoint: losses equal those of this trainer."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from driven_job import DrivenJob, environment
from sweep_site import PROJECT
from upstream import UpstreamMissingError, find_upstream

from airflow_megatron.megatron.logs.log_lines import IterationRecord, LogParser, ValidationRecord
from airflow_megatron.plan.run_results import fetch_snapshot
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.results.readings.plan_rows import plan_row
from airflow_megatron.results.readings.sweep_jobs import read_jobs
from airflow_megatron.results.tables.branch_points import BranchPoint, branch_points
from airflow_megatron.results.tables.trainings import result_table
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

    from airflow_megatron.megatron.logs.log_lines import Record

pytestmark = [pytest.mark.integration, pytest.mark.trainer, pytest.mark.long]

RELEASES = ("core_v0.16.1", "core_v0.19.0")
TEXT = "--train-tokens 60000 --valid-tokens 8000 --test-tokens 8000 --heldout-pieces 3 --questions 12"
SPEC = """\
name: {name}
point: only
trainer: {trainer}
release: {release}
params: {{data: {data}}}
megatron:
  {{num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 64, max_position_embeddings: 64,
   position_embedding_type: rope, normalization: RMSNorm, swiglu: true, disable_bias_linear: true,
   attention_dropout: 0.0, hidden_dropout: 0.0, tokenizer_type: HuggingFaceTokenizer,
   tokenizer_model: "{{{{ data }}}}/tokenizer", train_data_path: ["0.3", "{{{{ data }}}}/train_text_document",
   "0.7", "{{{{ data }}}}/valid_text_document"], valid_data_path: ["{{{{ data }}}}/valid_text_document"],
   test_data_path: ["{{{{ data }}}}/test_text_document"], micro_batch_size: 2, global_batch_size: 4, lr: 1e-2,
   lr_warmup_iters: 3, lr_decay_style: WSD, lr_wsd_decay_style: linear, log_interval: 1, eval_interval: 12,
   eval_iters: 2, num_workers: 0}}
slurm: {{time: 30m}}
stages:
  pretrain:
    kind: train
    slurm: {{nodes: 2}}
    megatron: {{train_iters: 12, lr_decay_iters: 16, lr_wsd_decay_iters: 4, save_interval: 4}}
  cooldown:
    kind: train
    parent: pretrain
    start: {{checkpoint: 8}}
    megatron: {{train_iters: 12, lr_decay_iters: 12, lr_wsd_decay_iters: 4, override_opt_param_scheduler: true,
      save_interval: 12}}
"""


@pytest.fixture(scope="session")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkouts of upstream on this machine, by release, including 0.16.1."""
    place = tmp_path_factory.mktemp("upstream")
    found: dict[str, Path] = {}
    try:
        for release in RELEASES:
            found[release] = find_upstream(release, place)
    except UpstreamMissingError as error:
        if not found:
            pytest.skip(str(error))
    return found


def records(log: Path) -> list[Record]:
    parser = LogParser()
    return [*parser.feed(log.read_bytes()), *parser.finish()]


def sweep_of(trainer: str, release: str, place: Path) -> str:
    name = f"{trainer}_{release.replace('.', '_')}"
    return SPEC.format(name=name, trainer=trainer, release=release, data=place / "data")


def trained(spec: str, place: Path) -> dict[str, list[Record]]:
    """Run the two trainings of the sweep and return their parsed logs."""
    name = load_sweep_text(spec, "upstream.yaml").name
    logs = {}
    for stage in ("pretrain", "cooldown"):
        job = DrivenJob(spec, f"{name}.only.{stage}")
        verdict = job.run()
        log = place / job.job.log_file(1)
        assert verdict["outcome"] == "finished", log.read_text()[-4000:]
        logs[stage] = records(log)
    return logs


def cooldowns(spec: str, cluster: SlurmCluster) -> list[BranchPoint]:
    """Return the branches of the sweep from its report."""
    jobs = check_sweep(load_sweep_text(spec, "upstream.yaml"), load_cluster("local")).jobs
    rows = read_jobs(plan_row(job) for job in jobs)
    return branch_points(result_table(fetch_snapshot(jobs, cluster.run), rows))


def losses(found: list[Record]) -> dict[str, float | None]:
    """Return the losses by their kind and iteration.

    Upstream includes the first iteration after a start again in the next line, so that line covers two iterations.
    """
    iterations = [record for record in found if isinstance(record, IterationRecord)]
    named: dict[str, float | None] = {
        f"iteration {record.iteration}": record.loss for index, record in enumerate(iterations) if index != 1
    }
    for record in found:
        if isinstance(record, ValidationRecord):
            named[f"{record.split} {record.iteration} {record.final}"] = record.loss
    return named


def test_upstream_and_our_trainer_agree(
    checkouts: dict[str, Path], cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "venv-trainer").symlink_to(local_dir() / "venv-trainer")
    (tmp_path / "Megatron-LM").mkdir()
    for release, folder in checkouts.items():
        (tmp_path / "Megatron-LM" / release).symlink_to(folder)
    for name, value in environment(tmp_path, cluster).items():
        monkeypatch.setenv(name, value)
    prepare = (PROJECT / "Megatron-LM" / "prepare_data.py", "--output", tmp_path / "data", *TEXT.split())
    subprocess.run([tmp_path / "venv-trainer" / "bin" / "python", *prepare], check=True)
    ours = trained(sweep_of("megatron_core", RELEASES[0], tmp_path), tmp_path)
    for release in checkouts:
        sweep = sweep_of("megatron_lm", release, tmp_path)
        theirs = trained(sweep, tmp_path)
        (cooldown,) = cooldowns(sweep, cluster)
        assert (cooldown.checkpoint, cooldown.first_iteration, cooldown.problems) == (8, 9, ())
        for stage, found in theirs.items():
            assert losses(found) == pytest.approx(losses(ours[stage]), rel=1e-4), f"{release} {stage}"
