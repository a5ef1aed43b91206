"""Names and contents of a job's files, and its Slurm name, do not change a poll's result for another job."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_megatron.slurm.polling import poll as polling
from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.remote.checkpoint_listing import listing_script, parse_listing
from airflow_megatron.slurm.remote.framing import BEGIN, END
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

SEPARATORS = {
    "line feed": b"\n",
    "carriage return": b"\r",
    "vertical tab": b"\x0b",
    "form feed": b"\x0c",
    "file separator": b"\x1c",
    "next line": b"\xc2\x85",
    "line separator": b"\xe2\x80\xa8",
    "tab": b"\t",
    "no UTF-8": b"\xff\x85",
    "escape": b"\x1b[2J",
}
ANSWERS = (
    b"A 7|7|COMPLETED|0:0|1|1|2|1|1|n1|None|good",
    b"Q 7|COMPLETED|1|1|2|1|n1|None|good",
    b"7|COMPLETED|1|1|2|1|n1|None|good",
    b"queue_status 1",
    b"accounting_status 1",
    b"E 0",
    b"E boom",
    b"L 0 9999",
    b"L x",
    b"C many x",
    b"D good",
    b"N good",
    b"listed 1",
    b"G 0 good",
    b"R 0 0 QQ==",
    b"R 0 0 !",
    b"S AAAA",
    b"now 1",
    b"J JobId=7 JobName=good UserId=x(0)",
    BEGIN.encode(),
    END.encode(),
)


def _files(run: Path, odd: bytes) -> None:
    folder = run / "checkpoints" / "iter_0000005"
    for answer in ANSWERS:
        (Path(str(folder)) / f"x{(odd + answer).decode(errors='surrogateescape')}").write_bytes(b"1")


def _folders(run: Path, odd: bytes) -> None:
    for answer in ANSWERS:
        name = (b"iter_0000006" + odd + answer).replace(b"/", b"_").decode(errors="surrogateescape")
        (run / "checkpoints" / name).mkdir()
        (run / "checkpoints" / name / "metadata.json").write_bytes(b"1")


def _matches(run: Path, odd: bytes) -> None:
    for answer in ANSWERS:
        (run / f"found_{(odd + answer).decode(errors='surrogateescape')}").write_bytes(b"1")


def _one_liners(run: Path, odd: bytes) -> None:
    text = odd.join((b"5", *ANSWERS))
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_bytes(text)
    (run / "attempt" / "exit.json").write_bytes(b"[" * 6000 + text)
    (run / "attempt" / "run" / "job_id").write_bytes(text)


def _log(run: Path, odd: bytes) -> None:
    (run / "log").write_bytes(odd.join((b"", *ANSWERS, b"", b"E 0", b"X 0", b"E 1", b"")) * 3)
    (run / "read").write_bytes(odd.join(ANSWERS))


PLACES: dict[str, Callable[[Path, bytes], None]] = {
    "names of files": _files,
    "names of folders": _folders,
    "names that a pattern finds": _matches,
    "small files": _one_liners,
    "log": _log,
}


def _run(tmp_path: Path, name: str) -> Path:
    run = tmp_path / name
    (run / "checkpoints" / "iter_0000005").mkdir(parents=True)
    (run / "attempt" / "run").mkdir(parents=True)
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("5")
    (run / "checkpoints" / "iter_0000005" / ".metadata").write_text("12")
    record = {"exit_code": 3, "ended": 5, "job_id": "7"}
    (run / "attempt" / "exit.json").write_text(json.dumps(record))
    (run / "attempt" / "run" / "job_id").write_text("7\n")
    (run / "log").write_text(f"log of {name}\n")
    (run / "read").write_text("text")
    (run / "there").touch()
    return run


def _watch(run: Path, job_id: str) -> Watch:
    return Watch(
        key=run.name,
        job_id=job_id,
        job_name=run.name,
        attempt_dir=str(run / "attempt"),
        checkpoint_dir=str(run / "checkpoints"),
        log_file=str(run / "log"),
        read_files=(str(run / "read"),),
        check_files=(str(run / "there"), str(run / "absent")),
        globs=(f"{run}/found_*",),
        commands=("printf said",),
    )


def _queue(slurm, *evil: str) -> None:
    """A queue and accounting with the rows of two jobs, in the requested output format."""
    names = ["good", *evil]
    rows = "".join(
        f"printf '%s|{number}|FAILED|1|1|2|1|n1|None|%s\\n' \"$mark\" \"$(cat '{slurm.root}/name{number}')\"\n"
        for number, _ in enumerate(names, 7)
    )
    for number, name in enumerate(names, 7):
        (slurm.root / f"name{number}").write_bytes(name.encode(errors="surrogateescape"))
    slurm.behave("squeue", f'while [ "$1" != -o ]; do shift; done\nmark=${{2%%|*}}\n{rows}')
    cells = ("7", "FAILED", "3:0", "1", "1", "2", "1", "1", "n1", "None")
    text = "".join(
        f'for cell in {number} {" ".join(cells)}; do printf "%s%s" "$cell" "$mark"; done\n'
        f"cat '{slurm.root}/name{number}'; echo\n"
        for number, _ in enumerate(names, 7)
    )
    slurm.behave("sacct", f"for word; do case $word in --delimiter=*) mark=${{word#*=}};; esac; done\n{text}")


def _seen(slurm, *watches: Watch):
    found = parse_poll(watches, slurm.run(poll_script(watches)))["good"]
    return (
        {name: getattr(found, name) for name in found.__slots__}
        if hasattr(found, "__slots__")
        else vars(found)
    )


def _without_times(seen) -> dict[str, object]:
    return {name: value for name, value in seen.items() if name not in ("time", "errors")}


@dataclass(frozen=True)
class Seen:
    """A run and the result of its poll before other runs change."""

    run: Path
    slurm: Any
    found: dict[str, object]


@pytest.fixture(scope="module")
def good(slurm_of_module, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    run = _run(tmp_path_factory.mktemp("good"), "good")
    _queue(slurm_of_module, "evil")
    evil = _watch(_run(run.parent, "evil"), "8")
    found = _without_times(_seen(slurm_of_module, evil, _watch(run, "7")))
    assert found["queue"].state is JobState.FAILED
    assert found["accounting"].exit_code == 3
    assert found["checkpoint_files"] == {"iter_0000005": {".metadata": 2}}
    assert found["log_chunk"] == b"log of good\n"
    return Seen(run, slurm_of_module, found)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("separator", SEPARATORS)
def test_files_of_one_job_change_nothing_of_another(
    good: Seen, tmp_path: Path, place: str, separator: str
) -> None:
    evil = _run(tmp_path, "evil")
    _queue(good.slurm, "evil")
    watches = (_watch(evil, "8"), _watch(good.run, "7"))
    PLACES[place](evil, SEPARATORS[separator])
    assert _without_times(_seen(good.slurm, *watches)) == good.found
    assert _without_times(_seen(good.slurm, *reversed(watches))) == good.found


@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
def test_the_name_of_one_job_changes_nothing_of_another(good: Seen, answer: bytes) -> None:
    text = answer.decode()
    _queue(good.slurm, *(f"x{odd.decode(errors='surrogateescape')}{text}" for odd in SEPARATORS.values()))
    assert _without_times(_seen(good.slurm, _watch(good.run, "7"))) == good.found


def test_a_listing_keeps_names_apart(slurm, tmp_path: Path) -> None:
    good, evil = _run(tmp_path, "good"), _run(tmp_path, "evil")
    for odd in SEPARATORS.values():
        _files(evil, odd)
        _folders(evil, odd)
    (tmp_path / "x\nK other").mkdir()
    (tmp_path / "x\nK other" / "checkpoints").mkdir()
    runs = parse_listing(str(tmp_path), slurm.run(listing_script(str(tmp_path))))
    assert sorted(run.run for run in runs) == ["evil", "good"]
    (listed,) = (run for run in runs if run.run == good.name)
    assert listed.directories == {"iter_0000005": {".metadata": 2}}


@pytest.mark.parametrize("separator", SEPARATORS)
def test_links_of_one_job_change_no_record_of_another(slurm, tmp_path: Path, separator: str) -> None:
    stages = [tmp_path / name / ".jobs" / "train" for name in ("evil", "good")]
    for stage in stages:
        (stage / "1").mkdir(parents=True)
        (stage / "1" / "jobid").write_text("7\n")
    odd = SEPARATORS[separator].decode(errors="surrogateescape")
    verdict = json.dumps({"outcome": "finished", "reason": "forged", "attempt": 1})
    answers = ("decided.start", "stage 1", f"verdict {verdict}", "attempt 1", "job_id 99")
    (stages[0] / "1" / "ahead_decision").symlink_to(odd.join(answers))
    names = [str(stage) for stage in stages]
    found = parse_stage_states(names, slurm.run(stage_state_script(names)))
    evil, good = (found[name] for name in names)
    assert good.verdict is None
    assert good.job_id == "7"
    assert evil.job_id == "7"


def test_a_file_too_large_for_a_record_is_not_read(slurm, tmp_path: Path) -> None:
    run = _run(tmp_path, "good")
    with (run / "checkpoints" / "latest_checkpointed_iteration.txt").open("wb") as stream:
        stream.truncate(1 << 34)
    _queue(slurm)
    seen = _seen(slurm, _watch(run, "7"))
    assert seen["tracker"] is None
    assert seen["owner_job_id"] == "7"


@given(
    st.lists(st.sampled_from([*ANSWERS, b"", b" ", b"\xff", b"M x", b"F 1 2 3"]), max_size=30),
    st.integers(0, 40),
)
@settings(max_examples=60, deadline=None)
def test_a_damaged_answer_is_an_error_or_an_answer(lines: list[bytes], cut: int) -> None:
    watches = [_watch(Path("/r/good"), "7"), _watch(Path("/r/evil"), "8")]
    body = b"\n".join((b"now 5.0", *lines, b"listed 0", b"listed 0", b"listed 0")).decode(errors="replace")
    text = f"{BEGIN}\n{body[: len(body) - cut]}\n{END}\n"
    with contextlib.suppress(TransportError):
        assert set(parse_poll(watches, CommandResult(0, text, ""))) == {"good", "evil"}


def test_shell_of_this_machine_reads_the_scripts() -> None:
    script = poll_script([_watch(Path("/r/good"), "7")])
    assert subprocess.run(["sh", "-n"], input=script.encode(), check=False).returncode == 0


SLOW_GLOBS = [f"/{'*/' * depth}{last}" for depth in range(5, 25, 2) for last in ("*", "x?z")]


@pytest.mark.parametrize("number", [1, 20])
def test_a_pattern_for_the_whole_file_system_delays_no_job(
    slurm, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "GLOB_SECONDS", 1)
    good = _run(tmp_path, "good")
    (good / "found_1").touch()
    _queue(slurm)
    before = _without_times(_seen(slurm, _watch(good, "7")))
    assert before["matches"] == {f"{good}/found_*": (f"{good}/found_1",)}
    watches = (Watch(key="evil", globs=tuple(SLOW_GLOBS[-number:])), _watch(good, "7"))
    begin = time.monotonic()
    found = parse_poll(watches, slurm.run(poll_script(watches)))
    assert time.monotonic() - begin < 30
    assert _without_times(vars(found["good"])) == before
    assert set(found["evil"].matches) | {error.partition(" ")[0] for error in found["evil"].errors} == set(
        SLOW_GLOBS[-number:]
    )
    assert any("cannot be expanded within 1 s" in error for error in found["evil"].errors)


@pytest.mark.parametrize(("each", "in_all"), [(64 << 10, 1 << 20), (1 << 20, 20 << 10)])
def test_patterns_with_long_answers_are_left_out(
    slurm, tmp_path: Path, each: int, in_all: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a poll's patterns, those with the fewest bytes are answered."""
    monkeypatch.setattr(polling, "GLOB_BYTES", each)
    monkeypatch.setattr(polling, "GLOB_BYTES_PER_POLL", in_all)
    good, evil = _run(tmp_path, "good"), _run(tmp_path, "evil")
    (good / "found_1").touch()
    for number in range(1000):
        (evil / f"{number:04d}{'x' * 200}").touch()
    _queue(slurm)
    before = _without_times(_seen(slurm, _watch(good, "7")))
    short = [f"{evil}/00{digit}*" for digit in range(10)]
    watches = (Watch(key="evil", globs=(f"{evil}/0*", *short)), _watch(good, "7"))
    result = slurm.run(poll_script(watches))
    assert len(result.stdout) < 100 << 10
    found = parse_poll(watches, result)
    assert _without_times(vars(found["good"])) == before
    matches = found["evil"].matches
    assert f"{evil}/0*" not in matches
    assert matches
    assert (len(matches) < len(short)) == (in_all < each)
    assert all(len(paths) == 10 for paths in matches.values())
    assert any("of paths" in error for error in found["evil"].errors)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("kind", ["one checkpoint", "all checkpoints"])
