"""A folder of expensive specs: reading it and showing its errors takes bounded time for other sweeps."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from airflow_megatron.dag_factory import spec_folder
from airflow_megatron.dag_factory.spec_cache import LARGEST_HASHED, SpecCache, SpecEntry, digest_of
from airflow_megatron.dag_factory.spec_files import SweepSpecErrors, raise_for_spec_errors
from airflow_megatron.dag_factory.spec_folder import SpecFolder, sweeps_of_entries
from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.model.stage_tree import StageInstance
from airflow_megatron.spec.model.sweep import SweepSettings
from airflow_megatron.spec.spec_files import MOST_COMPARED, load_sweep_text, lone_sidecars

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    """Every parse computes the digests of all files again, outside of the process that reads a spec."""

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


class TestFilesThatBlock:
    """The process that reads all specs opens a file that its owner may exchange or lock at any moment."""

    @pytest.fixture(autouse=True)
    def alarm(self) -> Iterator[None]:
        def stop(*_: object) -> NoReturn:
            pytest.fail("opening the file blocks")

        before = [signal.signal(signal.SIGIO, signal.SIG_IGN), signal.signal(signal.SIGALRM, stop)]
        signal.alarm(2)
        yield
        signal.alarm(0)
        signal.signal(signal.SIGIO, before[0])
        signal.signal(signal.SIGALRM, before[1])

    def test_a_lease_of_the_owner(self, tmp_path: Path) -> None:
        """Linux makes other processes wait up to 45 s for the owner."""
        path = tmp_path / "spec.yaml"
        path.write_text("x")
        with path.open("r+") as owned:
            try:
                fcntl.fcntl(owned, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError:
                pytest.skip("this file system has no leases")
            assert digest_of(str(path)) == "missing"

    def test_a_pipe_that_takes_the_place_of_a_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, before = tmp_path / "spec.yaml", tmp_path / "before.yaml"
        before.touch()
        found = before.stat()
        os.mkfifo(path)
        monkeypatch.setattr(os, "stat", lambda _: found)
        digest_of(str(path))


class TestLoneSidecars:
    @pytest.mark.parametrize("count", [60, 1000])
    def test_of_many_files_take_little_time(self, count: int, tmp_path: Path) -> None:
        for number in range(count):
            (tmp_path / f"study_number_{number:05d}.yaml").touch()
            (tmp_path / f"study-numbers-{number:05d}.yaml.airflow.yml").touch()
        begin = time.thread_time()
        assert len(lone_sidecars(tmp_path)) == count
        assert time.thread_time() - begin < 1.5

    def test_names_are_suggested_where_there_are_few(self, tmp_path: Path) -> None:
        for number in range(MOST_COMPARED):
            (tmp_path / f"study{number:03d}x.yaml").touch()
        (tmp_path / "study7x.yaml.airflow.yml").touch()
        assert "did you mean 'study" in str(lone_sidecars(tmp_path)[0])
        (tmp_path / "one.yaml").touch()
        assert "rename it after its file" in str(lone_sidecars(tmp_path)[0])


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
    def test_errors_of_each_file_are_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert str(error.value).startswith("2,001 problems in sweep specs:\n/specs/0.yaml:1: xxx")
        assert "/specs/zz.yaml:3:1: this is mine" in str(error.value)
        assert "and 49 more problems of this file: airflow-megatron lint" in str(error.value)

    def test_too_many_files_to_show_an_error_of_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = SpecFolder(
            (), tuple(Problem(f"/specs/{'f' * 200}{file}.yaml", 1, 1, "x") for file in range(5000))
        )
        monkeypatch.setattr(spec_folder, "read_spec_folder", lambda _: folder)
        with pytest.raises(SweepSpecErrors, match=r"\n… and [0-9]+ more files\Z") as error:
            raise_for_spec_errors()
        assert len(str(error.value)) < 250_000


class TestManyStages:
    """Airflow aborts a parse that takes too long; then no sweep would have DAGs."""

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
        assert found.problems[0].message == (
            "its 400 stages are too many beside those of s6 (400), s7 (400), s8 (400), s9 (400), mine (5): all sweeps"
            " of the folder together have at most 2,000, and this one is left out"
        )

    def test_an_owner_of_many_leaves_room_for_others(self) -> None:
        many = [
            SpecEntry(outline(f"s{number}", f"/specs/{number}.yaml", 100), since=1.0 + number, owner=1)
            for number in range(30)
        ]
        others = [
            SpecEntry(outline(f"of{owner}", f"/specs/of{owner}.yaml", 300), since=1000.0, owner=owner)
            for owner in (2, 3)
        ]
        found = sweeps_of_entries([*many, *others], most_stages=2000)
        kept = [one.name for one in found.outlines]
        assert kept == [*(f"s{number}" for number in range(14)), "of2", "of3"]
        assert "s0 (100), s1 (100), s10 (100) and 11 more (1,100)" in found.problems[0].message

    def test_a_change_keeps_the_place_of_a_sweep_that_does_not_grow(self, tmp_path: Path) -> None:
        spec, cache = tmp_path / "s.yaml", SpecCache(tmp_path)
        spec.write_text("x")
        first = cache.put(spec, SpecEntry(outline("s", str(spec), 5)))
        assert (first.owner, first.since) == (os.getuid(), spec.stat().st_ctime)
        time.sleep(0.02)
        spec.write_text("y")
        os.utime(spec, (1, 1))
        assert cache.put(spec, SpecEntry(None)).since == first.since
        assert cache.put(spec, SpecEntry(outline("s", str(spec), 4))).since == first.since
        assert (
            cache.put(spec, SpecEntry(outline("s", str(spec), 6))).since == spec.stat().st_ctime > first.since
        )
        cache.save([spec])
        again = SpecCache(tmp_path).last(spec)
        assert again is not None
        assert (again.owner, again.since) == (os.getuid(), spec.stat().st_ctime)

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
def test_data_that_every_task_reads_is_small(notify: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"s.yaml:4:1: (more than 100 notifiers|arguments of 1?[0-9]{2},)"):
        load_sweep_text(f"{SPEC}notify: {notify}\n", str(tmp_path / "s.yaml"))


def test_usual_notifiers_are_accepted(tmp_path: Path) -> None:
    notify = f"[{', '.join([NOTIFY.replace('@', ', message: ' + 'x' * 500)] * 100)}]"
    sweep = load_sweep_text(f"{SPEC}notify: {notify}\n", str(tmp_path / "s.yaml"))
    assert len(sweep.settings.notify) == 100
