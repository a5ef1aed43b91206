"""The troubleshooting page: the code writes its messages, and it has every failure signature."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from command_line import runner

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import AccountingRow, Observation
from airflow_megatron.slurm.submission import refusals
from airflow_megatron.slurm.submission.refusals import refusal_hint
from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.restarts import GiveUp, RestartPolicy, next_step
from airflow_megatron.slurm.verdicts.signatures import Signature, find_signature, shipped_signatures
from airflow_megatron.slurm.verdicts.verdict import Expectation, Verdict, judge
from airflow_megatron.spec.documents.project import project_root

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (project_root() / "docs" / "troubleshooting.md").read_text()
SIGNATURES = shipped_signatures()
QUICKSTART = (project_root() / "sweep_specs" / "quickstart.yaml").read_text()
EFFECTS = {
    Outcome.ROLLED_OVER: "The next attempt continues",
    Outcome.RETRYABLE: "Retried (`restart.retryable`)",
    Outcome.OUT_OF_MEMORY: "Fails unless `restart.out_of_memory`",
    Outcome.CANCELLED: "Fails unless `restart.cancelled`",
    Outcome.FAILED: "Fails unless `restart.failed`",
}


def part(title: str) -> str:
    """Return the text below a heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def messages(title: str) -> list[str]:
    """Return the first column of the table below a heading."""
    return re.findall(r"^\| `([^`]+)` \|", part(title), re.MULTILINE)


def entries() -> dict[str, str]:
    """Return signature → its entry."""
    parts = re.split(r"^### (\w+)\n", part("Failed jobs: lines in the log"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_signature_has_an_entry() -> None:
    assert list(entries()) == [signature.name for signature in SIGNATURES]


def outcome_of(log: str, state: JobState) -> Outcome:
    """Return the outcome of a training that ends in a state with these lines in its log."""
    code = 0 if state is JobState.COMPLETED else 1
    row = AccountingRow("7", "x", state, state.value, code, 0, "n1", 1, ended=900.0, elapsed=400)
    seen = Observation(time=1000.0, queue_ok=True, accounting_ok=True, accounting=row, tracker="50")
    expectation = Expectation("train", train_iters=100, complete=lambda files: True)
    return judge(seen, expectation, log_tail=log.encode()).outcome


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_the_line_of_an_entry_has_the_signature_and_its_effect(signature: Signature) -> None:
    entry = entries()[signature.name]
    log = "\n".join(re.findall(r"^    (.*)$", entry, re.MULTILINE))
    state = next(state for state in JobState if state in signature.states)
    found = find_signature(SIGNATURES, log.encode(), state)
    assert found is not None
    assert found.signature.name == signature.name
    effects = {EFFECTS[outcome_of(log, state)] for state in signature.states}
    if signature.permanent:
        effects = {"Not retried"}
    elif signature.rollback:
        effects = {"Retried from an earlier checkpoint"}
    assert any(f"- Effect: {effect}" in entry for effect in effects)
    assert "- Cause: " in entry
    assert "- What to do: " in entry


MISTAKES = {
    "unknown key 'stage'": ("\nstages:", "\nstage:"),
    "core_v0.16.1 has no argument 'micro_batchsize'": ("micro_batch_size: 8", "micro_batchsize: 8"),
    "there is no cluster profile 'locl'": ("cluster: local", "cluster: locl"),
    "there is no stage 'conver'": ("parent: convert", "parent: conver"),
    "stages.convert.kind is 'convrt'": ("kind: convert", "kind: convrt"),
    "uses 'seq_len', which is not defined": ("{{ seq_length }}", "{{ seq_len }}"),
    "reference cycle": ("seq_length: 128", 'seq_length: "{{ max_position_embeddings }}"'),
    "are both named": ('point: "{{ size }}_lr{{ lr }}"', 'point: "{{ size }}"'),
    "needs checkpoint 250 of pretrain, which saves every 60 iterations only": (
        'checkpoint: "{{ train_iters - lr_wsd_decay_iters }}"',
        "checkpoint: 250",
    ),
    "there is nothing to train": (
        'checkpoint: "{{ train_iters - lr_wsd_decay_iters }}"',
        "checkpoint: 240",
    ),
    "its schedule differs from that of the checkpoint it loads": (
        "      override_opt_param_scheduler: true\n",
        "",
    ),
    "not valid YAML": ("\npoint:", "\n\tpoint:"),
    "no such file": ("", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("message", messages("Errors of a spec"))
def test_a_message_on_a_spec(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = MISTAKES[message]
    assert old in QUICKSTART
    if old:
        (tmp_path / "s.yaml").write_text(QUICKSTART.replace(old, new))
    answer = runner(monkeypatch, capsys)("lint", str(tmp_path / "s.yaml"))
    assert answer.status == 1
    assert message in answer.stdout + answer.stderr


def test_each_known_refusal_of_sbatch_has_a_row() -> None:
    rows = messages("Refused submissions")
    hints = [refusal_hint(message) for message in rows]
    assert all(hints), [message for message, hint in zip(rows, hints, strict=True) if not hint]
    assert {hint for _, hint in refusals._HINTS} == {*hints}


@pytest.mark.parametrize(
    ("message", "attempts", "last"),
    [
        ("it would fail again", 1, Verdict(Outcome.FAILED, "", permanent=True)),
        ("failed and is not restarted", 1, Verdict(Outcome.FAILED, "")),
        ("retryable after 10 restarts", 11, Verdict(Outcome.RETRYABLE, "")),
        (
            "attempts in a row made no checkpoint newer than iteration",
            4,
            Verdict(Outcome.ROLLED_OVER, "", iteration=500),
        ),
        (
            "the training failed numerically again after 1 rollback",
            2,
            Verdict(Outcome.FAILED, "", iteration=500, rollback=True),
        ),
    ],
)
def test_the_reason_of_a_failed_task(message: str, attempts: int, last: Verdict) -> None:
    assert message in messages("Failed jobs: no further attempt")
    step = next_step([last] * (attempts - 1), last, RestartPolicy())
    assert isinstance(step, GiveUp)
    assert message in step.reason
