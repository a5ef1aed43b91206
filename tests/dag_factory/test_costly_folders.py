"""A folder of specs that cost much together: reading it, and showing its errors, stays cheap for everybody else."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.dag_factory import spec_folder
from airflow_megatron.dag_factory.spec_cache import LARGEST_HASHED, SpecEntry, digest_of
from airflow_megatron.dag_factory.spec_files import SweepSpecErrors, raise_for_spec_errors
from airflow_megatron.dag_factory.spec_folder import SpecFolder, sweeps_of_entries
from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.model.stage_tree import StageInstance
from airflow_megatron.spec.model.sweep import SweepSettings
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(tmp_path))


def outline(name: str, file: str, stages: int = 1) -> SweepOutline:
    tree = tuple(
        StageInstance(f"s{number}", f"s{number}", "command", "point", None, None) for number in range(stages)
    )
    return SweepOutline(name, file, SweepSettings(), tree)


class TestLargeFiles:
    """Every parse takes the digests of all files again, outside of the process that reads a spec."""

    @pytest.mark.parametrize("size", [LARGEST_HASHED + 1, 32_000_000, 20 << 30, 1 << 42])
    def test_take_no_time(self, size: int, tmp_path: Path) -> None:
        with (tmp_path / "bad.yaml").open("wb") as file:
            file.truncate(size)
        begin = time.thread_time()
        digest_of(str(tmp_path / "bad.yaml"))
        assert time.thread_time() - begin < 0.01

    @pytest.mark.parametrize("size", [10, LARGEST_HASHED, LARGEST_HASHED + 1])
    def test_a_change_is_seen_though_size_and_date_are_kept(self, size: int, tmp_path: Path) -> None:
        path = tmp_path / "spec.yaml"
        path.write_bytes(b"a" * size)
        status, before = path.stat(), digest_of(str(path))
        assert digest_of(str(path)) == before
        with path.open("r+b") as file:
            file.write(b"b")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert digest_of(str(path)) != before


@pytest.mark.slow
class TestOneNameInManyFiles:
    def test_takes_little_time_and_few_words(self) -> None:
        files = [f"/specs/{'x' * 100}{number}.yaml" for number in range(1000)]
        begin = time.thread_time()
        found = sweeps_of_entries([SpecEntry(outline("same", file)) for file in files], most_stages=10**6)
        assert time.thread_time() - begin < 1
        assert not found.outlines
        assert [problem.file for problem in found.problems] == files
        assert max(len(str(problem)) for problem in found.problems) < 2_000
        assert f"{files[1]}, " in found.problems[0].message
        assert "and 994 more files define a sweep 'same' too" in found.problems[0].message


class TestErrors:
    def test_each_file_is_shown_whatever_others_say(self, monkeypatch: pytest.MonkeyPatch) -> None:
        noise = [
            Problem(f"/specs/{file}.yaml", line, 0, "x" * 1200, "y" * 1200)
            for file in range(40)
            for line in range(1, 51)
        ]
        mine = Problem("/specs/zz.yaml", 3, 1, "this is mine")
        folder = SpecFolder((), (*noise, mine))
        monkeypatch.setattr(spec_folder, "read_spec_folder", lambda _: folder)
        with pytest.raises(SweepSpecErrors) as error:
            raise_for_spec_errors()
        assert len(str(error.value)) < 250_000
        assert str(error.value).startswith("2001 problems in sweep specs:\n/specs/0.yaml:1: xxx")
        assert "/specs/zz.yaml:3:1: this is mine" in str(error.value)
        assert "and 49 more problems of this file: airflow-megatron lint" in str(error.value)

    def test_so_many_files_that_not_each_can_be_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = SpecFolder(
            (), tuple(Problem(f"/specs/{'f' * 200}{file}.yaml", 1, 1, "x") for file in range(5000))
        )
        monkeypatch.setattr(spec_folder, "read_spec_folder", lambda _: folder)
        with pytest.raises(SweepSpecErrors, match=r"\n… and [0-9]+ more files\Z") as error:
            raise_for_spec_errors()
        assert len(str(error.value)) < 250_000


class TestManyStages:
    """Airflow ends a parse that takes too long: then no sweep would have DAGs."""

    def test_those_that_were_read_last_are_left_out(self) -> None:
        entries = [
            SpecEntry(outline(f"s{number}", f"/specs/{number}.yaml", 400), found_at=100.0 - number)
            for number in range(10)
        ]
        entries.append(SpecEntry(outline("mine", "/specs/mine.yaml", 5), found_at=1.0))
        found = sweeps_of_entries(entries, most_stages=2000)
        assert [one.name for one in found.outlines] == ["s6", "s7", "s8", "s9", "mine"]
        assert [problem.file for problem in found.problems] == [
            f"/specs/{number}.yaml" for number in range(6)
        ]
        assert all("have 2,000 stages" in problem.message for problem in found.problems)

    def test_folders_of_a_usual_size_are_complete(self) -> None:
        entries = [SpecEntry(outline(f"s{number}", f"/specs/{number}.yaml", 30)) for number in range(200)]
        assert len(sweeps_of_entries(entries).outlines) == 200


NOTIFY = (
    "{notifier: airflow_megatron.notifications.json_lines.JsonLinesNotifier, arguments: {path: a.jsonl@}}"
)
SPEC = "name: s\npoint: p\nstages: {a: {kind: command, command: [x]}}\n"


LARGE = ", ".join(f"k{number}: {'x' * 20}" for number in range(4500))


@pytest.mark.parametrize(
    "notify",
    [
        f"[{NOTIFY.replace('@', ', message: ' + 'x' * 100_001)}]",
        f"[{', '.join([NOTIFY.replace('@', '')] * 101)}]",
        f"[{NOTIFY.replace('@', f', message: {{{LARGE}}}')}]",
    ],
    ids=["a long argument", "many notifiers", "a large argument"],
)
def test_what_every_task_reads_of_a_sweep_is_small(notify: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"s.yaml:4:1: (more than 100 notifiers|arguments of 1?[0-9]{2},)"):
        load_sweep_text(f"{SPEC}notify: {notify}\n", str(tmp_path / "s.yaml"))


def test_usual_notifiers_are_accepted(tmp_path: Path) -> None:
    notify = f"[{', '.join([NOTIFY.replace('@', ', message: ' + 'x' * 500)] * 100)}]"
    sweep = load_sweep_text(f"{SPEC}notify: {notify}\n", str(tmp_path / "s.yaml"))
    assert len(sweep.settings.notify) == 100
