"""Notices of a point whose job reports a problem, fails twice and is given up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sweep_site import SweepSite

pytestmark = pytest.mark.integration

SPEC = """\
point: only
poll_interval: 1
restart: {{failed: 1, backoff: 0}}
notify:
  - notifier: airflow_megatron.notifications.json_lines.JsonLinesNotifier
    on: [failure, retry, health, finished]
    arguments: {{path: {path}, message: "{{{{ notice.stage }}}} in {{{{ notice.sweep }}}}"}}
stages:
  good:
    kind: command
    command: ["true"]
  bad:
    kind: command
    parent: good
    command: [bash, -c, 'echo the disk is hot; exit 3']
    events: [{{log: is hot, do: notify, message: look at it}}]
"""


def test_every_kind(site: SweepSite) -> None:
    (site.specs / "notified.yaml").write_text(SPEC.format(path="notified/told.jsonl"))
    status, output = site.run_dags_test("notified.point", {"point": "only"})
    assert status != 0, output[-4000:]
    notices_file = site.local / "notices" / "notified" / "told.jsonl"
    lines = [json.loads(line) for line in notices_file.read_text().splitlines()]
    kinds = [(line["what"], line["stage"], line["attempt"]) for line in lines]
    assert kinds[0] == ("finished", "good", 1)
    assert kinds[-1] == ("failure", "bad", 2)
    assert ("retry", "bad", 1) in kinds
    assert {("health", "bad", 1), ("health", "bad", 2)} <= set(kinds)
    failure = lines[-1]
    assert failure["reason"].startswith("the job ended as FAILED with exit code 3")
    assert failure["nodes"].startswith("n")
    assert failure["message"] == "bad in notified"
    assert "clear its watch task" in failure["next_action"]
    health = next(line for line in lines if line["what"] == "health")
    assert "look at it" in health["reason"]
