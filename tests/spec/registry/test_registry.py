"""Classes that other packages register with entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from airflow_megatron.errors import RegistryError
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS, StageKind
from airflow_megatron.spec.model.trainers import TRAINERS
from airflow_megatron.spec.registry.registry import RegisteredName, Registry

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "airflow_megatron.test_kinds"
MODULE = """
from airflow_megatron.spec.model.stage_kinds import StageKind


class Merge(StageKind):
    params = ("weights",)


class Other:
    pass
"""
ENTRY_POINTS = f"""
[{GROUP}]
merge = merged_kinds:Merge
command = merged_kinds:Merge
other = merged_kinds:Other
gone = merged_kinds:Gone
"""


def install(folder: Path, package: str, entry_points: str) -> None:
    """Write the metadata of an installed package."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    name = package.replace("_", "-")
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


def lint(folder: Path, *specs: Path) -> subprocess.CompletedProcess[str]:
    """Run ``lint`` with the packages in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "airflow_megatron.cli.app", "lint", *specs],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[StageKind]:
    """A registry with a built-in kind, and a package installed that registers further ones."""
    (tmp_path / "merged_kinds.py").write_text(MODULE)
    install(tmp_path, "merged_kinds", ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"command": "airflow_megatron.megatron.stages.command:Command"}
    return Registry(StageKind, GROUP, own)


def test_a_package_registers_a_class(kinds: Registry[StageKind]) -> None:
    assert kinds["merge"].params == ("weights",)
    assert kinds["merge"] is kinds["merge"]
    assert kinds.names() == ("command", "gone", "merge", "other")
    assert kinds.find("merged") is None
    with pytest.raises(KeyError, match="no package here registers 'merged'"):
        kinds["merged"]


def test_a_package_cannot_replace_a_class_of_ours(kinds: Registry[StageKind]) -> None:
    assert type(kinds["command"]).__name__ == "Command"


@pytest.mark.parametrize(
    ("name", "why"),
    [("gone", "cannot be loaded: AttributeError"), ("other", "not a class that extends StageKind")],
)
def test_a_class_that_cannot_be_used_is_named(kinds: Registry[StageKind], name: str, why: str) -> None:
    with pytest.raises(RegistryError, match=f"merged_kinds:{name.title()}.*{why}"):
        kinds[name]


def test_a_field_of_names_is_checked_and_described_as_a_literal(kinds: Registry[StageKind]) -> None:
    class Named(BaseModel):
        kind: Annotated[str, RegisteredName(kinds)]

    class Literally(BaseModel):
        kind: Literal["command", "gone", "merge", "other"]

    assert Named(kind="merge").kind == "merge"
    for wrong in ("merged", 5, None, ["merge"]):
        reported = []
        for model in (Named, Literally):
            with pytest.raises(ValidationError) as error:
                TypeAdapter(model).validate_python({"kind": wrong})
            reported.append(error.value.errors(include_url=False))
        assert reported[0] == reported[1]
    ours, theirs = Named.model_json_schema(), Literally.model_json_schema()
    assert {**ours["properties"]["kind"], "title": "Kind"} == theirs["properties"]["kind"]
    assert json.dumps(ours["required"]) == json.dumps(theirs["required"])


def test_each_class_of_ours_can_be_made() -> None:
    assert [type(kind).__name__ for kind in STAGE_KINDS] == [
        *("Train", "LrFinder", "Benchmark", "Convert", "Evaluate", "Prefetch", "Command")
    ]
    assert [type(trainer).__name__ for trainer in TRAINERS] == [
        *("MegatronCore", "MegatronLM", "MegatronDeepSpeed")
    ]


def test_a_damaged_package_affects_only_what_uses_it(kinds: Registry[StageKind]) -> None:
    class Named(BaseModel):
        kind: Annotated[str, RegisteredName(kinds)]

    class Trained(BaseModel):
        kind: Annotated[str, RegisteredName(kinds, "trains")]

    assert list(kinds.usable()) == ["command", "merge"]
    assert Named(kind="command").kind == "command"
    for model in (Named, Trained):
        with pytest.raises(ValidationError) as error:
            model(kind="gone")
        (detail,) = error.value.errors(include_url=False)
        assert detail["type"] == "refused"
        assert "merged_kinds:Gone" in detail["msg"]
        assert detail["ctx"]["hint"] == "repair or uninstall that package"


def test_a_class_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "abstract_kinds.py").write_text(
        "from abc import abstractmethod\n"
        "from airflow_megatron.spec.model.stage_kinds import StageKind\n\n\n"
        "class Abstract(StageKind):\n    def __init__(self):\n        raise OSError('no licence')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    kinds = Registry(StageKind, GROUP, {"abstract": "abstract_kinds:Abstract"})
    with pytest.raises(RegistryError, match="cannot be made: OSError: no licence"):
        kinds["abstract"]


@pytest.mark.slow
def test_a_spec_with_a_class_that_cannot_be_used(tmp_path: Path) -> None:
    """The error has a place; a spec without that class is valid; both through the command line."""
    install(tmp_path, "gone_kinds", "[airflow_megatron.stage_kinds]\ngone = gone_kinds:Gone\n")
    answers = []
    for kind in ("command", "gone"):
        spec = tmp_path / f"{kind}.yaml"
        spec.write_text(
            f"name: {kind}\ncluster: local\npoint: only\nstages:\n"
            f"  run: {{kind: {kind}, command: [echo], slurm: {{time: 1m}}}}\n"
        )
        answers.append(lint(tmp_path, spec))
    assert answers[0].returncode == 0, answers[0].stderr
    assert answers[1].returncode == 1
    assert "Traceback" not in answers[1].stderr
    assert "gone.yaml:5:" in answers[1].stdout
    assert "gone_kinds:Gone, which is registered as gone" in answers[1].stdout


@pytest.mark.parametrize("made", ['"tar -c"', '("tar", 5)', "None", '"tar"'])
@pytest.mark.slow
def test_a_command_that_is_not_a_tuple_of_texts(tmp_path: Path, made: str) -> None:
    install(tmp_path, "odd_kinds", "[airflow_megatron.stage_kinds]\nodd = odd_kinds:Odd\n")
    (tmp_path / "odd_kinds.py").write_text(
        "from airflow_megatron.spec.model.stage_kinds import StageKind\n\n\n"
        f"class Odd(StageKind):\n    def command(self, job, cluster):\n        return {made}\n"
    )
    spec = tmp_path / "odd.yaml"
    spec.write_text(
        "name: odd\ncluster: local\npoint: only\nstages:\n  run: {kind: odd, slurm: {time: 1m}}\n"
    )
    answer = lint(tmp_path, spec)
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert "odd.yaml:5:" in answer.stdout
    assert "command() of Odd returned" in answer.stdout


FAILING = """
from airflow_megatron.spec.model.stage_kinds import StageKind


