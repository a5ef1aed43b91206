"""``delete`` on a real login node and a real Airflow database."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunType
from airflow_database import empty_database
from sqlalchemy import select

from airflow_megatron.cli.housekeeping.remains import point_folders
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.results.store.frames import empty
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.tables import TABLES
from airflow_megatron.slurm.submission.job_script import attempt_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from login_site import LoginSite

    from airflow_megatron.spec.model.jobs import Job


@pytest.fixture(scope="module", autouse=True)
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with empty_database(tmp_path_factory.mktemp("airflow") / "airflow.db"):
        yield


@pytest.fixture(autouse=True)
def _no_runs() -> Iterator[None]:
    yield
    with create_session() as session:
        for run in session.scalars(select(DagRun)):
            session.delete(run)


def airflow_run(dag_id: str, run_id: str, state: DagRunState = DagRunState.SUCCESS, **conf: str) -> None:
    with create_session() as session:
        run = DagRun(dag_id=dag_id, run_id=run_id, run_type=DagRunType.MANUAL, state=state, conf=conf)
        run.run_after = datetime.now(UTC)
        session.add(run)


def airflow_runs() -> set[str]:
    with create_session() as session:
        assert not session.scalars(select(TaskInstance)).all()
        return {f"{run.dag_id} {run.run_id}" for run in session.scalars(select(DagRun))}


@pytest.fixture
def jobs(site: LoginSite) -> list[Job]:
    """A finished run with a report, and an earlier one without separate folders."""
    jobs = site.run_sweep("first")
    for number, job in enumerate(jobs, 101):
        site.finished(job, str(number))
    for dag_id, run_id, conf in (
        ("study", "first", {}),
        ("study", "zeroth", {}),
        ("study.point", "left", {"point": "left", "run": "first"}),
        ("study.point", "right", {"point": "right", "run": "first"}),
        ("study.point", "left~2", {"point": "left", "run": "zeroth"}),
        ("other", "first", {}),
    ):
        airflow_run(dag_id, run_id, **conf)
    report = site.place / "local" / "results" / "study" / "runs" / "first"
    report.mkdir(parents=True)
    (report / "report.html").write_text("x")
    (site.runs / "other").mkdir()
    return jobs


EVERYTHING = {"study first", "study zeroth", "study.point left", "study.point right", "study.point left~2"}


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.slow
def test_nothing_goes_without_yes(site: LoginSite, jobs: list[Job]) -> None:
    before = tree(site.place)
    answer = site.call("delete", "study")
    assert answer.status == 0, answer.stderr
    assert f"would delete {site.runs}/study on site, 0." in answer.stdout
    assert "would delete 3 runs of study.point in Airflow's database: left, left~2, right" in answer.stdout
    assert answer.stdout.endswith("nothing was deleted; --yes deletes it\n")
    new = {path for path in set(tree(site.place)) - set(before) if not path.startswith("local/logins")}
    assert new <= {"pins/.lock"}
    assert airflow_runs() == EVERYTHING | {"other first"}


@pytest.mark.slow
def test_all_of_a_sweep(site: LoginSite, jobs: list[Job]) -> None:
    answer = site.call("delete", "study", "--yes")
    assert answer.status == 0, answer.stderr
    assert not (site.runs / "study").exists()
    assert (site.runs / "other").is_dir()
    assert not (site.place / "local" / "results" / "study").exists()
    assert airflow_runs() == {"other first"}
    assert PinStore().runs("study") == []
    again = site.call("delete", "study", "--yes")
    assert again.status == 0
    assert "would" not in again.stdout


@pytest.mark.slow
def test_files_of_users_are_kept(site: LoginSite, jobs: list[Job]) -> None:
    """A folder without records of jobs may hold anything."""
    (site.runs / "study" / "notes.txt").write_text("x")
    kept = f"left alone: notes.txt in {site.runs}/study on site: not the folders of jobs\n"
    assert kept in site.call("delete", "study").stdout
    answer = site.call("delete", "study", "--yes")
    assert answer.status == 0, answer.stderr
    assert kept in answer.stdout
    assert f"deleted the folders of jobs in {site.runs}/study on site\n" in answer.stdout
    assert tree(site.runs / "study") == ["notes.txt"]
    assert site.call("delete", "study").stdout == f"{kept}study has no data\n"


@pytest.mark.slow
def test_some_points(site: LoginSite, jobs: list[Job]) -> None:
    answer = site.call("delete", "study", "--select", "left", "--yes")
    assert answer.status == 0, answer.stderr
    assert tree(site.runs / "study")[0] == "right"
    assert not (site.runs / "study" / "left").exists()
    assert airflow_runs() == EVERYTHING - {"study.point left", "study.point left~2"} | {"other first"}
    assert (site.place / "local" / "results" / "study").is_dir()


@pytest.mark.slow
def test_one_run(site: LoginSite, jobs: list[Job]) -> None:
    answer = site.call("delete", "study", "--run", "first", "--yes")
    assert answer.status == 0, answer.stderr
    assert (site.runs / "study" / "left").is_dir()
    assert airflow_runs() == {"study zeroth", "study.point left~2", "other first"}
    assert tree(site.place / "local" / "results") == ["study", "study/runs"]
    assert PinStore().runs("study") == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--yes",)])
def test_a_run_that_never_was(words: tuple[str, ...], site: LoginSite, jobs: list[Job]) -> None:
    answer = site.call("delete", "study", "--run", "frist", *words)
    assert (answer.status, answer.stdout) == (1, "")
    assert "study has no run 'frist' (did you mean 'first'?)" in answer.stderr
    assert airflow_runs() == EVERYTHING | {"other first"}


@pytest.mark.slow
def test_a_folder_that_is_not_there_is_not_called_deleted(site: LoginSite, jobs: list[Job]) -> None:
    assert f"deleted {site.runs}/study" in site.call("delete", "study", "--yes").stdout
    again = site.call("delete", "study", "--yes")
    assert (again.status, again.stdout) == (0, "study has no data\n")


@pytest.mark.slow
def test_rows_of_a_results_store_elsewhere(
    site: LoginSite, jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files hold rows of all points and runs: they are deleted with the whole sweep."""
    monkeypatch.setenv("AIRFLOW__MEGATRON__RESULTS_STORE", f"file://{tmp_path}/rows")
    store = SegmentStore(f"file://{tmp_path}/rows")
    for sweep in ("study", "other"):
        store.write(sweep, empty(TABLES["iterations"]), "iterations", "0123456789ab", 0)
    one_point = site.call("delete", "study", "--select", "left")
    assert f"left alone: rows of the sweep in file://{tmp_path}/rows, which all points" in one_point.stdout
    assert f"would delete rows of the sweep in file://{tmp_path}/rows" in site.call("delete", "study").stdout
    assert [len(store.segments(sweep)) for sweep in ("study", "other")] == [1, 1]
    answer = site.call("delete", "study", "--yes")
    assert answer.status == 0, answer.stderr
    assert f"deleted rows of the sweep in file://{tmp_path}/rows" in answer.stdout
    assert [len(store.segments(sweep)) for sweep in ("study", "other")] == [0, 1]


