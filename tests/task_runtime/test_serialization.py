"""Triggers are stored in Airflow's database: their serialized form must have all arguments."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import time
from typing import TYPE_CHECKING, Any

import pytest
from airflow.triggers.base import BaseTrigger

import airflow_megatron.triggers
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger
from airflow_megatron.task_runtime.deferring_trigger import DeferringTrigger
from airflow_megatron.task_runtime.file_trigger import ProducedFileTrigger
from airflow_megatron.triggers.checkpoint import CheckpointTrigger
from airflow_megatron.triggers.condition import ConditionTrigger
from airflow_megatron.triggers.log_pattern import LogPatternTrigger
from airflow_megatron.triggers.pause import PauseTrigger
from airflow_megatron.triggers.point_runs import PointRunsTrigger
from airflow_megatron.triggers.queue_room import QueueRoomTrigger
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping

CLUSTER = {
    "nonce": "17ab",
    "ssh_conn_id": "slurm_alps",
    "commands": {"cluster": "alps", "slurm_bin": "/opt/slurm/bin", "login_shell": True},
}
PRODUCER = {
    **CLUSTER,
    "producer_dir": "/r/.jobs/pretrain",
    "producer_attempt": 3,
    "poll_interval": 7.0,
    "deadline": 1e9,
}
GIVEN: dict[type[BaseTrigger], dict[str, Any]] = {
    SlurmJobTrigger: {
        **CLUSTER,
        "job_id": "7",
        "job_name": "x.p.pretrain.a1",
        "attempt_dir": "/r/.jobs/pretrain/1",
        "log_file": "/r/logs/pretrain-1.out",
        "kind": "train",
        "train_iters": 300,
        "final_evaluation": True,
        "checkpoint_dir": "/r/checkpoints",
        "required_files": ["/r/a"],
        "log_from": 17,
        "pieces": ["/r/converted_checkpoints/*.done"],
        "poll_interval": 7.0,
        "visibility_window": 20.0,
        "deadline": 1e9,
        "cancel_on_kill": False,
        "chained": True,
        "behind": ["/r/.jobs/convert"],
        "conditions": {"cancel": {"kind": "file", "path": "/r/stop"}, "check_interval": 60.0},
        "health": {"rules": {"nan": {"do": "fail"}}, "intervals": [50]},
        "memory": {"log": {"offset": 17}, "events": {"acted": {"nan": 1}}},
        "resumes_from": 10,
        "signatures": ["site.yaml"],
        "secrets": {"HF_TOKEN": {"variable": "hf_token"}},
        "results": {"sweep": "x", "run": "manual__1", "point": "p", "stage": "pretrain"},
        "taken_up": 2,
        "carry": {"handle": {"attempt": 1}},
    },
    ConditionTrigger: {
        **CLUSTER,
        "condition": {"kind": "finished", "path": "/r/.jobs/pretrain"},
        "attempts": {"/r/.jobs/pretrain": 2},
        "check_interval": 60.0,
        "poll_interval": 7.0,
        "deadline": 1e9,
        "finish": {"kind": "file", "path": "/r/done"},
        "carry": {"number": 2},
    },
    CheckpointTrigger: {**PRODUCER, "checkpoint_dir": "/r/checkpoints", "iteration": 130},
    LogPatternTrigger: {**PRODUCER, "log_file": "/r/logs/a-1.out", "pattern": "iteration +5/"},
    QueueRoomTrigger: {
        **CLUSTER,
        "job_name": "x.p.pretrain.a1",
        "since": 1e9,
        "limits": [[300, ""], [20, "x."]],
        "refused_at": 40,
        "recovers": True,
        "poll_interval": 7.0,
        "carry": {"number": 2},
    },
    PauseTrigger: {"nonce": "17ab", "until": 1e9, "carry": {"number": 2}},
    PointRunsTrigger: {"nonce": "17ab", "dag_id": "x.point", "run_ids": ["a", "b"], "poll_interval": 7.0},
}
"""Every trigger with a value other than the default for every argument."""


def arguments(trigger: type[BaseTrigger]) -> Mapping[str, inspect.Parameter]:
    """Return the named arguments of a trigger and the triggers that it is built on."""
    found: dict[str, inspect.Parameter] = {}
    for base in trigger.__mro__:
        if base is BaseTrigger:
            break
        parameters = inspect.signature(base.__init__).parameters.values()
        found |= {item.name: item for item in parameters if item.kind is item.KEYWORD_ONLY}
    return found


def test_no_trigger_is_forgotten_here() -> None:
    classes = set()
    for module in pkgutil.iter_modules(airflow_megatron.triggers.__path__):
        found = importlib.import_module(f"{airflow_megatron.triggers.__name__}.{module.name}")
        classes |= {
            item
            for item in vars(found).values()
            if isinstance(item, type) and issubclass(item, BaseTrigger) and item.__module__ == found.__name__
        }
    assert classes - {DeferringTrigger, ClusterTrigger, ProducedFileTrigger} == set(GIVEN)


@pytest.mark.parametrize("trigger", GIVEN, ids=lambda trigger: trigger.__name__)
def test_every_argument_survives(trigger: type[BaseTrigger]) -> None:
    given = GIVEN[trigger]
    assert set(given) == set(arguments(trigger))
    assert all(given[name] != item.default for name, item in arguments(trigger).items())
    path, stored = trigger(**given).serialize()
    assert stored == given
    module, _, name = path.rpartition(".")
    again = getattr(importlib.import_module(module), name)(**json.loads(json.dumps(stored)))
    assert type(again) is trigger
    assert again.serialize() == (path, stored)


@pytest.mark.parametrize("trigger", GIVEN, ids=lambda trigger: trigger.__name__)
def test_required_arguments_are_enough(trigger: type[BaseTrigger]) -> None:
    needed = {name for name, item in arguments(trigger).items() if item.default is item.empty}
    _, stored = trigger(
        **{name: value for name, value in GIVEN[trigger].items() if name in needed}
    ).serialize()
    json.dumps(stored)
    assert set(stored) == set(GIVEN[trigger])


@pytest.mark.slow
async def test_a_pause_hands_back_what_it_was_given() -> None:
    started = time.monotonic()
    events = [event async for event in PauseTrigger(until=time.time() + 0.1, carry={"number": 2}).wait()]
    assert [event.payload for event in events] == [{"number": 2}]
    assert time.monotonic() - started >= 0.09


async def test_a_pause_that_is_over_does_not_wait() -> None:
    started = time.monotonic()
    assert [event.payload async for event in PauseTrigger(until=0).wait()] == [{}]
    assert time.monotonic() - started < 30