class Odd(StageKind):
    def command(self, job, cluster):
        return ("tar", "-c", *job.params.get("files", "x"))

    def {method}:
        {body}
"""


@pytest.mark.parametrize(
    ("method", "body", "why"),
    [
        ("command(self, job, cluster)", 'return ("tar", job.gone)', "command() failed at {}:10: AttributeError"),
        ("problems(self, job)", "yield job.gone", "problems() failed at {}:10: AttributeError"),
        ("outputs(self, job)", "return 1 / 0", "outputs() failed at {}:10: ZeroDivisionError: division by zero"),
        ("environment_of_later(self, job, cluster)", "raise KeyError", "environment_of_later() failed at {}:10: KeyE"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_method_that_fails(tmp_path: Path, method: str, body: str, why: str) -> None:
    """The error names the class and the line of the other package; the other specs are checked."""
    install(tmp_path, "odd_kinds", "[airflow_megatron.stage_kinds]\nodd = odd_kinds:Odd\n")
    (tmp_path / "odd_kinds.py").write_text(FAILING.format(method=method, body=body))
    specs = []
    for name, kind in (("odd", "kind: odd"), ("right", "kind: command, command: [ls]")):
        specs.append(tmp_path / f"{name}.yaml")
        specs[-1].write_text(
            f"name: {name}\ncluster: local\npoint: only\nstages:\n  run: {{{kind}, slurm: {{time: 1m}}}}\n"
        )
    answer = lint(tmp_path, *specs)
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    first, *others = answer.stdout.splitlines()
    named = "odd_kinds:Odd, which is registered as odd of airflow_megatron.stage_kinds: "
    assert first.startswith(f"{specs[0]}:1:1: {named}{why.format(tmp_path / 'odd_kinds.py')}"), answer.stdout
    assert "correct or uninstall that package" in first
    assert "right.yaml: 1 point" in others[-1]
