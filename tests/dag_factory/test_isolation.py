"""No spec can change the DAGs of another sweep, and each takes a bounded time."""

from __future__ import annotations

import json
import os
import re
import resource
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hostile_specs
import pytest
from hostile_specs import GOOD, spec

from airflow_megatron.dag_factory import spec_folder
from airflow_megatron.dag_factory.spec_files import (
    SweepSpecErrors,
    build_sweep_dags,
    raise_for_spec_errors,
)
from airflow_megatron.dag_factory.spec_folder import read_spec_folder
from airflow_megatron.spec import spec_files as listing
from airflow_megatron.spec.documents.project import clusters_dir
from airflow_megatron.spec.trust import isolation
from airflow_megatron.spec.trust.isolation import Limits, run_isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

GOOD_DAGS = ["good", "good.point", "zz", "zz.point"]
HOSTILE: tuple[Callable[[], Iterator[tuple[str, str, str]]], ...] = (
    hostile_specs.reserved_names,
    hostile_specs.unusual_names,
    hostile_specs.too_many,
    hostile_specs.numbers,
    hostile_specs.shapes,
    hostile_specs.notifiers,
    hostile_specs.expressions,
    hostile_specs.long_words,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path_factory.mktemp("local")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "zz.yaml").write_text(GOOD.replace("name: good", "name: zz"))
    return tmp_path


def processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def names(folder: Path) -> list[str]:
    return [dag.dag_id for dag in build_sweep_dags(folder)]


def problems(folder: Path) -> list[str]:
    return [str(problem) for problem in read_spec_folder(folder).problems]


