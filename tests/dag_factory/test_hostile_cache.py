"""What a spec leaves in the cache of specs costs the tasks of other sweeps nothing, and changes nothing of theirs."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from hostile_specs import GOOD, spec

from airflow_megatron.dag_factory import own_sweep, spec_folder
from airflow_megatron.dag_factory.own_sweep import read_sweep
from airflow_megatron.dag_factory.spec_cache import SpecCache, SpecEntry
from airflow_megatron.dag_factory.spec_folder import read_spec_folder
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.sweep_owners import record_owner
from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.model.dag_names import MAX_WAITS
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.model.stage_tree import StageInstance
from airflow_megatron.spec.model.sweep import SweepSettings
from airflow_megatron.spec.spec_files import load_sweep_text


@pytest.fixture(autouse=True)
def own_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path_factory.mktemp("local")
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(local))
    monkeypatch.setenv("AIRFLOW_MEGATRON_PINS", str(local / "pins"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(tmp_path))
    (tmp_path / "good.yaml").write_text(GOOD)
    return tmp_path


def outline(name: str, file: str, stages: int = 1, others: int = 0) -> SweepOutline:
    names = [f"{'s' * 100}{number}" for number in range(stages)]
    tree = tuple(
        StageInstance(one, one, "command", "point", None, None, after=tuple(names[:others])) for one in names
    )
    return SweepOutline(name, file, SweepSettings(), tree)


def place() -> Path:
    (found,) = (Path(os.environ["AIRFLOW_MEGATRON_LOCAL"]) / "spec_cache").iterdir()
    return found


LARGE: dict[str, SpecEntry] = {
    "stages": SpecEntry(outline("bad", "bad", 500)),
    "stages that wait": SpecEntry(outline("bad", "bad", 500, 20)),
    "last stages": SpecEntry(None, last_good=outline("bad", "bad", 500, 20)),
    "errors": SpecEntry(None, tuple(Problem("bad", 1, 1, "x" * 1200, "y" * 1200) for _ in range(50))),
    "a description": SpecEntry(SweepOutline("bad", "bad", SweepSettings(description="d" * 10_000), ())),
}


@pytest.mark.slow
@pytest.mark.parametrize("entry", LARGE.values(), ids=LARGE)
def test_tasks_of_others_load_a_line_for_each_spec(entry: SpecEntry, folder: Path) -> None:
    cache = SpecCache(folder)
    files = [folder / f"bad{number}.yaml" for number in range(20)]
    for file in files:
        cache.put(file, entry)
    cache.put(folder / "good.yaml", SpecEntry(outline("good", str(folder / "good.yaml"))))
    cache.save([*files, folder / "good.yaml"])
    assert (place() / "index.json").stat().st_size < 10_000
    begin = time.thread_time()
    found = read_sweep(folder, "good")
    assert time.thread_time() - begin < 0.05
    assert found is not None
    assert found.name == "good"
    kept = SpecCache(folder).last(files[3])
    assert kept is not None
    assert (kept.outline, kept.problems) == (entry.outline, entry.problems)


class TestOthersOfOneName:
    """Files that had, or have, the name of a sweep that was planned from another file."""

    @pytest.fixture
    def planned(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        cache = SpecCache(folder)
        cache.put(folder / "good.yaml", SpecEntry(outline("good", str(folder / "good.yaml"))))
        cache.save([folder / "good.yaml"])
        record_owner("good", str(folder / "good.yaml"), PinStore())

        def read(_: Path) -> None:
            raise AssertionError("a task reads all specs again")

        monkeypatch.setattr(spec_folder, "read_spec_folder", read)
        return folder

    @pytest.mark.parametrize(
        "rival",
        [
            SpecEntry(outline("good", "rival.yaml")),
            SpecEntry(outline("good", "rival.yaml"), reads={"rival.yaml": "another"}),
            SpecEntry(None, complete=False, last_good=outline("good", "rival.yaml")),
            SpecEntry(
                None, (Problem("rival.yaml", 1, 1, "broken"),), last_good=outline("good", "rival.yaml")
            ),
        ],
        ids=["valid", "changed", "never read to its end", "broken"],
    )
    def test_a_task_does_not_read_all_specs(self, rival: SpecEntry, planned: Path) -> None:
        (planned / "rival.yaml").write_text(GOOD)
        cache = SpecCache(planned)
        cache.put(planned / "rival.yaml", rival)
        cache.save([planned / "good.yaml", planned / "rival.yaml"])
        found = own_sweep.read_sweep(planned, "good")
        assert found is not None
        assert found.file == str(planned / "good.yaml")

    def test_a_wrong_name_in_the_index_is_ignored(self, planned: Path) -> None:
        index = place() / "index.json"
        data = json.loads(index.read_text())
        head = data["entries"][str(planned / "good.yaml")]
        data["entries"][str(planned / "good.yaml")] = {**head, "name": "other"}
        index.write_text(json.dumps(data))
        assert read_sweep(planned, "other") is None


class TestFiles:
    @pytest.fixture
    def cached(self, folder: Path) -> Path:
        cache = SpecCache(folder)
        cache.put(folder / "good.yaml", SpecEntry(outline("good", str(folder / "good.yaml"))))
        cache.save([folder / "good.yaml"])
        assert SpecCache(folder).last(folder / "good.yaml") is not None
        return folder

    @staticmethod
    def is_used(folder: Path) -> bool:
        return SpecCache(folder).last(folder / "good.yaml") is not None

    def test_an_exchanged_file_is_not_used(self, cached: Path) -> None:
        (body,) = (path for path in place().iterdir() if path.name != "index.json")
        text = body.read_text().replace('"name": "good"', '"name": "evil"')
        assert "evil" in text
        body.write_text(text)
        assert not self.is_used(cached)

    @pytest.mark.parametrize(
        "name", ["../index", "", "x", "/etc/passwd", 1, None, [], "0" * 64, "a\n" + "0" * 64]
    )
    def test_the_index_names_files_of_its_own_folder_only(self, name: object, cached: Path) -> None:
        index = place() / "index.json"
        data = json.loads(index.read_text())
        data["entries"][str(cached / "good.yaml")]["body"] = name
        index.write_text(json.dumps(data))
        assert not self.is_used(cached)

    @pytest.mark.parametrize("mode", [0o770, 0o707, 0o722, 0o777])
    def test_a_folder_that_others_write_is_not_used(self, mode: int, cached: Path) -> None:
        place().chmod(mode)
        assert not self.is_used(cached)

    def test_a_link_is_not_used(self, cached: Path) -> None:
        real = place()
        moved = real.parent.parent / "moved"
        real.rename(moved)
        real.symlink_to(moved)
        assert not self.is_used(cached)

    def test_unreferenced_files_are_removed_later(self, folder: Path) -> None:
        for number in range(3):
            cache = SpecCache(folder)
            cache.put(folder / "good.yaml", SpecEntry(outline(f"good{number}", "x")))
            cache.save([folder / "good.yaml"])
        assert len(list(place().iterdir())) == 4
        for path in place().iterdir():
            os.utime(path, (1, 1))
        cache.put(folder / "good.yaml", SpecEntry(outline("last", "x")))
        cache.save([folder / "good.yaml"])
        assert len(list(place().iterdir())) == 2


class TestStagesThatWait:
    FAN = (
        "name: bad\npoint: p\nstages:\n  r: {kind: command, command: [x]}\n"
        "  a: {kind: command, command: [x], for_each: {v: @}}\n"
        "  b: {kind: command, command: [x], parent: r, for_each: {w: @}, start: {finished: [a]}}\n"
    )

    @pytest.mark.parametrize("values", [80, 150, 245])
    def test_for_too_many_are_refused(self, values: int, tmp_path: Path) -> None:
        text = self.FAN.replace("@", str(list(range(values))))
        with pytest.raises(SpecError, match=r"s.yaml:3:1: its stages wait for [0-9,]+ others, counting each"):
            load_sweep_text(text, str(tmp_path / "s.yaml"))

    def test_for_many_are_accepted(self, tmp_path: Path) -> None:
        text = self.FAN.replace("@", str(list(range(50))))
        sweep = load_sweep_text(text, str(tmp_path / "s.yaml"))
        assert 5_000 < 2 * 50 * 50 + 50 * 2 <= MAX_WAITS
        assert SweepOutline.of(sweep).weight == 101 + (2 * 50 * 50 + 50 * 2) // 30

    def test_count_among_the_stages_of_all_sweeps(self) -> None:
        entries = [SpecEntry(outline(f"s{one}", f"{one}", 100, 99), found_at=one) for one in range(40)]
        found = spec_folder.sweeps_of_entries(entries, most_stages=7000)
        assert 10 < len(found.outlines) < 20
        assert len(found.outlines) + len(found.problems) == 40


@pytest.mark.slow
def test_a_spec_that_reads_very_many_files_is_refused(folder: Path) -> None:
    for number in range(220):
        (folder / f"list{number}").write_text("nid1\n")
    lists = "".join(f"  n{number}: ${{oc.exclude_nodes:list{number}}}\n" for number in range(220))
    (folder / "bad.yaml").write_text(
        "job: {name: x}\nbackend: {class_name: BashBackend, command: echo}\n"
        f"sweep: {{type: product, groups: []}}\nslurm:\n env:\n{lists}"
    )
    (problem,) = read_spec_folder(folder).problems
    assert re.match(r"reading it opens 22[0-9] files, with paths of", problem.message)
    entry = SpecCache(folder).last(folder / "bad.yaml")
    assert entry is not None
    assert len(entry.reads) == 200


@pytest.mark.slow
def test_many_errors_of_one_spec_take_little_room(folder: Path) -> None:
    stages = ", ".join(f"s{n}: {{kind: command, command: [x], {'k' * 500}{n}: 1}}" for n in range(40))
    (folder / "bad.yaml").write_text(spec(f"{{{stages}}}"))
    problems = read_spec_folder(folder).problems
    assert len(problems) > 20
    assert sum(len(one.message) + len(one.hint) for one in problems) <= 30_000
