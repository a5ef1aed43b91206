"""A user who may trigger a run gets only the jobs of the spec, on the clusters of the spec."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from example_specs import CHAIN

from airflow_megatron.operators.plan_sweep import PlanSweepOperator
from airflow_megatron.operators.resolve_point import ResolvePointOperator
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import cluster_names, load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.task_runtime.run_configuration import SWEEP_KEYS, refuse_unknown_keys

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = "#!/bin/bash\ntouch /tmp/owned\n"
JOB = {
    "name": "x",
    "script": SCRIPT,
    "command": ["touch", "/tmp/owned"],
    "run_dir": "/tmp",
    "cluster": "local",
}
POINT = "lr0.004"
STAGES = [instance.name for instance in load_sweep_text(CHAIN, "s.yaml").tree]


class Instance:
    try_number, max_tries = 1, 2

    def __init__(self, dag_id: str, run_id: str) -> None:
        self.dag_id, self.run_id = dag_id, run_id
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def get_task_states(self, **_: Any) -> dict[str, Any]:
        return {}


@pytest.fixture(autouse=True)
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    file = tmp_path / "chain.yaml"
    file.write_text(CHAIN)
    return file


def resolved(file: Path, conf: Any) -> dict[str, Any]:
    instance = Instance("chain.point", POINT)
    task = ResolvePointOperator(task_id="resolve", spec_file=str(file), sweep="chain", stages=STAGES)
    context: Any = {"ti": instance, "dag_run": SimpleNamespace(conf=conf), "params": {}}
    try:
        task.execute(context)
    except AirflowFailException:
        assert instance.pushed == {}
        raise
    return instance.pushed


def planned(file: Path) -> dict[str, Any]:
    task = PlanSweepOperator(task_id="plan", spec_file=str(file), cluster="local")
    run = SimpleNamespace(conf={})
    found: dict[str, Any] = task.execute({"ti": Instance("chain", "run1"), "dag_run": run, "params": {}})  # type: ignore[typeddict-item]
    return found


OWN_JOBS = (
    *(
        {"pretrain": JOB},
        {"prepare": JOB},
        {"pretrain": {**JOB, "pin": "0" * 64}},
        {},
        [],
        "x",
        None,
        [JOB],
        1,
    ),
    *({"__class__": JOB}, {"../x": JOB}, dict.fromkeys(STAGES, JOB)),
)


@pytest.mark.parametrize("jobs", OWN_JOBS)
@pytest.mark.parametrize(
    "more", [{}, {"cluster": "local"}, {"pin": "0" * 64, "run": "run1"}, {"digest": "0" * 16}]
)
def test_jobs_of_their_own(jobs: Any, more: dict[str, Any], spec: Path) -> None:
    with pytest.raises(AirflowFailException, match="jobs come from a plan"):
        resolved(spec, {"point": POINT, "jobs": jobs, **more})


OTHER_KEYS = (
    *(
        "script",
        "command",
        "env",
        "job",
        "stages",
        "spec_file",
        "spec",
        "text",
        "sources",
        "run_root",
        "python",
    ),
    *(
        "Jobs",
        "jobs ",
        "templates",
        "profile",
        "ssh_conn_id",
        "slurm",
        "setup",
        "modules",
        "__class__",
        "surroundings",
    ),
)


@pytest.mark.parametrize("key", OTHER_KEYS)
@pytest.mark.parametrize("launched", [True, False])
def test_keys_that_nothing_reads(key: str, launched: bool, spec: Path) -> None:
    conf = {"point": POINT, key: SCRIPT}
    if launched:
        conf |= {"pin": planned(spec)["pin"], "run": "run1"}
    with pytest.raises(AirflowFailException, match="unknown key"):
        resolved(spec, conf)


NOT_CLUSTERS = (
    *(
        "../../x",
        "/etc/passwd",
        "..",
        ".",
        "local/../local",
        "local.yaml",
        "./local",
        "~/x",
        "a b",
        "x\0",
        "local\n",
    ),
    *("$HOME", "{{ 1 }}", "-x", "é", "x" * 101, "LOCAL/", "\\..\\x", "%2e%2e%2fx", "local;id", "local yaml"),
)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of profiles, and a profile outside of it."""
    folder = tmp_path / "clusters"
    folder.mkdir()
    text = "ssh_conn_id: x\nrun_root: /x\npython: python\nmegatron_lm_dir: /x\n"
    (folder / "good.yaml").write_text(text)
    for place in (tmp_path / "x.yaml", tmp_path.parent / "x.yaml"):
        place.write_text(text)
    return folder