@pytest.mark.slow
def test_a_run_and_points_at_once(site: LoginSite, jobs: list[Job]) -> None:
    answer = site.call("delete", "study", "--run", "first", "--select", "left", "--yes")
    assert answer.status == 2
    assert "--run and --select cannot be combined" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--yes",), ("--select", "left", "--yes")])
def test_a_job_in_slurm(words: tuple[str, ...], site: LoginSite, jobs: list[Job]) -> None:
    """squeue decides, regardless of the job's records."""
    name = attempt_of(jobs[0], 1).job_name
    site.command("squeue", f'for last; do :; done; echo "${{last%%|*}}|101|RUNNING|0|0|0|1|n1|None|{name}"')
    answer = site.call("delete", "study", *words)
    assert answer.status == 1
    assert "job study.left.work is in Slurm" in answer.stderr
    assert "airflow-megatron cancel study" in answer.stderr
    assert (site.runs / "study" / "left").is_dir()
    assert airflow_runs() == EVERYTHING | {"other first"}


@pytest.mark.slow
def test_a_job_whose_run_directory_is_gone(site: LoginSite, jobs: list[Job]) -> None:
    """It would write into the next run's directory."""
    shutil.rmtree(site.runs / "study" / "left")
    site.queue((101, "RUNNING", attempt_of(jobs[0], 1).job_name))
    answer = site.call("delete", "study", "--yes")
    assert answer.status == 1
    assert "job study.left.work is in Slurm" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("state", [DagRunState.RUNNING, DagRunState.QUEUED])
