"""``archive`` on a real login node."""

from __future__ import annotations

import json
import re
import tarfile
from typing import TYPE_CHECKING

import pytest
from airflow_database import empty_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from login_site import LoginSite

    from airflow_megatron.spec.model.jobs import Job


@pytest.fixture(scope="module", autouse=True)
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with empty_database(tmp_path_factory.mktemp("airflow") / "airflow.db"):
        yield


@pytest.fixture
def jobs(site: LoginSite) -> list[Job]:
    jobs = site.run_sweep("first")
    for number, job in enumerate(jobs, 101):
        site.finished(job, str(number))
    run = site.runs / "study" / "left"
    for name in ("checkpoints/iter_0000010/mp_rank_00/weights", "converted_hf/iter_10/model"):
        (run / name).parent.mkdir(parents=True)
        (run / name).write_text("x" * 1000)
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("10")
    secrets = run / "work" / ".jobs" / "work" / "1" / "secrets"
    secrets.mkdir(parents=True)
    (secrets / "TOKEN").write_text("hush")
    report = site.place / "local" / "results" / "study"
    report.mkdir(parents=True)
    (report / "report.html").write_text("<h1>report</h1>")
    (report / "elsewhere").symlink_to(site.place)
    return jobs


def written(stdout: str) -> Path:
    from pathlib import Path

    found = re.fullmatch(r"wrote (\S+), [0-9.]+ MiB\n", stdout)
    assert found, stdout
    return Path(found[1])


def names(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {entry.name for entry in archive if entry.isfile()}


@pytest.mark.slow
def test_records_and_reports_without_checkpoints(site: LoginSite, jobs: list[Job], tmp_path: Path) -> None:
    to = tmp_path / "study.tar.gz"
    answer = site.call("archive", "study", "--to", str(to))
    assert answer.status == 0, answer.stderr
    assert written(answer.stdout) == to
    found = names(to)
    assert "study/left/work/.jobs/work/verdict.json" in found
    assert "study/right/check/.jobs/check/1/exit.json" in found
    assert "study/left/checkpoints/latest_checkpointed_iteration.txt" in found
    assert "airflow-megatron/results/report.html" in found
    assert not any("weights" in name or "model" in name or "TOKEN" in name for name in found)
    assert not any("elsewhere" in name for name in found)
    with tarfile.open(to) as archive:
        plan = archive.extractfile("airflow-megatron/plans/first.json")
        assert plan is not None
        content = json.load(plan)
    assert content["text"] == site.spec.read_text()
    assert {job["name"] for job in content["jobs"]} == {job.name for job in jobs}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".archive.")] == []


@pytest.mark.slow
def test_checkpoints_when_asked_for_and_never_secrets(
    site: LoginSite, jobs: list[Job], tmp_path: Path
) -> None:
    to = tmp_path / "study.tar.gz"
    assert site.call("archive", "study", "--to", str(to), "--checkpoints").status == 0
    found = names(to)
    assert "study/left/checkpoints/iter_0000010/mp_rank_00/weights" in found
    assert "study/left/converted_hf/iter_10/model" in found
    assert not any("TOKEN" in name for name in found)


@pytest.mark.slow
def test_some_points_in_a_file_of_the_run_root(site: LoginSite, jobs: list[Job]) -> None:
    answer = site.call("archive", "study", "--select", "right")
    assert answer.status == 0, answer.stderr
    path = written(answer.stdout)
    assert path.parent == site.runs / ".archives"
    assert path.is_file()
    assert path.name.startswith("study-")
    if path.suffix == ".gz":
        assert not any("left" in name for name in names(path))


@pytest.mark.slow
def test_links_on_the_way_to_a_folder_are_not_followed(
    site: LoginSite, jobs: list[Job], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (site.runs / "study").rename(elsewhere)
    (site.runs / "study").symlink_to(elsewhere)
    to = tmp_path / "study.tar.gz"
    answer = site.call("archive", "study", "--select", "right", "--to", str(to))
    assert answer.status != 0
    assert "study is a symbolic link" in answer.stderr
    assert not to.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("study.tar.gz", "write an absolute path that ends in .tar.gz or .tar.zst"),
        ("/tmp/study.zip", "write an absolute path that ends in .tar.gz or .tar.zst"),
        ("{place}/nowhere/study.tar.gz", "there is no folder {place}/nowhere"),
        ("{place}/there.tar.gz", "there.tar.gz exists"),
    ],
)
def test_refused(to: str, message: str, site: LoginSite, jobs: list[Job]) -> None:
    (site.place / "there.tar.gz").write_text("kept")
    answer = site.call("archive", "study", "--to", to.format(place=site.place))
    assert answer.status == 1
    assert message.format(place=site.place) in answer.stderr
    assert (site.place / "there.tar.gz").read_text() == "kept"


@pytest.mark.slow
def test_a_sweep_that_has_left_nothing(site: LoginSite) -> None:
    answer = site.call("archive", "study")
    assert answer.status == 1
    assert f"there is no {site.runs}" in answer.stderr