@pytest.mark.parametrize("name", [*NOT_CLUSTERS, "../x", "../../x", "good/../../x", "../clusters/good"])
def test_profiles_are_named_by_words(name: str, outside: Path, spec: Path) -> None:
    with pytest.raises(SpecError, match="is not the name of a cluster"):
        load_cluster(name, outside)
    assert load_cluster("good", outside).name == "good"
    with pytest.raises(AirflowFailException, match=r"name of a cluster profile|is not the name of a cluster"):
        resolved(spec, {"point": POINT, "cluster": name})


def test_all_shipped_profiles_have_such_names() -> None:
    for name in cluster_names():
        load_cluster(name)


WRONG: dict[str, tuple[Any, ...]] = {
    "point": (3, [], {}, True, ["lr0.004"], {"name": "x"}, "x" * 20_001),
    "cluster": (3, [], {}, True, ["local"]),
    "fresh_start": ("true", "false", 1, 0, [], {}, "{{ 1 }}"),
    "pin": (3, [], {}, True, "x" * 20_001),
    "run": (3, [], {}, True, "x" * 20_001),
    "digest": (3, [], {}, True),
    "submitted": (3, "x", [], {"pretrain": "1"}, {"pretrain": -1}, {"pretrain": 0}, {"pretrain": True},
                  {"pretrain": 10**30}, {"pretrain": [1]}, {"pretrain": {"a": 1}}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG.items() for value in values]
)
def test_values_of_a_wrong_kind(key: str, value: Any, spec: Path) -> None:
    conf = {"point": POINT, "pin": planned(spec)["pin"], "run": "run1", key: value}
    with pytest.raises(AirflowFailException):
        resolved(spec, conf)


@pytest.mark.parametrize(
    ("key", "value"),
    [*itertools.product(("limit",), (0, -1, "3", 1.5, True, [], 10**30)),
     *itertools.product(("dry_run", "fresh_start"), ("true", 1, [], {})),
     *itertools.product(("points",), (3, [], {}, True)), *itertools.product(("cluster",), NOT_CLUSTERS)],
)  # fmt: skip
def test_values_of_a_sweeps_run(key: str, value: Any) -> None:
    with pytest.raises(AirflowFailException, match=f"'{key}' of the run's configuration"):
        refuse_unknown_keys({key: value}, SWEEP_KEYS)


@pytest.mark.parametrize(
    "run", ["../run1", "run1/../run1", "run2", "", "/", ".", "..", "run1\n", "%2e%2e/run1", "*"]
)
def test_plans_of_runs_that_are_none(run: str, spec: Path) -> None:
    pin = planned(spec)["pin"]
    with pytest.raises(AirflowFailException, match="has stored no plan"):
        resolved(spec, {"point": POINT, "pin": pin, "run": run})


@pytest.mark.slow
def test_a_plan_of_another_sweep(spec: Path) -> None:
    pin = planned(spec)["pin"]
    other = spec.with_name("other.yaml")
    other.write_text(CHAIN.replace("name: chain", "name: other"))
    task = PlanSweepOperator(task_id="plan", spec_file=str(other), cluster="local")
    run: Any = {"ti": Instance("other", "run1"), "dag_run": SimpleNamespace(conf={}), "params": {}}
    PinStore().set_newest("chain", "stolen", task.execute(run)["pin"])
    with pytest.raises(AirflowFailException, match="is of other, not of chain"):
        resolved(spec, {"point": POINT, "pin": pin, "run": "stolen"})


@pytest.mark.parametrize("pin", ["0" * 64, "f" * 64, None])
def test_the_plan_comes_from_the_run_and_not_from_the_configuration(pin: str | None, spec: Path) -> None:
    true = planned(spec)["pin"]
    pushed = resolved(spec, {"point": POINT, "pin": pin, "run": "run1"} if pin else {"point": POINT})
    assert all(
        job is None or job["pin"] == (true if pin else PinStore().newest("chain.point", POINT))
        for job in pushed.values()
    )
    assert pushed["pretrain"]["script"] is None