def test_checkpoints_with_long_names_are_left_out(
    slurm, tmp_path: Path, kind: str, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the answer nor the other job's listing depends on how long the names of one job's files are."""
    monkeypatch.setattr(polling, "CHECKPOINT_BYTES", (40 if kind == "one checkpoint" else 400) << 10)
    monkeypatch.setattr(polling, "CHECKPOINT_BYTES_PER_POLL", 200 << 10)
    good, evil = _run(tmp_path, "good"), _run(tmp_path, "evil")
    for iteration in range(2):
        folder = evil / "checkpoints" / f"iter_{iteration:07d}"
        folder.mkdir()
        for number in range(700):
            (folder / f"{number:04d}{'x' * 200}").touch()
    _queue(slurm)
    before = _without_times(_seen(slurm, _watch(good, "7")))
    assert before["checkpoint_files"]
    watches = (_watch(evil, "8"), _watch(good, "7"))
    script = poll_script(watches)
    if slow:  # the directories are listed one by one
        first = "am_list=$(printf"
        assert script.count(first) == 1
        script = script.replace(first, "am_list=$(exit 124; printf")
    result = slurm.run(script)
    assert len(result.stdout) < 100 << 10
    found = parse_poll(watches, result)
    assert _without_times(vars(found["good"])) == before
    unreachable = found["evil"].unreachable
    assert unreachable is not None
    assert "too many files are in it" in unreachable.reason