@pytest.mark.parametrize("source", HOSTILE)
def test_each_is_refused_by_itself(
    source: Callable[[], Iterator[tuple[str, str, str]]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec_folder, "conf", Patient())
    probes = {f"bad-{number:04}.yaml": probe for number, probe in enumerate(source())}
    for name, (_, text, _) in probes.items():
        (folder / name).write_text(text.replace("bad.yaml", name))
    before = processor_s()
    assert names(folder) == GOOD_DAGS
    assert processor_s() - before < 10
    found: dict[str, list[str]] = {name: [] for name in probes}
    for problem in read_spec_folder(folder).problems:
        assert len(problem.message) + len(problem.hint) < 3_000
        found[Path(problem.file).name].append(str(problem))
    for name, (what, _, message) in probes.items():
        assert found[name], f"{what} is accepted"
        assert any(message in problem for problem in found[name]), (what, found[name])
        for problem in found[name]:
            assert len(problem) < 3_000, what
            assert "not read yet" not in problem, what
            assert not re.search(r"Traceback|it cannot be read:", problem), (what, problem)
    print(f"{source.__name__}: {len(probes)} probes")


class TestTime:
    """Limits of a folder: 2 s of processor time for each spec, and 10 s for all invalid ones together."""

    @pytest.mark.parametrize(("what", "text"), list(hostile_specs.endless()))
    def test_of_one_spec(self, what: str, text: str, folder: Path) -> None:
        (folder / "bad.yaml").write_text(text)
        read_spec_folder(folder.parent / "nothing")
        before = processor_s()
        assert set(GOOD_DAGS) <= set(names(folder))
        assert processor_s() - before < 3

    def test_of_specs_that_never_end(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Valid specs appear immediately, in any order; the others are postponed with an error, then refused."""
        never_ends(monkeypatch)
        short_limits(monkeypatch)
        for number in range(4):
            (folder / f"bad{number:02}.yaml").write_text(spec(name=f"endless{number}"))
        monkeypatch.setattr(spec_folder, "conf", Patient())
        before = processor_s()
        assert names(folder) == GOOD_DAGS
        assert processor_s() - before < 3
        found = problems(folder)
        assert any("more than 0.8 s of processor time" in problem for problem in found)
        assert {problem.partition(":")[0] for problem in found} == {
            str(folder / f"bad{number:02}.yaml") for number in range(4)
        }

    def test_a_changed_spec_that_there_is_no_time_for(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its DAGs do not change until it is read."""
        assert names(folder) == GOOD_DAGS
        monkeypatch.setattr(spec_folder, "ALL_S", 0.1)
        (folder / "good.yaml").write_text(GOOD.replace("{a:", "{b:"))
        assert names(folder) == GOOD_DAGS
        assert ["not read yet" in problem for problem in problems(folder)] == [True]

    def test_a_spec_that_never_ends_is_read_once(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        never_ends(monkeypatch)
        short_limits(monkeypatch)
        monkeypatch.setattr(spec_folder, "conf", Patient())
        (folder / "bad.yaml").write_text(spec(name="endless"))
        assert names(folder) == GOOD_DAGS
        before = processor_s()
        assert names(folder) == GOOD_DAGS
        assert processor_s() - before < 0.5

    def test_checks_that_take_too_long_leave_the_sweep(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A sweep of very many points is checked when it is planned."""
        short_limits(monkeypatch)
        monkeypatch.setattr(spec_folder, "check_expressions", lambda sweep: spin())
        assert names(folder) == GOOD_DAGS
        assert problems(folder) == []


class Patient:
    """Airflow's configuration with a long time-out: this machine may be busy."""

    def getfloat(self, *_: str, fallback: float) -> float:
        return 20 * fallback


def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fourth of the time that specs have, which is 1.7 s for one and 8 s for all."""
    monkeypatch.setattr(spec_folder, "REST_S", 0.5)
    monkeypatch.setattr(spec_folder, "ALL_S", 2.0)


def spin() -> None:
    while True:
        pass


def never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    real = spec_folder.check_document

    def check(sweep: Any) -> None:
        real(sweep)
        if sweep.name.startswith("endless"):
            spin()

    monkeypatch.setattr(spec_folder, "check_document", check)


ENDS: dict[str, Callable[[], object]] = {
    "SystemExit": lambda: sys.exit(3),
    "SystemExit 0": lambda: sys.exit(0),
    "KeyboardInterrupt": lambda: exec("raise KeyboardInterrupt"),
    "GeneratorExit": lambda: exec("raise GeneratorExit"),
    "RecursionError": lambda: exec("def f(): f()\nf()"),
    "MemoryError": lambda: bytearray(3 * 10**9),
    "much memory in pieces": lambda: [bytearray(10**7) for _ in range(10**6)],
    "os._exit": lambda: os._exit(0),
    "os.abort": lambda: os.abort(),
    "SIGKILL": lambda: os.kill(os.getpid(), 9),
    "SIGSTOP": lambda: os.kill(os.getpid(), 19),
    "SIGSEGV": lambda: os.kill(os.getpid(), 11),
    "sleep": lambda: time.sleep(60),
    "loop": lambda: spin(),
    "a computation in C": lambda: pow(7, 10**9),
    "a quadratic pattern": lambda: re.match(r"(a|a)*b", "a" * 60),
    "ValueError": lambda: exec("raise ValueError('x' * 10**6)"),
    "a base exception": lambda: exec("class X(BaseException): pass\nraise X('\\ud800\\x1b[2J')"),
    "much output": lambda: print("x" * 10**7),
    "a large answer": lambda: [].append("x"),
}


@pytest.mark.parametrize("end", ENDS)
def test_any_end_of_the_reading_process(end: str) -> None:
    def work(report: Callable[[Any], None]) -> None:
        report("first")
        ENDS[end]()

    before = processor_s()
    # only these need the clock; the others must not meet it on a busy machine
    found = run_isolated(work, Limits(0.3, clock_s=3 if end in ("sleep", "SIGSTOP") else 60))
    assert processor_s() - before < 0.8
    assert found.answers == ("first",)
    assert bool(found.failure) is (end not in ("much output", "a large answer"))
    assert found.failure.isprintable()
    assert len(found.failure) < 2_100


class TestBusyMachines:
    """The time in which a process waits for a processor says nothing of what it reads."""

    @staticmethod
    def sleep(report: Callable[[Any], None]) -> None:
        time.sleep(0.4)
        report("done")

    def test_waiting_for_a_processor_does_not_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begin = time.monotonic()
        monkeypatch.setattr(isolation, "_queued_s", lambda process: time.monotonic() - begin)
        found = run_isolated(self.sleep, Limits(5, clock_s=30, idle_s=0.1))
        assert (found.answers, found.failure, found.too_slow) == (("done",), "", False)

    def test_waiting_for_anything_else_counts(self) -> None:
        found = run_isolated(self.sleep, Limits(5, clock_s=30, idle_s=0.1))
        assert (found.answers, found.failure) == ((), "it takes more than 0.1 s")
        assert found.too_slow

    def test_the_time_limit_ends_any_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(isolation, "_queued_s", lambda process: 1e9)
        found = run_isolated(self.sleep, Limits(5, clock_s=0.1, idle_s=30))
        assert (found.answers, found.failure) == ((), "it takes more than 0.1 s")


def test_specs_of_sub_folders_carry_their_folders_as_tags(folder: Path) -> None:
    for place in (
        "alice/a.yaml",
        "bob/llama/b.yml",
        "presets/p.yaml",
        "alice/presets/q.yaml",
        ".git/c.yaml",
        ".x.yaml",
    ):
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(GOOD.replace("name: good", f"name: {path.stem}"))
    (folder / "bob" / "bad.yaml").write_text("point: p\nstages: {a: {kind: trian}}\n")
    dags = {dag.dag_id: set(dag.tags) for dag in build_sweep_dags(folder)}
    assert set(dags) == {*GOOD_DAGS, "a", "a.point", "b", "b.point"}
    assert dags["a"] == {"megatron", "sweep", "alice"}
    assert dags["b.point"] == {"megatron", "point", "bob", "llama"}
    (problem,) = problems(folder)
    assert f"{folder}/bob/bad.yaml:2:14: stages.a.kind is 'trian'" in problem


class TestTasks:
    def test_reads_its_own_sweep_only(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spec_folder, "conf", Patient())
        for number in range(23):
            (folder / f"s{number}.yaml").write_text(GOOD.replace("name: good", f"name: s{number}"))
        names(folder)
        monkeypatch.setattr(spec_folder, "run_isolated", None)
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "s7.point")
        before = processor_s()
        assert names(folder) == ["s7", "s7.point"]
        assert processor_s() - before < 0.1
        raise_for_spec_errors(folder)

    def test_a_run_continues_when_its_spec_is_broken(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names(folder)
        (folder / "good.yaml").write_text("name: good\npoint: [")
        assert names(folder) == ["zz", "zz.point"]
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "good.point")
        assert names(folder) == ["good", "good.point"]

    def test_sees_a_changed_spec(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names(folder)
        (folder / "good.yaml").write_text(GOOD.replace("{a:", "{b:"))
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "good.point")
        (_, point) = build_sweep_dags(folder)
        assert point.has_task("b.submit")

    @pytest.mark.parametrize("wanted", ["nothing", "nothing.point", "../x", "a b", "."])
    def test_of_no_sweep(self, wanted: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", wanted)
        assert names(folder) == []


def cached_files() -> list[Path]:
    place = Path(os.environ["AIRFLOW_MEGATRON_LOCAL"]) / "spec_cache"
    return sorted(path for path in place.rglob("*") if path.is_file())


def cached_index() -> Path:
    (index,) = (path for path in cached_files() if path.name == "index.json")
    return index


class TestCache:
    def test_a_changed_base_changes_the_sweep(self, folder: Path) -> None:
        (folder / "presets").mkdir()
        (folder / "presets" / "base.yaml").write_text(GOOD)
        (folder / "good.yaml").write_text("name: good\nextends: presets/base.yaml\n")
        assert names(folder) == GOOD_DAGS
        (folder / "presets" / "base.yaml").write_text(GOOD.replace("{a:", "{b:"))
        assert build_sweep_dags(folder)[1].has_task("b.submit")
        (folder / "presets" / "base.yaml").unlink()
        assert names(folder) == ["zz", "zz.point"]

    def test_a_sidecar_that_appears_changes_or_goes_changes_the_sweep(self, folder: Path) -> None:
        (folder / "alone.yaml").write_text(
            "job: {name: x}\nbackend: {class_name: BashBackend, command: echo}\nsweep: {type: product, groups: []}\n"
        )
        sidecar = folder / "alone.yaml.airflow.yml"

        def active() -> list[int]:
            return [dag.max_active_runs for dag in build_sweep_dags(folder) if dag.dag_id == "alone.point"]

        usual = active()
        for number in (3, 4):
            sidecar.write_text(f"max_active_points: {number}\n")
            assert active() == [number]
        sidecar.write_text("max_active_point: 3\n")
        assert active() == []
        (problem,) = problems(folder)
        assert f"{sidecar}:1:1: unknown key 'max_active_point' (did you mean 'max_active_points'" in problem
        sidecar.unlink()
        assert active() == usual

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", '{"key": 1}', "\0", "[" * 100_000])
    def test_a_damaged_one_is_not_used(self, content: str, folder: Path) -> None:
        names(folder)
        for path in cached_files():
            kept = path.read_text()
            path.write_text(content)
            assert names(folder) == GOOD_DAGS
            path.write_text(kept)

    @pytest.mark.parametrize("damage", [None, 1, [], {}, "x", {"outline": 1}, {"outline": {"name": "good"}}])
    def test_a_damaged_entry_is_not_used(self, damage: Any, folder: Path) -> None:
        names(folder)
        cache = cached_index()
        data = json.loads(cache.read_text())
        data["entries"][str(folder / "good.yaml")] = damage
        cache.write_text(json.dumps(data))
        assert names(folder) == GOOD_DAGS

    def test_one_that_others_can_write_is_not_used(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names(folder)
        (Path(os.environ["AIRFLOW_MEGATRON_LOCAL"]) / "spec_cache").chmod(0o777)
        monkeypatch.setattr(spec_folder, "run_isolated", refused)
        with pytest.raises(AssertionError, match="read again"):
            names(folder)

    def test_is_for_its_owner_only(self, folder: Path) -> None:
        names(folder)
        place = Path(os.environ["AIRFLOW_MEGATRON_LOCAL"]) / "spec_cache"
        assert {stat.S_IMODE(path.stat().st_mode) for path in (place, *place.iterdir())} == {0o700}
        assert {stat.S_IMODE(path.stat().st_mode) for path in cached_files()} == {0o600}

    def test_nothing_but_the_specs_own_files_counts(self, folder: Path) -> None:
        names(folder)
        reads = json.loads(cached_index().read_text())["entries"][str(folder / "good.yaml")]["reads"]
        assert set(reads) == {str(folder / "good.yaml"), str(clusters_dir() / "local.yaml")}


def refused(*_: object) -> None:
    raise AssertionError("read again")


@pytest.mark.parametrize(
    "shape", ["pipe", "link to a device", "link to nothing", "not text", "unreadable name"]
)
def test_anything_but_a_file(shape: str, folder: Path) -> None:
    path = folder / "bad.yaml"
    match shape:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "link to nothing":
            path.symlink_to("nowhere")
        case "not text":
            path.write_bytes(b"\xff\xfe\x00")
        case _:
            (folder / os.fsdecode(b"b\xff\x1b.yaml")).write_text(GOOD)
    before = time.monotonic(), processor_s()
    assert names(folder) == GOOD_DAGS
    assert time.monotonic() - before[0] < 45
    assert processor_s() - before[1] < 2.5
    assert len(problems(folder)) == 1


def test_errors_of_all_are_raised_as_one(folder: Path) -> None:
    (folder / "bad.yaml").write_text(spec("{report: {kind: command, scope: sweep, command: [x]}}"))
    with pytest.raises(
        SweepSpecErrors, match=r"1 problem in sweep specs:\n.*bad.yaml:3:10: a stage cannot be named"
    ):
        raise_for_spec_errors(folder)


@pytest.mark.parametrize(("command", "shown"), [(["dags", "test"], True), (["dags", "list"], False)])
def test_errors_are_printed_where_airflow_prints_only_a_traceback(
    command: list[str],
    shown: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["airflow", *command, "bad"])
    (folder / "bad.YAML").touch()
    with pytest.raises(SweepSpecErrors, match=r"bad\.YAML: it is not read"):
        raise_for_spec_errors(folder)
    assert ("bad.YAML: it is not read" in capsys.readouterr().err) == shown


def test_many_files_of_another_folder_do_not_come_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The specs that are refused share a limit of time; the files of one sub-folder do not use it up."""
    (folder / "eve").mkdir()
    (folder / "zoe").mkdir()
    for number in range(100):
        (folder / "eve" / f"{number}.yaml").write_text("x: 1\n")
    (folder / "zoe" / "last.yaml").write_text(GOOD.replace("name: good", "name: last"))
    monkeypatch.setattr(spec_folder, "ALL_S", spec_folder.FIRST_S + 0.2)
    read = read_spec_folder(folder)
    assert {"good", "last"} <= {outline.name for outline in read.outlines}
    assert any("not read yet" in problem.message for problem in read.problems)


def test_a_crowded_folder_has_an_error_and_changes_no_other_sweep(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_FILES", 10)
    (folder / "eve").mkdir()
    for number in range(20):
        (folder / "eve" / f"{number}.airflow.yml").touch()
    read = read_spec_folder(folder)
    assert [outline.name for outline in read.outlines] == ["good", "zz"]
    (problem,) = read.problems
    assert str(problem).startswith(f"{folder / 'eve'}: it holds 20 YAML files of one user")