@pytest.mark.parametrize("words", [(), ("--select", "right"), ("--run", "first")])
def test_a_run_in_progress(
    words: tuple[str, ...], state: DagRunState, site: LoginSite, jobs: list[Job]
) -> None:
    airflow_run("study.point", "right~2", state, point="right", run="first")
    answer = site.call("delete", "study", *words, "--yes")
    assert answer.status == 1
    assert "run study.point right~2 is under way" in answer.stderr
    assert (site.runs / "study" / "left").is_dir()


@pytest.mark.slow
def test_a_queue_that_cannot_be_read(site: LoginSite, jobs: list[Job]) -> None:
    site.command("squeue", "echo slurmctld is away >&2; exit 1")
    answer = site.call("delete", "study", "--yes")
    assert answer.status == 1
    assert "squeue does not answer on site" in answer.stderr
    assert (site.runs / "study" / "left").is_dir()


@pytest.mark.slow
def test_links_are_not_followed(site: LoginSite, jobs: list[Job], tmp_path: Path) -> None:
    """Links are followed neither inside the deleted folder nor in its path."""
    precious = tmp_path / "precious"
    (precious / "left").mkdir(parents=True)
    (precious / "data").write_text("x")
    (site.runs / "study" / "left" / "data").symlink_to(precious)
    assert site.call("delete", "study", "--select", "left", "--yes").status == 0
    assert (precious / "data").read_text() == "x"
    (site.runs / "study").rename(site.runs / "moved")
    (site.runs / "study").symlink_to(precious)
    for words in ((), ("--select", "right")):
        answer = site.call("delete", "study", *words, "--yes")
        assert answer.status == 1
        assert f"{site.runs}/study is a symbolic link" in answer.stderr
    assert tree(precious) == ["data", "left"]
    assert "study first" in airflow_runs()


@pytest.mark.slow
def test_a_sweep_whose_spec_was_deleted(site: LoginSite, jobs: list[Job]) -> None:
    site.spec.unlink()
    answer = site.call("delete", "study", "--yes")
    assert answer.status == 0, answer.stderr
    assert not (site.runs / "study").exists()
    assert site.call("delete", "study").status == 1


@pytest.mark.slow
def test_a_sweep_that_never_was(site: LoginSite) -> None:
    answer = site.call("delete", "nosuch")
    assert answer.status == 1
    assert "nosuch.yaml: there is no spec and no stored run of a sweep 'nosuch'" in answer.stderr


@pytest.mark.slow
def test_an_unreachable_login_node(site: LoginSite, jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_megatron.cli.housekeeping.delete.ANSWER_WINDOW_S", 1.0)
    site.server.stop()
    answer = site.call("delete", "study", "--yes")
    assert answer.status == 1
    assert "cannot be reached" in answer.stderr
    assert airflow_runs() == EVERYTHING | {"other first"}


@pytest.mark.parametrize(
    ("dirs", "expected"),
    [
        ({"a": ["/r/s/a/x", "/r/s/a/y"], "b": ["/r/s/b"]}, ["/r/s/a"]),
        ({"a": ["/r/s/a", "/r/s/a/y"], "b": ["/r/s/b"]}, ["/r/s/a"]),
        ({"a": ["/r/s/a/x"], "b": ["/r/s/a/y"]}, ["/r/s/a/x"]),
        ({"a": ["/r/s/a"], "b": ["/r/s/a/y"]}, []),
        ({"a": ["/r/s/a"], "b": ["/r/s/a"]}, []),
        ({"a": ["/r/s/a/x", "/r/s/b/x"], "b": ["/r/s/c"]}, ["/r/s/a/x", "/r/s/b/x"]),
        ({"a": ["/r/s"], "b": ["/r/s/b"]}, []),
        ({"a": ["/elsewhere/a"], "b": ["/r/s/b"]}, []),
        ({"a": ["/r/s/../t"], "b": ["/r/s/b"]}, []),
        ({"a": ["/r/sa"], "b": ["/r/s/b"]}, []),
    ],
)
def test_folders_of_points(dirs: dict[str, list[str]], expected: list[str]) -> None:
    planned: Any = [
        SimpleNamespace(point=point, run_dir=path) for point, paths in dirs.items() for path in paths
    ]
    assert point_folders("/r/s", planned, {"a"}) == expected
