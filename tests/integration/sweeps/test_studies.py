"""Shipped specs with their trainer, unmodified Megatron-LM: a selection of ``make studies``."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from blocks import yaml_blocks
from howto_pages import write_files
from studies import STUDIES, Study
from study_site import RELEASE, StudySite
from sweep_site import PROJECT
from upstream import UpstreamMissingError, find_upstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.integration, pytest.mark.trainer]


@pytest.fixture(scope="module")
def study_site(
    cluster: SlurmCluster, migrated_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StudySite]:
    try:
        upstream = find_upstream(RELEASE, tmp_path_factory.mktemp("upstream"))
    except UpstreamMissingError as error:
        pytest.skip(str(error))
    site = StudySite(tmp_path_factory.mktemp("studies"), cluster, upstream)
    site.prepare(migrated_home)
    try:
        yield site
    finally:
        site.stop()


def study(spec: str, label: str = "", select: str | None = None) -> Study:
    (found,) = (each for each in STUDIES if (each.spec, each.label) == (spec, label))
    return found if select is None else Study(spec, found.settings, select, label)


@pytest.mark.long
def test_the_quickstart_by_upstream(study_site: StudySite) -> None:
    """Trunk, cooldowns, conversions, evaluations; validation and test losses in the report."""
    row = study_site.run(study("quickstart", "trainer=megatron_lm"))
    assert (row.outcome, row.jobs, row.reason) == ("finished", 10, "")
    folder = study_site.local / "results" / "quickstart-trainer_megatron_lm"
    branches = json.loads((folder / "results.json").read_text())
    assert len(branches) == 3
    for branch in branches:
        assert 0 < branch["validation_loss"] < 10
        assert 0 < branch["test_loss"] < 10


@pytest.mark.parametrize(
    ("spec", "select"),
    [
        ("parallelism_gpt2_large", "sp2"),
        pytest.param("parallelism_scaling", "vpp2_weak,ep2_weak", marks=pytest.mark.long),
    ],
)
def test_a_benchmark_by_upstream(spec: str, select: str, study_site: StudySite) -> None:
    row = study_site.run(study(spec, select=select))
    assert (row.outcome, row.reason) == ("finished", "")
    rows = json.loads((study_site.local / "results" / spec / "benchmark.json").read_text())
    assert [(row["outcome"], row["iterations"]) for row in rows] == [("ok", 8)] * row.jobs


@pytest.mark.long
def test_the_spec_of_the_readme(study_site: StudySite, tmp_path: Path) -> None:
    """The spec runs unchanged; its cooldown reaches a lower loss than its trunk."""
    (text,) = (block.text for block in yaml_blocks() if block.page == "README.md" and "point:" in block.text)
    path = tmp_path / "learning-rates.yaml"
    path.write_text(text)
    row = study_site.run(Study("learning-rates", ("poll_interval=1",), "lr0.003"), path)
    assert (row.outcome, row.jobs, row.reason) == ("finished", 3, "")
    branches = json.loads((study_site.local / "results" / "learning-rates" / "results.json").read_text())
    loss = {branch["branch"]: branch["validation_loss"] for branch in branches}
    assert 0 < loss["cooldown"] < loss["pretrain"]


TENTH = {
    "wsd": (
        "stages.trunk.megatron.train_iters=40",
        "stages.trunk.megatron.save_interval=8",
        "stages.trunk.megatron.lr_warmup_iters=2",
        "stages.decay.for_each.length=[20,40]",
    ),
    "find_lr": (
        "stages.search.megatron.train_iters=20",
        "stages.pretrain.megatron.train_iters=20",
        "stages.pretrain.megatron.save_interval=20",
        "stages.pretrain.megatron.lr_warmup_iters=2",
    ),
}
"""A tenth of the iterations of the how-tos' trainings."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "spec", "select", "jobs"),
    [("cooldowns.md", "wsd", "lr0.002", 8), ("lr-finder.md", "find_lr", "d64", 3)],
)
def test_the_files_of_a_howto(
    page: str, spec: str, select: str, jobs: int, study_site: StudySite, tmp_path: Path
) -> None:
    """The files of the page run with a tenth of the iterations."""
    path = write_files(page, tmp_path) / f"{spec}.yaml"
    settings = ("poll_interval=1", "megatron.log_interval=1", *TENTH[spec])
    row = study_site.run(Study(spec, settings, select), path)
    assert (row.outcome, row.jobs, row.reason) == ("finished", jobs, "")


@pytest.mark.long
def test_out_of_memory_is_what_was_expected(study_site: StudySite) -> None:
    """A training ends with CUDA's out-of-memory message, as the spec expects."""
    row = study_site.run(study("context_parallelism_gpt2_xl"))
    assert row.outcome == "finished"
    assert row.reason == "out of memory, as expected: r1_cp1_gbs4_len64"


OF_SENTENCES = """\
name: {name}
poll_interval: 1
trainer: megatron_lm
release: core_v0.16.1
entry: pretrain_{name}.py
point: only
megatron:
  {{hidden_size: 64, num_attention_heads: 4, kv_channels: 16, ffn_hidden_size: 128, max_position_embeddings: 64,
   micro_batch_size: 2, global_batch_size: 4, train_iters: 10, lr: 1e-3, lr_decay_style: linear, split: "80,10,10",
   tokenizer_type: BertWordPieceCase, legacy_tokenizer: true, vocab_file: {place}/vocab.txt,
   data_path: ["{place}/text"], save_interval: 10, eval_interval: 10, eval_iters: 1, log_interval: 1, num_workers: 0,
   {own}}}
stages: {{pretrain: {{kind: train}}}}
"""
OWN = {
    "bert": "num_layers: 2, seq_length: 64, spec: [local], attention_backend: local",
    "t5": "encoder_num_layers: 2, decoder_num_layers: 2, encoder_seq_length: 64, decoder_seq_length: 64, "
    "vocab_extra_ids: 20",
}


@pytest.mark.long
@pytest.mark.parametrize("name", ["bert", "t5"])
def test_upstreams_other_scripts_train(name: str, study_site: StudySite, tmp_path: Path) -> None:
    python = study_site.local / "venv-trainer/bin/python"
    subprocess.run([python, PROJECT / "tests/studies/word_pieces.py", tmp_path], check=True)
    path = tmp_path / f"{name}.yaml"
    path.write_text(OF_SENTENCES.format(name=name, place=tmp_path, own=OWN[name]))
    row = study_site.run(Study(name, select="only"), path)
    assert (row.outcome, row.jobs, row.reason) == ("finished", 1, "")
    (branch,) = json.loads((study_site.local / "results" / name / "results.json").read_text())
    assert 3 < branch["validation_loss"] < 6
