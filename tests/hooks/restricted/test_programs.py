"""The programs of restricted keys are the scripts that the package sends."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from airflow_megatron.hooks.restricted import dispatcher
from airflow_megatron.hooks.restricted.dispatcher import LEFT_OUT, Checks, Refusal, script_of
from airflow_megatron.hooks.restricted.programs import LAYOUT, installed, programs, request_for
from airflow_megatron.hooks.restricted.requests import left_out_of
from airflow_megatron.results.readings.snapshot import snapshot_script
from airflow_megatron.slurm.polling.job_ends import job_ends_script
from airflow_megatron.slurm.polling.poll import GLOB_BYTES, GLOB_BYTES_PER_POLL, parse_poll, poll_script
from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.remote.checkpoint_listing import listing_script
from airflow_megatron.slurm.remote.finished_stages import finished_stages_script
from airflow_megatron.slurm.remote.framing import BEGIN, framed
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.run_archive import archive_script
from airflow_megatron.slurm.remote.run_folders import folders_script
from airflow_megatron.slurm.remote.secret_delivery import removal_script
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.slurm.repair.fresh_start import fresh_start_script
from airflow_megatron.slurm.repair.lost_tracker import tracker_script
from airflow_megatron.slurm.repair.quarantine import Quarantine, quarantine_script
from airflow_megatron.slurm.repair.rollback import Rollback, rollback_script
from airflow_megatron.slurm.states.observation import END_OF_LOG, Watch
from airflow_megatron.slurm.submission.allocation import partition_command
from airflow_megatron.slurm.submission.attempt_chain import withdraw_chain_script
from airflow_megatron.slurm.submission.cancellation import cancel_script, withdraw_script
from airflow_megatron.slurm.submission.job_array import (
    ArrayRequest,
    ArrayTask,
    array_decision_script,
    array_script,
)
from airflow_megatron.slurm.submission.provenance import record_script
from airflow_megatron.slurm.submission.queue_ahead import (
    take_up_script,
    waiting_jobs_script,
    withdraw_ahead_script,
)
from airflow_megatron.slurm.submission.queue_limits import QueueLimit
from airflow_megatron.slurm.submission.single_job import SubmissionRequest, submission_script
from airflow_megatron.slurm.verdicts.stage_records import stage_state_script, write_record_script
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.supervision.condition_watch import _newer_text

SLURM = SlurmCommands("site", "/opt/slurm it's/bin")
FILE = json.loads(installed(SLURM))
RUN = "/runs/study it's/lr1"
STAGE = f"{RUN}/.jobs/train"
ATTEMPT = Attempt("study.lr1.train.a2", STAGE, 2)
SCRIPT = "#!/bin/bash\n#SBATCH --time=5\necho 'ä' \"$(id)\" <<'AM_x'\nAM_x\n"
SINGLE = SubmissionRequest(ATTEMPT, SCRIPT, {"job": "a'b\n"}, "tok-1")
WATCHES = [
    Watch(
        "a",
        job_id="7",
        job_name="study.lr1.train.a2",
        attempt_dir=ATTEMPT.directory,
        checkpoint_dir=f"{RUN}/checkpoints",
        checkpoint_from=2**63 - 1,
        log_file=f"{RUN}/logs/train-2.out",
        log_offset=END_OF_LOG,
        globs=(f"{RUN}/converted checkpoints/iter_*.done",),
        check_files=(f"{RUN}/done",),
        commands=(
            partition_command(SLURM, "gpu"),
            _newer_text(Condition("file", path=f"{RUN}/out put/*", producer=STAGE), 2),
        ),
    ),
    Watch("b", job_id="8_3", attempt_dir=f"{RUN}/.jobs/other/1"),
]
SCRIPTS = {
    "submit": submission_script(SINGLE, SLURM),
    "submit all": submission_script(
        SubmissionRequest(
            ATTEMPT,
            SCRIPT,
            {},
            "tok-1",
            ("--time=5", "--constraint=a|b", "--exclude=n[1-3]"),
            ("afterok:7:8",),
            chained=True,
            ahead="a stage 7",
            log_dir=f"{RUN}/logs",
            limits=(QueueLimit(5, ""), QueueLimit(3, "study.")),
            places_dir="/runs/.submitting",
            secrets={"TOKEN": "x'y", "OTHER": "z"},
        ),
        SLURM,
    ),
    "array": array_script(
        ArrayRequest(
            Attempt("study.train.array.1", "/runs/study/.arrays/train.1", 1),
            (
                ArrayTask(ATTEMPT, SCRIPT, {"n": 1}, f"{RUN}/logs/a.out", RUN, {"TOKEN": "x"}),
                ArrayTask(
                    Attempt("study.lr2.train.a1", "/runs/study/lr2/.jobs/train", 1),
                    SCRIPT,
                    {},
                    f"{RUN}/b",
                    RUN,
                ),
            ),
            ("--time=5",),
            at_once=3,
            claim_token="t",
        ),
        SLURM,
    ),
    "decide": array_decision_script(Attempt("study.array", "/runs/study/.arrays/train.1", 1), "t", SLURM),
    "poll": poll_script(WATCHES, SLURM),
    "poll one": poll_script(WATCHES[1:], SLURM),
    "poll nothing": poll_script([], SLURM),
    "ends": job_ends_script([f"{STAGE}/1/exit.json", f"{RUN}/.jobs/b/2/exit.json"], 4),
    "stages": stage_state_script([STAGE, f"{RUN}/.jobs/b"]),
    "finished": finished_stages_script([[STAGE, f"{RUN}/.jobs/b"], [STAGE]]),
    "checkpoints": listing_script("/runs/study"),
    "sizes": folders_script("/runs", ["/runs/study", RUN]),
    "sizes of a sweep": folders_script("/runs", ["/runs/study"], of_jobs=True),
    "provenance": record_script([STAGE], "/runs"),
    "result": framed(f"head -c 5 {ATTEMPT.directory}/result.json".replace(RUN, "/runs/a")),
    "waiting": waiting_jobs_script(SLURM),
    "snapshot": snapshot_script([RUN, "/runs/b"]),
    "snapshot with logs": snapshot_script([RUN], logs=["/runs/study/a.log", "/runs/study/b c.log"]),
    "snapshot ends": snapshot_script([RUN], log_tail_bytes=1, iteration_lines=7),
    "snapshot whole": snapshot_script([], whole=True),
    "cancel": cancel_script([("7", "study.a"), ("8_3", "study.b")], SLURM),
    "withdraw": withdraw_script(ATTEMPT, [("7", "study.a")], SLURM),
    "withdraw unknown": withdraw_script(ATTEMPT, (), SLURM),
    "chain": withdraw_chain_script(STAGE, 3, SLURM),
    "take up": take_up_script(ATTEMPT.directory, SLURM),
    "withdraw ahead": withdraw_ahead_script([STAGE, f"{RUN}/.jobs/b"], SLURM),
    "verdict": write_record_script(f"{STAGE}/verdict.json", {"a": "b'\n"}, remove=f"{STAGE}/2/secrets"),
    "record": write_record_script(f"{STAGE}/verdict.json", {}),
    "secrets": removal_script(ATTEMPT.directory),
    "tracker": tracker_script(f"{RUN}/checkpoints", 30),
    "quarantine": quarantine_script(f"{RUN}/checkpoints", Quarantine(30, 20, 30, ""), limit=3),
    "quarantine all": quarantine_script(f"{RUN}/checkpoints", Quarantine(30, None, None, ""), limit=3),
    "rollback": rollback_script(RUN, Rollback(20, 30)),
    "fresh": fresh_start_script(f"{RUN}/checkpoints", 2),
}


def rebuilt(script: str, roots: tuple[str, ...] = ("/runs",)) -> str:
    request = request_for(script, SLURM)
    assert request is not None, "no program is this script"
    return script_of(json.dumps(request).encode(), FILE, list(roots))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_cluster_rebuilds_each_script_byte_for_byte(name: str) -> None:
    assert rebuilt(SCRIPTS[name]) == SCRIPTS[name]


def test_each_program_is_sent_by_something() -> None:
    used = {request["program"] for script in SCRIPTS.values() if (request := request_for(script, SLURM))}
    assert set(programs(SLURM)) - used == {"home", "version", "runs-ends-whole"}


@pytest.mark.parametrize(
    "script",
    [
        "id",
        framed("id"),
        SCRIPTS["poll"] + "id\n",
        SCRIPTS["submit"].replace("am_attempt\n", "am_attempt; id\n"),
        folders_script("/runs", [RUN], remove=True),
        folders_script("/runs", [RUN], remove=True, of_jobs=True),
        archive_script("/runs", [RUN], default="/runs/a"),
    ],
)
def test_other_scripts_are_not_requests(script: str) -> None:
    assert request_for(script, SLURM) is None


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("checkpoints", "/runs/study/", "/etc/"),
        ("checkpoints", "/runs/study/", "/runs/../etc/"),
        ("checkpoints", "/runs/study/", "/runs/.ssh/"),
        ("checkpoints", "/runs/study/", "/runs/a\nid\n"),
        ("checkpoints", "/runs/study/", "-rf"),
        ("checkpoints", "/runs/study/", "/runsother/"),
        ("stages", STAGE, "/etc/passwd"),
        ("result", "/runs/a/.jobs/train/2/result.json", "/runs/a/.jobs/train/2/secrets/TOKEN"),
        ("submit", ATTEMPT.directory, "/runs/study"),
        ("submit all", "--time=5", "--wrap=id"),
        ("submit all", "--time=5", "--wra=id"),
        ("submit all", "--time=5", "--export-f=/x"),
        ("submit all", "--time=5", "--clust=other"),
        ("submit all", "--time=5", "--uid=0"),
        ("submit all", "--time=5", "-W"),
        ("submit all", "--time=5", "/runs/other.sh"),
        ("submit all", "--time=5", "--time=5\n"),
        ("submit", "tok-1", "tok;id"),
        ("submit", SCRIPT, "no script"),
        ("record", f"{STAGE}/verdict.json", f"{STAGE}/verdict.sh"),
        ("record", f"{STAGE}/verdict.json", f"{RUN}/verdict.json"),
        ("record", "{}\n", "text\n"),
        ("secrets", f"{ATTEMPT.directory}/secrets", f"{ATTEMPT.directory}"),
        ("secrets", f"{ATTEMPT.directory}/secrets", "/runs/study/secrets"),
        ("withdraw", f"{ATTEMPT.directory}/withdrawn", f"{ATTEMPT.directory}/verdict.json"),
        ("cancel", "7|study.a\n8_3|study.b\n", "7|a b\n"),
        ("cancel", "7|study.a\n8_3|study.b\n", "7|a\n--user=other\n"),
        ("chain", 3, "3"),
        ("chain", "3", "3; id"),
        ("poll", "7", "7 -u other"),
        ("sizes", "study", "../etc"),
        ("rollback", "20", "$(id)"),
    ],
)
def test_values_that_are_not_of_their_kind_are_refused(name: str, old: str, new: str) -> None:
    request = request_for(SCRIPTS[name], SLURM)
    changed = replaced(request, old, new)
    if isinstance(old, str):
        assert changed != request, "the value is not in the request"
        with pytest.raises(Refusal):
            script_of(json.dumps(changed).encode(), FILE, ["/runs"])


def replaced(value: object, old: object, new: object) -> object:
    if isinstance(value, dict):
        return {key: replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, old, new) for item in value]
    return new if value == old else value


def test_conditions_that_the_key_cannot_judge_do_not_hold_and_stop_no_other_job() -> None:
    watch = Watch(
        "a",
        attempt_dir=ATTEMPT.directory,
        check_files=("/etc/passwd",),
        globs=("/etc/*", "/runs/.*/x", "/runs/../e*"),
        commands=("id", f"{partition_command(SLURM, 'gpu')}; id", "/tmp/sinfo -h -N -o '%P %N %T'"),
    )
    script = rebuilt(poll_script([watch], SLURM))
    patterns = " ".join([repr(dispatcher.NO_PATTERN)] * 3)
    assert f"am_globs 10 {GLOB_BYTES} {GLOB_BYTES_PER_POLL} {patterns}\n" in script
    assert script.count("exit 126") == 3
    assert "am_checks /.outside/of/the/roots\n" in script
    for text in ("passwd", "; id", "/tmp/sinfo", "'id'", " id "):
        assert text not in script.partition("printf 'now")[2]


@pytest.mark.parametrize("count", [1, 3])
def test_a_link_of_one_job_stops_no_other(count: int, tmp_path: Path) -> None:
    """A poll is one request about the jobs of all sweeps; any of them may make such a link."""
    watches = []
    for name in ("good", "evil", "third")[:count]:
        run = tmp_path / "runs" / name
        (run / ".jobs" / "train" / "1").mkdir(parents=True)
        checkpoints = run / "checkpoints"
        if name == "evil":
            (tmp_path / "elsewhere").mkdir()
            checkpoints.symlink_to(tmp_path / "elsewhere")
        else:
            checkpoints.mkdir()
        (checkpoints / "latest_checkpointed_iteration.txt").write_text("7\n")
        attempt = f"{run}/.jobs/train/1"
        watches.append(Watch(name, attempt_dir=attempt, checkpoint_dir=str(checkpoints), job_id="7"))
    programs_here = SlurmCommands(slurm_bin="/bin/true")
    request = json.dumps(request_for(poll_script(watches, programs_here), programs_here)).encode()
    script = script_of(request, json.loads(installed(programs_here)), [f"{tmp_path}/runs"])
    answer = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True).stdout
    left_out = left_out_of(answer)
    assert all(f"{tmp_path}/runs/evil/" in f"{path}/" for path in left_out)
    seen = parse_poll(watches, CommandResult(0, answer, "", left_out))
    for name, observation in seen.items():
        if name == "evil":
            assert observation.unreachable is not None
            assert "has no access to" in observation.unreachable.reason
            assert "/runs/evil/checkpoints" in observation.unreachable.reason
        else:
            assert (observation.unreachable, observation.tracker) == (None, "7")


@pytest.mark.parametrize("text", ["", "a\n", f'\n{BEGIN}\n{LEFT_OUT}["/x"]\n', f"{LEFT_OUT}[]\n\n{BEGIN}\n"])
def test_only_the_cluster_says_what_is_left_out(text: str) -> None:
    assert left_out_of(text) == ()
    assert left_out_of(f'welcome\n{LEFT_OUT}["/a", "/b c"]\n\n{BEGIN}\n{text}') == ("/a", "/b c")


def test_links_that_lead_out_of_the_roots_are_refused(tmp_path: Path) -> None:
    (tmp_path / "runs" / "own").mkdir(parents=True)
    (tmp_path / "runs" / "out").symlink_to("/etc")
    (tmp_path / "runs" / "in").symlink_to(tmp_path / "runs" / "own")
    checks = Checks([str(tmp_path / "runs")], "sinfo", LAYOUT)
    for path in ("own", "in", "in/new/one", ""):
        checks.check_path(f"{tmp_path}/runs/{path}")
    for path in ("out", "out/passwd", "in/../../x"):
        with pytest.raises(Refusal):
            checks.check_path(f"{tmp_path}/runs/{path}")


@pytest.mark.parametrize(
    "request_text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"program": "shell", "values": []}',
        '{"program": ["poll"], "values": []}',
        "[" * 9999,
    ]
    + [json.dumps({"program": "home", "values": values}) for values in ("x", {}, ["x"], [["x"]], None)]
    + [json.dumps({"program": "chain", "values": []}), json.dumps({"program": "cancel", "values": [None]})],
)
def test_malformed_requests_are_refused(request_text: str) -> None:
    with pytest.raises((Refusal, RecursionError)):
        script_of(request_text.encode(), FILE, ["/runs"])


def test_the_cluster_needs_no_newer_python_than_3_6() -> None:
    tree = ast.parse(Path(dispatcher.__file__).read_text(), feature_version=(3, 6))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    annotations = [arg.annotation for each in functions for arg in each.args.args] + [
        each.returns for each in functions
    ]
    assert not [each for each in annotations if isinstance(each, ast.Subscript | ast.BinOp)]
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported == {"hashlib", "json", "os", "re", "shlex", "string", "sys"}
