"""The folder for index files of trainings: one for each sweep, or the user's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job

MEGATRON = {
    **{"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64, "mock_data": True},
    **{"max_position_embeddings": 64, "tokenizer_type": "NullTokenizer", "vocab_size": 100, "lr": 1e-3},
    **{"micro_batch_size": 2, "global_batch_size": 4, "train_iters": 100, "save_interval": 50},
}
SHARED = "/runs/s/.data_cache"
STARTER = "/ours/upstream_index_cache.py"


def jobs(
    trainer: str, megatron: dict[str, Any] | None = None, arguments: dict[str, Any] | None = None
) -> tuple[Job, ...]:
    own = {"pretrain": {"kind": "train"}, "cooldown": {"kind": "train", "parent": "pretrain"}}
    spec = {
        **{"name": "s", "point": "p{{ seed }}", "trainer": trainer, "release": "core_v0.16.1"},
        "sweep": {"params": {"seed": [1, 2]}},
        "megatron": {**MEGATRON, **(megatron or {})},
        "stages": {
            "pretrain": own["pretrain"],
            "cooldown": {**own["cooldown"], "start": {"checkpoint": 50}},
        },
    }
    checkout = {"checkout": "/upstream"} if trainer == "megatron_lm" else {}
    profile = ClusterProfile.model_validate(
        {
            **{"name": "alps", "ssh_conn_id": "alps", "run_root": "/runs/", "python": "/venv/bin/python"},
            **{"megatron_lm_dir": "/ours", "trainers": {trainer: {**checkout, "arguments": arguments or {}}}},
        }
    )
    found = check_sweep(load_sweep_text(json.dumps(spec), "s.yaml"), profile).jobs
    assert len(found) == 4
    return found


def caches(*given: Any, **more: Any) -> dict[str, str | None]:
    """Return the folder of each job, with ``*`` behind those that this project's program shares."""
    found: dict[str, str | None] = {}
    for job in jobs(*given, **more):
        words = job.command
        folder = words[words.index("--data-cache-path") + 1] if "--data-cache-path" in words else None
        found[job.name] = f"{folder}*" if STARTER in words else folder
    return found


@pytest.mark.slow
def test_all_trainings_of_a_sweep_share_one() -> None:
    assert {*caches("megatron_lm").values()} == {f"{SHARED}*"}
    assert {*caches("megatron_core").values()} == {None}  # in memory
    shared = {"data_cache_path": "{{ sweep_dir }}/.data_cache"}
    assert {*caches("megatron_lm", shared).values()} == {f"{SHARED}*"}
    assert {*caches("megatron_core", shared).values()} == {SHARED}


def test_a_training_that_finished_with_a_folder_of_its_own_is_the_same_job() -> None:
    own = {"data_cache_path": "{{ run_dir }}/data_cache"}
    digests = [[job_digest(job) for job in jobs("megatron_lm", given)] for given in ({}, own)]
    assert digests[0] == digests[1]
    assert len({*digests[0]}) == 4
    others = [job_digest(job) for job in jobs("megatron_lm", {"data_cache_path": "/mine"})]
    assert not {*others} & {*digests[0]}


@pytest.mark.parametrize("trainer", ["megatron_lm", "megatron_core"])
def test_a_folder_of_the_users_own_wins(trainer: str) -> None:
    assert {*caches(trainer, {"data_cache_path": "/mine"}).values()} == {"/mine"}
    assert {*caches(trainer, arguments={"data_cache_path": "/site"}).values()} == {"/site"}
    assert {*caches(trainer, {"data_cache_path": None}).values()} == {None}
    each = caches(trainer, {"data_cache_path": "{{ run_dir }}/data_cache"})
    assert len({*each.values()}) == 4
