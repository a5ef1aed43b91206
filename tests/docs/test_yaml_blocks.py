"""The reader of each YAML block of the documentation accepts it; complete specs pass lint."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from blocks import Block, yaml_blocks

from airflow_megatron.megatron.arguments.tables import argument_table
from airflow_megatron.plan.sweep_cluster import sweep_clusters
from airflow_megatron.plan.sweep_plan import check_on_clusters, check_sweep
from airflow_megatron.requirements.permitted_secrets import CONNECTIONS, VARIABLES
from airflow_megatron.slurm.verdicts.signatures import read_signatures
from airflow_megatron.spec.documents.yaml_document import load_yaml_text
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.schema import ClusterSection, StageSection, SweepSpecSection
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

SPEC = """
name: around
point: "{{ size }}_lr{{ lr }}_seed{{ seed }}"
params: {run: r, base: /runs/base, step: 1000, reported_ms: 5, expected: "", tokenizer: /t, tasks_dir: /t,
  tasks: [heldout], data: /data, size: S}
megatron:
  {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 64, max_position_embeddings: 64,
   micro_batch_size: 4, global_batch_size: 192, train_iters: 30000, save_interval: 1000, tokenizer_type: NullTokenizer,
   vocab_size: 100, mock_data: true, lr_decay_style: constant, position_embedding_type: rope, normalization: RMSNorm,
   swiglu: true, disable_bias_linear: true, untie_embeddings_and_output_weights: true, lr: 1e-3, seed: 1}
sweep: {params: {lr: [1e-3]}}
slurm: {nodes: 4}
stages:
  prepare_data: {kind: command, scope: sweep, command: ["true"]}
  prepare_c4: {kind: command, scope: sweep, command: ["true"]}
  prepare_wiki: {kind: command, scope: sweep, command: ["true"]}
  pretrain: {kind: train, parent: prepare_data}
  cooldown:
    kind: train
    parent: pretrain
    start: {checkpoint: 28000}
    megatron: {train_iters: 32000, override_opt_param_scheduler: true}
"""
TRAINERS = {"docs/megatron-deepspeed.md": "megatron_deepspeed"}
PROFILE = """
ssh_conn_id: slurm_somewhere
run_root: /scratch/me
python: /opt/venv/bin/python
megatron_lm_dir: /opt/Megatron-LM
"""
BLOCKS = [block for block in yaml_blocks() if not block.page.startswith("docs/howto/")]  # see test_howto.py


@pytest.fixture(autouse=True)
def _operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permit specs to read the variables and connections in the blocks, as on the page about secrets."""
    monkeypatch.setenv(CONNECTIONS, "wandb,bucket")
    monkeypatch.setenv(VARIABLES, "site_token")


OF_STAGES = {*StageSection.model_fields} - {*SweepSpecSection.model_fields}


def merged(base: Any, given: Any) -> Any:
    if isinstance(base, dict) and isinstance(given, dict):
        return {
            key: merged(base.get(key), given[key]) if key in given else base[key] for key in {**base, **given}
        }
    return given


def is_spec(content: Any) -> bool:
    return isinstance(content, dict) and "point" in content


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_it_is_read(block: Block, tmp_path: Path) -> None:
    content = load_yaml_text(block.text, str(block)).data
    if "signatures" in content and isinstance(content["signatures"][0], dict):
        path = tmp_path / "signatures.yaml"
        path.write_text(block.text)
        assert read_signatures(path)
    elif is_spec(content):
        plan = check_sweep(load_sweep_text(block.text, str(block)))
        assert plan.warnings == ()
        assert plan.jobs
    elif (
        content.keys() <= ClusterSection.model_fields.keys()
        and not content.keys() <= SweepSpecSection.model_fields.keys()
    ):
        profile = merged(yaml.safe_load(PROFILE), content)
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(profile))
        load_cluster("mine", tmp_path)
    else:
        spec = around(content)
        if block.page in TRAINERS:
            spec |= {"trainer": TRAINERS[block.page], "cluster": "example-slurm"}
            spec["megatron"] = merged(of_deepspeed(spec["megatron"]), content.get("megatron", {}))
        sweep = load_sweep_text(yaml.safe_dump(spec, sort_keys=False), str(block))
        check_on_clusters(sweep, sweep_clusters(sweep))


def of_deepspeed(megatron: dict[str, Any]) -> dict[str, Any]:
    """Return settings of Megatron-DeepSpeed in place of upstream's."""
    upstreams = ("position_embedding_type", "normalization", "disable_bias_linear", "mock_data")
    return {name: value for name, value in megatron.items() if name not in upstreams}


def around(part: dict[str, Any]) -> dict[str, Any]:
    """Return a spec that holds a part: top-level keys, stages, or keys of a stage."""
    spec = copy.deepcopy(load_yaml_text(SPEC, "around").data)
    if part.keys() <= SweepSpecSection.model_fields.keys():
        if "benchmark" in part:
            del spec["stages"]
        if "sweep" in part:
            del spec["sweep"]
        result: dict[str, Any] = merged(spec, {key: value for key, value in part.items() if key != "extends"})
        return result
    if part.keys() <= StageSection.model_fields.keys():
        return dict(merged(spec, {"stages": {"pretrain": part}}))
    if all(argument_table("core_v0.16.1").get(name) for name in part):
        del spec["megatron"]["mock_data"]
        held_out = {"valid_data_path": ["/data/valid"], "test_data_path": ["/data/test"]}
        return dict(merged(spec, {"megatron": {**held_out, **part}}))
    assert all(isinstance(value, dict) and "kind" in value for value in part.values()), (
        f"{sorted(part)} are neither keys of a spec, nor of a stage, nor stages"
    )
    return dict(merged(spec, {"stages": part}))


def test_all_blocks_are_seen() -> None:
    assert sum("```yaml" in line for line in open_pages()) == len(BLOCKS)
    assert any(
        is_spec(load_yaml_text(block.text, str(block)).data) for block in BLOCKS if block.page == "README.md"
    )


def open_pages() -> list[str]:
    from blocks import pages

    return [line for page in pages() if page.parent.name != "howto" for line in page.read_text().splitlines()]
