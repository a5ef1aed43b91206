"""Specs can read only the environment variables of Airflow's process that the operator permits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from probed_specs import AUTOEXPERIMENT, NATIVE, OELLM, TEMPLATE, shown

from airflow_megatron.spec.trust.permitted_variables import (
    FOR_PEOPLE,
    SETTING,
    PermittedVariables,
    permitted_variables,
    read_for_person,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

VALUE = "k3ep-th1s-0ut-of-s1ght"
NAMES = (
    "AIRFLOW__CORE__FERNET_KEY",
    "AIRFLOW_CONN_SLURM",
    "AWS_SECRET_ACCESS_KEY",
    "HF_TOKEN",
    "SSH_AUTH_SOCK",
)
REFERENCES = ("${oc.env:%s}", "x-${oc.env:%s}", "${ oc.env : %s }", "${oc.env:%s,other}")

AE_PLACES = {
    "name": AUTOEXPERIMENT.replace("job_{steps}", "job_@"),
    "key": AUTOEXPERIMENT + 'secret: "@"\n',
    "option": AUTOEXPERIMENT + 'secret: [a, "@"]\n',
    "nested option": AUTOEXPERIMENT + 'secret:\n  - a: {inner: "@"}\n',
    "output": AUTOEXPERIMENT.replace("logs/{name}.out", "@"),
    "command": AUTOEXPERIMENT.replace("--nice=5", "@"),
    "template": AUTOEXPERIMENT.replace("job.sbatch", "@"),
    "expression": AUTOEXPERIMENT.replace("steps: 10", "steps: \"expr(len('@') + undefined)\""),
    "interval": AUTOEXPERIMENT.replace("check_interval_secs: 60", 'check_interval_secs: "@"'),
    "pattern": AUTOEXPERIMENT.replace('"done"', '"(@"'),
    "reference": AUTOEXPERIMENT + 'a: "@"\nb: "${a}"\nc: "${nothing.${a}}"\n',
}
OELLM_PLACES = {
    "name": OELLM.replace("name: study", 'name: "@"'),
    "filter": OELLM.replace("sweep: {", 'sweep: {filter: "@", '),
    "base values": OELLM.replace("base_values: {}", 'base_values: {job.name: "@"}'),
    "grid": OELLM.replace("base_values: {}", 'grids: [{job.name: ["@", b]}]'),
    "command": OELLM.replace("hello", '"@"'),
    "variable": OELLM.replace("env: {}", 'env: {SEEN: "@"}'),
    "account": OELLM.replace("account: abc", 'account: "@"'),
    "nodes": OELLM.replace("nodes: 1", 'nodes: "@"'),
    "time": OELLM.replace('time: "00:10:00"', 'time: "@"'),
    "evaluated": OELLM.replace("hello", '"${oc.eval:\'int(\\"@\\")\'}"'),
    "root": OELLM.replace("hello", '"${oc.sqrt:@}"'),
    "split": OELLM.replace("hello", '"${oc.split:@,1}"'),
    "machine": OELLM.replace("env: {}", 'env: {MACHINE_NAME: "@"}'),
    "resolver": OELLM.replace("hello", '"${oc.select:@}"'),
    "decoded": OELLM.replace("hello", '"${oc.decode:@}"'),
}
PLACES = {f"ae {key}": text for key, text in AE_PLACES.items()} | {
    f"oellm {key}": text for key, text in OELLM_PLACES.items()
}


def written(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    (folder / "job.sbatch").write_text(TEMPLATE)
    return path


@pytest.mark.parametrize("place", PLACES)
def test_no_variable_is_read_anywhere(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, VALUE)
    for name, reference in itertools.product(NAMES, REFERENCES):
        path = written(tmp_path, PLACES[place].replace("@", reference % name))
        assert VALUE not in shown(path), (name, reference)
        with read_for_person():
            assert VALUE not in shown(path), (name, reference)


@pytest.mark.parametrize("place", PLACES)
def test_errors_do_not_repeat_a_value_that_may_be_read(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPUT_DIR", VALUE)
    monkeypatch.setenv(SETTING, "OUTPUT_DIR")
    text = shown(written(tmp_path, PLACES[place].replace("@", "${oc.env:OUTPUT_DIR}")))
    problems = [line for line in text.splitlines() if "study.yaml" in line]
    assert not [line for line in problems if VALUE in line]


@pytest.mark.parametrize("base", [AUTOEXPERIMENT, OELLM], ids=["ae", "oellm"])
def test_the_setting_permits_a_variable_and_the_error_names_it(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITE_SCRATCH", "/scratch")
    monkeypatch.delenv(SETTING, raising=False)
    text = base + 'extra: {where: "${oc.env:SITE_SCRATCH}"}\n'
    text = text.replace("hello", '"${extra.where}"')
    path = written(tmp_path, text)
    refused = shown(path)
    assert "may not read the environment variable SITE_SCRATCH" in refused
    assert SETTING in refused
    monkeypatch.setenv(SETTING, "OTHER, SITE_*")
    assert "may not read" not in shown(path)


@pytest.mark.parametrize("base", [AUTOEXPERIMENT, OELLM], ids=["ae", "oellm"])
def test_what_only_the_command_line_reads_is_named_in_a_warning(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPUT_DIR", "/out/of/me")
    monkeypatch.delenv(SETTING, raising=False)
    text = (base + 'extra: {where: "${oc.env:OUTPUT_DIR}"}\n').replace("hello", '"${extra.where}"')
    path = written(tmp_path, text)
    assert "may not read the environment variable OUTPUT_DIR" in shown(path)
    with read_for_person():
        assert f"Airflow reads it where {SETTING} names it" in shown(path)
    monkeypatch.setenv(SETTING, "OUTPUT_DIR")
    with read_for_person():
        assert SETTING not in shown(path)


@pytest.mark.parametrize("base", [AUTOEXPERIMENT, OELLM], ids=["ae", "oellm"])
def test_a_default_stands_in_and_is_named(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITE_SCRATCH", VALUE)
    monkeypatch.delenv(SETTING, raising=False)
    text = (base + 'extra: {where: "${oc.env:SITE_SCRATCH,/tmp/x}"}\n').replace("hello", '"${extra.where}"')
    text = shown(written(tmp_path, text))
    assert "SITE_SCRATCH may not be read, so its default stands" in text


@pytest.mark.parametrize("name", [*NAMES, "WANDB_API_KEY", "SITE_PASSWORD", "MYSQL_CONN", "AIRFLOW_HOME"])
@pytest.mark.parametrize("pattern", ["*", "*_*", "A*", "[A-Z]*", "?*"])
def test_no_pattern_permits_a_secret(name: str, pattern: str) -> None:
    if name != "SSH_AUTH_SOCK":
        assert PermittedVariables({name: VALUE}, (pattern,)).get(name) is None
    assert PermittedVariables({name: VALUE}, (name,)).get(name) == VALUE


@pytest.mark.parametrize(
    "name",
    ["OUTPUT_DIR", "HF_HOME", "HOME", "USER", "SLURM_ACCOUNT", "SLURM_PARTITION_DEBUG", "OELLM_EVAL_VENV"],
)
def test_people_read_folders_and_accounts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "here")
    monkeypatch.delenv(SETTING, raising=False)
    assert permitted_variables().get(name) is None
    with read_for_person():
        assert permitted_variables()[name] == "here"
        assert len(permitted_variables()) == len(list(permitted_variables()))


@pytest.mark.parametrize("name", NAMES)
def test_people_read_no_secret_by_default(name: str) -> None:
    assert not PermittedVariables({}, FOR_PEOPLE).permits(name)


@pytest.mark.parametrize(
    "source", ["{{ env.%s }}", '{{ env["%s"] }}', "x{{ env.%s }}", "{{ env }}", "{{ env.get('%s') }}"]
)
@pytest.mark.parametrize("name", NAMES)
def test_profiles_read_no_variable_either(
    source: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_megatron.spec.documents.errors import SpecError
    from airflow_megatron.spec.model.cluster_profile import load_cluster

    monkeypatch.setenv(name, VALUE)
    text = source % name if "%s" in source else source
    (tmp_path / "site.yaml").write_text(
        f"ssh_conn_id: a\nrun_root: /r\npython: python\nmegatron_lm_dir: /m\ndescription: {text!r}\n"
    )
    try:
        text = str(load_cluster("site", tmp_path))
    except SpecError as error:
        text = str(error)
    assert VALUE not in text


def test_a_native_spec_has_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", VALUE)
    text = shown(written(tmp_path, NATIVE.replace("hello", '"{{ env.HF_TOKEN }}"')))
    assert "env" in text
    assert VALUE not in text
