"""Messages about a misconfigured cluster or connection, and success after the correction."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from patience import read_until, wait_until

from airflow_megatron.cli.local.free_ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from sweep_site import SweepSite

pytestmark = pytest.mark.integration

CASES = ("unreachable", "host_key", "login", "partition", "python")
AT_ONCE = 2
"""Runs of Airflow at the same time; they need a core each."""


@dataclass(frozen=True)
class Wrong:
    """One error in the configuration.

    :param environment: environment variables that cause it.
    :param message: text that the task's log must contain.
    :param waits: the task keeps trying, because the login node may become available.
    :param runs: the job runs and fails.
    """

    environment: dict[str, str]
    message: str
    waits: bool = False
    runs: bool = False


@dataclass(frozen=True)
class Seen:
    """The records of a run with the error, and of a run after the correction."""

    output: str
    status: int | None
    states: dict[str, list[str]]
    corrected_output: str
    corrected_status: int


def wrong_things(site: SweepSite, folder: Path) -> dict[str, Wrong]:
    server = site.cluster.description["ssh"]
    keys = []
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        keys.append(folder / name)
    closed_port = free_port()

    def connection(**changes: Any) -> dict[str, str]:
        values = {**server, **changes}
        extra = {"key_file": values["key_file"], "host_key": values["host_key"]}
        uri = {"conn_type": "ssh", "host": values["host"], "port": values["port"], "login": values["user"]}
        return {"AIRFLOW_CONN_SLURM_LOCAL": json.dumps({**uri, "extra": extra})}

    return {
        "unreachable": Wrong(
            connection(port=closed_port),
            f":{closed_port} cannot be reached: ",
            waits=True,
        ),
        "host_key": Wrong(
            connection(host_key=keys[0].with_suffix(".pub").read_text()),
            "the login node's host key is not the one that connection 'slurm_local' trusts",
        ),
        "login": Wrong(
            connection(key_file=str(keys[1])),
            "login refused",
        ),
        "partition": Wrong(
            {"TEST_PARTITION": "nowhere"},
            "refused.partition.work: Slurm refuses the job: sbatch (exit status 1): sbatch: error: "
            "invalid partition specified: nowhere",
        ),
        "python": Wrong(
            {"TEST_PYTHON": "/nowhere/bin/python"},
            "/nowhere/bin/python: No such file or directory",
            runs=True,
        ),
    }


def look(site: SweepSite, case: str, wrong: Wrong) -> Seen:
    """Run a point with the error, then without it."""
    conf = {"point": case}
    status: int | None = None
    if wrong.waits:
        with site.dags_test("refused.point", conf, **wrong.environment) as process:
            output = read_until(process, wrong.message, 120)
    else:
        status, output = site.run_dags_test("refused.point", conf, **wrong.environment)
    prefix = f"refused.{case}."
    wait_until(lambda: not site.queued(prefix), 60, f"no job of {prefix}* to be left in the queue")
    if wrong.runs:
        site.expect_states(prefix, {f"{prefix}work.a1": ["FAILED"]})
    states = site.states(prefix)
    corrected_status, corrected_output = site.run_dags_test("refused.point", conf)
    return Seen(output, status, states, corrected_output, corrected_status)


@pytest.fixture(scope="module")
def wrong(site: SweepSite, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Wrong]:
    return wrong_things(site, tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def seen(site: SweepSite, wrong: dict[str, Wrong]) -> dict[str, Seen]:
    # the first run writes the DAGs to Airflow's database, which two runs cannot do at the same time
    first, *others = CASES
    found = {first: look(site, first, wrong[first])}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return found | dict(
            zip(others, pool.map(lambda case: look(site, case, wrong[case]), others), strict=True)
        )


@pytest.mark.parametrize("case", CASES)
def test_one_clear_error_and_the_next_try_works(
    site: SweepSite, wrong: dict[str, Wrong], seen: dict[str, Seen], case: str
) -> None:
    found = seen[case]
    assert wrong[case].message in found.output, found.output[-4000:]
    assert found.status == (None if wrong[case].waits else 1)
    failed = {f"refused.{case}.work.a1": ["FAILED"]} if wrong[case].runs else {}
    assert found.states == failed
    assert found.corrected_status == 0, found.corrected_output[-4000:]
    number = len(failed) + 1
    site.expect_states(f"refused.{case}.", {**failed, f"refused.{case}.work.a{number}": ["COMPLETED"]})
    assert (site.runs / "refused" / case / "work" / "times").read_text() == "x"
