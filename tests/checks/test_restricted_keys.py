"""Operations that a restricted key does not permit are refused before submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.hooks.restricted.dispatcher import Checks, Refusal
from airflow_megatron.hooks.restricted.programs import LAYOUT
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.spec_files import load_sweep, load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

SPEC = """\
name: bound
point: p
stages:
  work: {{kind: command, command: ["true"]}}
  next: {{kind: command, command: ["true"], parent: work, {keys}}}
"""


def profile(*, restricted: bool) -> ClusterProfile:
    values = {"ssh_conn_id": "c", "run_root": "/runs", "python": "/python", "megatron_lm_dir": "/programs"}
    return ClusterProfile.model_validate({"name": "site", "restricted": restricted, **values})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("start: {command: test -e /x}", "runs no command of a condition"),
        ("start: {file: /elsewhere/x}", "cannot read /elsewhere/x"),
        ("cancel: {not: {file: /runs2/x}}", "cannot read /runs2/x"),
        ("events: [{log: x, do: run, command: id}]", "runs no command of an event"),
        ("outputs: [/elsewhere/x]", "cannot read /elsewhere/x: it is not below /runs"),
        ("outputs: [/runs/../x]", "cannot read /runs/../x: it is not below /runs"),
        ("outputs: [.done]", "cannot read .*: .done is hidden"),
        ("start: {file: /runs/.cache/x}", "cannot read /runs/.cache/x: .cache is hidden"),
        ("start: {file: /runs/../x}", "cannot read /runs/../x: it is not below /runs"),
    ],
)
def test_what_needs_an_unrestricted_key_is_refused(keys: str, message: str) -> None:
    sweep = load_sweep_text(SPEC.format(keys=keys), "bound.yaml")
    check_sweep(sweep, profile(restricted=False))
    with pytest.raises(SpecError, match=message) as refused:
        check_sweep(sweep, profile(restricted=True))
    assert "bound.yaml:5" in str(refused.value)


@pytest.mark.parametrize(
    "keys", ["start: {file: /runs/x}", "start: {file: made}", "params: {}", "outputs: [made, /runs/x]"]
)
def test_what_the_key_can_do_is_accepted(keys: str) -> None:
    check_sweep(load_sweep_text(SPEC.format(keys=keys), "bound.yaml"), profile(restricted=True))


PREFETCH = """\
name: bound
point: p
stages:
  fetch: {{kind: prefetch, scope: sweep, params: {{models: [gpt2]{where}}}}}
"""


def test_a_prefetch_on_the_login_node_is_refused() -> None:
    there = load_sweep_text(PREFETCH.format(where=", where: login"), "bound.yaml")
    check_sweep(there, profile(restricted=False))
    with pytest.raises(SpecError, match="runs no command on the login node") as refused:
        check_sweep(there, profile(restricted=True))
    assert "bound.yaml:4" in str(refused.value)
    check_sweep(load_sweep_text(PREFETCH.format(where=""), "bound.yaml"), profile(restricted=True))
    in_job = load_sweep_text(PREFETCH.format(where=", where: job"), "bound.yaml")
    check_sweep(in_job, profile(restricted=True))


@pytest.mark.parametrize(
    "path",
    [
        "/runs/x",
        "/runs/.jobs/work/1/jobid",
        "/runs/.jobs/work/1/secrets/x",
        "/runs/secrets/x",
        "/runs/.arrays/x/1/secrets/y",
        "/runs/.git/config",
        "/runs/a/../../x",
        "/runs2/x",
        "/runs/.environments/x",
        "/runs/...",
    ],
)
def test_lint_and_the_program_of_the_key_agree_on_paths(path: str) -> None:
    sweep = load_sweep_text(SPEC.format(keys=f"start: {{file: '{path}'}}"), "bound.yaml")
    try:
        Checks(["/runs"], "sinfo", LAYOUT).check_path(path)
    except Refusal:
        with pytest.raises(SpecError, match="restricted key of cluster site cannot read"):
            check_sweep(sweep, profile(restricted=True))
    else:
        check_sweep(sweep, profile(restricted=True))


OTHER_TOOL = """\
template: job.sbatch
name: "n{{A}}"
A: [1, 2]
RUN_DIR: "{directory}/{{A}}"
output_file: "{output}/{{A}}.out"
sbatch_script: "{{name}}.sbatch"
cmd: "sbatch {{sbatch_script}}"
termination_str: done
"""


@pytest.mark.parametrize(
    ("directory", "output", "message"),
    [
        ("/elsewhere", "/elsewhere", "cannot write /elsewhere/1: it is not below /runs"),
        ("/runs/own", "/elsewhere", "cannot read /elsewhere: it is not below /runs"),
        ("/runs/own", "/runs/.logs", "cannot read /runs/.logs: .logs is hidden"),
        ("/runs/own", "/runs/logs", ""),
        ("own", "logs", ""),
    ],
)
def test_directories_that_a_file_of_another_tool_gives(
    directory: str, output: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --output={output_file}\necho done {A}\n")
    path = tmp_path / "study.yaml"
    path.write_text(OTHER_TOOL.format(directory=directory, output=output))
    sweep = load_sweep(path)
    check_sweep(sweep, profile(restricted=False))
    if message:
        with pytest.raises(SpecError, match=message):
            check_sweep(sweep, profile(restricted=True))
    else:
        check_sweep(sweep, profile(restricted=True))
