"""The content of notices, and the checks of their recipients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from example_specs import spec_text

from airflow_megatron.notices.notice import Notice, edge_notice, end_notice, event_notice
from airflow_megatron.plan.sweep_plan import check_document, plan_sweep
from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.slurm.verdicts.restarts import Done, GiveUp, Restart
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job

SMTP = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"
OWN = "airflow_megatron.notifications.json_lines.JsonLinesNotifier"
LOG = [
    (
        " [2026-11-21 10:00:00.000001] iteration       41/     100 | consumed samples: 656 | learning rate: 1.0E-03 | "
        "global batch size:    16 | lm loss: 2.500000E+00 | loss scale: 1.0 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |"
    ),
    "RuntimeError: NCCL error",
]


@pytest.fixture(scope="module")
def job() -> Job:
    (job,) = plan_sweep(load_sweep_text(spec_text(point="p"), "a.yaml"), load_cluster("local")).jobs
    return job


def test_failure(job: Job) -> None:
    verdict = Verdict(
        Outcome.FAILED,
        "the job ended as FAILED with exit code 1",
        iteration=40,
        job_id="7",
        node_list="n[1-2]",
        failed_nodes=("n2",),
        line=LOG[1],
    )
    notice = end_notice(job, 2, verdict, GiveUp("attempt 2 failed and is not restarted"), LOG)
    assert (notice.what, notice.outcome, notice.loss, notice.iteration) == ("failure", "failed", 2.5, 40)
    assert notice.text.splitlines() == [
        "example.p.pretrain: failed: the job ended as FAILED with exit code 1",
        "job: 7, attempt 2",
        "node: n2 (failed)",
        "last checkpoint: iteration 40",
        "last loss: 2.5",
        f"log: {job.log_file(2)}",
        "next: failed for good: attempt 2 failed and is not restarted; clear its watch task for another attempt",
    ]


def test_retry_and_end(job: Job) -> None:
    lost = Verdict(Outcome.RETRYABLE, "NODE_FAIL", node_list="n1", job_id="7")
    notice = end_notice(job, 1, lost, Restart(30, ("n1", "n4"), "x"))
    assert (notice.what, notice.next_action) == ("retry", "attempt 2 in 30 s, not on n1, n4")
    done = end_notice(job, 2, Verdict(Outcome.FINISHED, "done", job_id="8"), Done())
    assert (done.what, done.outcome, done.next_action) == ("finished", "finished", "")


def test_event(job: Job) -> None:
    seen = Occurrence("restart", "event 'slow' (idle: nothing new for 900 s)")
    notice = event_notice(job, 1, "7", seen, LOG)
    assert (notice.what, notice.next_action, notice.loss) == ("health", "restart", 2.5)
    assert notice.text.startswith("example.p.pretrain: health: event 'slow' (idle: nothing new for 900 s)\n")


@pytest.mark.parametrize("detector", ["nan", "spike", "stall", ""])
def test_a_divergence_is_a_separate_kind(job: Job, detector: str) -> None:
    notice = event_notice(job, 1, "7", Occurrence("notify", "health", detector=detector), LOG)
    diverged = detector in ("nan", "spike")
    health, only = notice.as_wanted(["health", "diverged"]), notice.as_wanted(["diverged", "failure"])
    assert health is not None
    assert health.what == "health"
    assert (only is not None and only.what == "diverged") is diverged
    assert notice.as_wanted(["report"]) is None


def test_an_attempt_that_ended_for_it_has_diverged_too(job: Job) -> None:
    verdict = Verdict(Outcome.FAILED, "a loss was not a number", job_id="7", signature="nan_in_training")
    for step, what in ((GiveUp("x"), "failure"), (Restart(30, (), "x"), "retry")):
        notice = end_notice(job, 1, verdict, step)
        assert [getattr(notice.as_wanted([kind]), "what", None) for kind in (what, "diverged", "health")] == [
            what,
            "diverged",
            None,
        ]
    other = end_notice(job, 1, Verdict(Outcome.FAILED, "x", job_id="7", signature="nccl_error"), GiveUp("x"))
    assert other.as_wanted(["diverged"]) is None


def test_a_notice_of_edges_lists_some_of_them() -> None:
    notice = edge_notice("s", [f"N {n}M" for n in range(12)], "/r/index.html")
    assert notice.reason.endswith("N 9M; and 2 more")
    assert (notice.what, notice.next_action) == ("edge", "train values beyond the edge")


def test_templates_see_plain_data() -> None:
    data = Notice("report", "a", "b").to_json()
    assert data["text"] == "a: report: b"
    assert data["failed_nodes"] == []


def test_a_loss_that_json_cannot_hold_is_only_in_the_text(job: Job) -> None:
    notice = event_notice(job, 1, "7", Occurrence("notify", "x"), [LOG[0].replace("2.500000E+00", "INF")])
    data = json.loads(json.dumps(notice.to_json()), parse_constant=pytest.fail)
    assert data["loss"] is None
    assert "last loss: inf" in data["text"]


PIGEON = "airflow.providers.carrier_pigeon.notifications.PigeonNotifier"


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_NOTIFIERS", f"{SMTP}, {PIGEON}, pathlib.Path")


def problems(notify: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        check_document(load_sweep_text(spec_text(point="p", more=f"notify:\n{notify}"), "a.yaml"))
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("entry", "place", "message"),
    [
        (
            f"  - {{notifier: {PIGEON}}}",
            "a.yaml:4:",
            "apache-airflow-providers-carrier_pigeon",
        ),
        (
            "  - {notifier: airflow_megatron.notifications.json_lines.Json}",
            "a.yaml:4:",
            "did you mean 'airflow_megatron.notifications.json_lines.JsonLinesNotifier'?",
        ),
        ("  - {notifier: pathlib.Path}", "a.yaml:4:", "it has no method notify"),
        (f"  - notifier: {SMTP}", "a.yaml:4:", "missing a required argument: 'to'"),
        (
            f"  - notifier: {OWN}\n    arguments:\n      path: a\n      colour: red",
            "a.yaml:7:",
            "it takes path, message",
        ),
        (
            f"  - notifier: {SMTP}\n    arguments:\n      to: me\n      password: x",
            "a.yaml:7:",
            "Airflow connection",
        ),
        (f"  - {{notifier: {OWN}, on: [failur]}}", "a.yaml:4:", "failure"),
        ("  - {notifier: Slack}", "a.yaml:4:", "notifier"),
    ],
)
def test_notifiers_that_cannot_work_are_refused(entry: str, place: str, message: str) -> None:
    found = problems(entry)
    assert any(problem.startswith(place) and message in problem for problem in found), found


@pytest.mark.parametrize(
    ("notifier", "arguments"),
    [
        (OWN.replace("JsonLines", "JsonLine"), "path: a.jsonl"),
        (PIGEON, "to: me"),
        (SMTP, "to: me, html_path: a"),
    ],
)
def test_one_mistake_in_a_notifier_is_one_error(notifier: str, arguments: str) -> None:
    assert len(problems(f"  - notifier: {notifier}\n    arguments: {{{arguments}}}")) == 1


def test_expressions_read_the_notice() -> None:
    text = f"  - notifier: {SMTP}\n    arguments: {{to: a@b, subject: '{{{{ notice.text | upper }}}}'}}"
    sweep = load_sweep_text(spec_text(point="p", more=f"notify:\n{text}"), "a.yaml")
    check_document(sweep)
    assert sweep.settings.notify[0].on == ["failure", "health", "report"]


def test_a_warning_of_a_finished_job_is_part_of_its_notice(job: Job) -> None:
    verdict = Verdict(
        Outcome.FINISHED, "iteration 100 has a complete checkpoint", warning="exit code 1 at its end"
    )
    notice = end_notice(job, 1, verdict, Done())
    assert notice.what == "finished"
    assert "warning: exit code 1 at its end" in notice.text
