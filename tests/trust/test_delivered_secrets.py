"""Only jobs of specs that the operator permits get secrets of Airflow."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from probed_specs import AUTOEXPERIMENT, NATIVE, OELLM, errors_of, shown

from airflow_megatron.hooks import job_secrets
from airflow_megatron.hooks.job_secrets import mask_secrets, secret_values
from airflow_megatron.plan.sweep_plan import check_sweep, job_script
from airflow_megatron.requirements.permitted_secrets import CONNECTIONS, VARIABLES
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.spec_files import load_sweep
from airflow_megatron.supervision.attempts import SubmissionRefusedError, looked_up

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VALUE = 'k3ep\'th1s "0ut" of $ight'
SIDECAR = "secrets: {HF_TOKEN: {variable: hf_token}, W: {connection: 'wandb', field: extra.key}, F: {file: '~/.f'}}\n"
RESERVED = [
    *("PATH", "HOME", "USER", "SHELL", "IFS", "ENV", "PWD", "TMPDIR", "LANG", "LC_ALL", "UID", "PS4"),
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "BASH_ENV", "BASH_FUNC_ls", "SHELLOPTS", "PROMPT_COMMAND"),
    *("SLURM_JOB_ID", "SLURM_CONF", "SLURMD_NODENAME", "SBATCH_ACCOUNT", "PYTHONPATH", "PYTHONSTARTUP"),
    *("RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES", "PMI_RANK"),
    *("am_attempt_dir", "am_secret_value", "AIRFLOW_MEGATRON_ARRAY_TASK", "command"),
]
FREE = [
    *(
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "SITE",
        "hf_token",
        "_T",
        "PATHS",
        "MY_PATH",
        "LDAP_TOKEN",
    ),
    *(
        "AIRFLOW_TOKEN",
        "BASHFUL",
        "SLURMY",
        "MLFLOW_TRACKING_PASSWORD",
        "RANKING_KEY",
        "AM_KEY",
        "PYTHON_KEYRING",
    ),
]


@pytest.fixture(autouse=True)
def _operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that permits specs one variable and one connection of several."""
    monkeypatch.setenv(CONNECTIONS, " wandb ,other")
    monkeypatch.setenv(VARIABLES, "hf_token")


def jobs_of(path: Path) -> Sequence[Job]:
    return check_sweep(load_sweep(path), load_cluster("local")).jobs


def write(folder: Path, text: str, sidecar: str = "") -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    (folder / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --time=5\necho {steps}\n")
    if sidecar:
        (folder / "study.yaml.airflow.yml").write_text(sidecar)
    return path


def test_a_spec_names_a_connection_or_a_variable(tmp_path: Path) -> None:
    named = "A: {variable: hf_token}, B: {connection: \"wan{{ 'db' }}\", field: extra.key}, C: {file: ~/c}"
    (job,) = jobs_of(write(tmp_path, NATIVE + f"secrets: {{{named}}}\n"))
    assert job.delivered == {
        "A": {"variable": "hf_token"},
        "B": {"connection": "wandb", "field": "extra.key"},
    }
    assert job.secrets == {"C": "~/c"}
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_a_stage_takes_precedence_over_the_sweep(tmp_path: Path) -> None:
    stage = NATIVE + "    secrets: {A: {variable: hf_token}, B: {file: ~/b}}\n"
    (job,) = jobs_of(write(tmp_path, stage + "secrets: {A: {file: ~/a}, B: {connection: wandb}}\n"))
    assert job.delivered == {"A": {"variable": "hf_token"}}
    assert job.secrets == {"B": "~/b"}


@pytest.mark.parametrize(
    ("source", "refusal_text"),
    [
        (
            "connection: slurm_local",
            "specs on this Airflow may not read password of the connection 'slurm_local'",
        ),
        ("connection: WANDB", "specs on this Airflow may not read"),
        ("connection: 'wandb,other'", "specs on this Airflow may not read"),
        ("connection: '*'", "specs on this Airflow may not read"),
        ("connection: ''", "specs on this Airflow may not read"),
        ("connection: hf_token", "specs on this Airflow may not read"),
        ("variable: wandb", "specs on this Airflow may not read the variable 'wandb'"),
        ("variable: site_token", "specs on this Airflow may not read"),
        (
            'variable: \'{{ "site" ~ "_token" }}\'',
            "specs on this Airflow may not read the variable 'site_token'",
        ),
        ("variable: hf_token, field: password", "field beside connection only"),
        ("variable: hf_token, connection: wandb", "one of file, connection and variable"),
        ("file: /x, variable: hf_token", "one of file, connection and variable"),
        ("field: password", "one of file, connection and variable"),
        ("connection: wandb, field: _password", "password, login, host, schema or extra.NAME"),
        ("connection: wandb, field: extra", "password, login, host, schema or extra.NAME"),
        ("connection: wandb, field: extra.", "password, login, host, schema or extra.NAME"),
        ("connection: wandb, field: get_uri", "password, login, host, schema or extra.NAME"),
        ("connection: wandb, field: '{{ x }}'", "password, login, host, schema or extra.NAME"),
        ("conection: wandb", "unknown key 'conection'"),
    ],
)
def test_a_source_that_is_refused(source: str, refusal_text: str, tmp_path: Path) -> None:
    text = errors_of(write(tmp_path, NATIVE + f"secrets:\n  HF_TOKEN: {{{source}}}\n"))
    assert refusal_text in text
    assert "study.yaml:" in text
    assert len([line for line in text.splitlines() if "study.yaml" in line]) == 1


def test_without_the_operator_s_word_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONNECTIONS)
    text = errors_of(write(tmp_path, NATIVE + "secrets: {HF_TOKEN: {connection: wandb}}\n"))
    assert "study.yaml:9:" in text
    assert f"the operator of Airflow adds wandb in {CONNECTIONS}" in text
    path = write(tmp_path, NATIVE + "    secrets:\n      A: {file: /a}\n      B: {connection: wandb}\n")
    line = path.read_text().splitlines().index("      B: {connection: wandb}") + 1
    assert f"study.yaml:{line}:" in errors_of(path)


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("source", ["file: /x", "variable: hf_token"])
def test_names_that_belong_to_others(name: str, source: str, tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + f"secrets: {{{name}: {{{source}}}}}\n")
    assert f"secrets.{name}: the name belongs to the system, to Slurm or to job scripts" in errors_of(path)
    path = write(tmp_path, AUTOEXPERIMENT, f"secrets: {{{name}: {{{source}}}}}\n")
    assert "belongs to the system" in errors_of(path)


def test_other_names_are_taken(tmp_path: Path) -> None:
    names = ", ".join(f"{name}: {{variable: hf_token}}" for name in FREE)
    assert errors_of(write(tmp_path, NATIVE + f"secrets: {{{names}}}\n")) == ""


def test_one_name_in_env_and_in_airflow_s_secrets(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "secrets: {SITE: {variable: hf_token}}\nenv: {SITE: abc}\n")
    assert "SITE is in env and in secrets" in errors_of(path)


@pytest.mark.parametrize("foreign", [AUTOEXPERIMENT, OELLM], ids=["AutoExperiment", "oellm"])
def test_a_sidecar_gives_secrets(foreign: str, tmp_path: Path) -> None:
    path = write(tmp_path, foreign, SIDECAR)
    (job,) = jobs_of(path)
    assert job.delivered == {
        "HF_TOKEN": {"variable": "hf_token"},
        "W": {"connection": "wandb", "field": "extra.key"},
    }
    assert job.secrets == {"F": "~/.f"}
    script = job_script(job, load_cluster("local"), 3)
    assert f"am_secret HF_TOKEN {job.stage_dir}/3/secrets/HF_TOKEN || exit" in script
    assert "am_secret F '~/.f' || exit" in script
    assert script.index("am_secret F") < script.rindex("echo")


def test_a_sidecar_s_wrong_secret_is_named_there(tmp_path: Path) -> None:
    path = write(tmp_path, AUTOEXPERIMENT, "cluster: local\nsecrets:\n  A: {variable: site_token}\n")
    assert "study.yaml.airflow.yml:" in errors_of(path)
    path = write(tmp_path, AUTOEXPERIMENT, "secrets:\n  A: {variable: '{{ lr }}'}\n")
    assert "'lr' is not defined here" in errors_of(path)


def test_a_profile_s_secrets_reach_oellm_jobs(tmp_path: Path) -> None:
    profile = load_cluster("local")
    sections = (
        type(profile).model_validate({**profile.model_dump(), "secrets": {"P": {"file": "~/.p"}}}).secrets
    )
    profile = profile.model_copy(update={"secrets": sections})
    for text, expected in ((OELLM, {"P": "~/.p"}), (AUTOEXPERIMENT, {})):
        (job,) = check_sweep(load_sweep(write(tmp_path, text)), profile).jobs
        assert job.secrets == expected


class Airflow:
    """A stub of Airflow's variables and connections, which records masked values."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.variables: dict[str, str] = {"hf_token": VALUE, "site_token": "no!"}
        self.extras: dict[str, object] = {"key": "from extra"}
        self.masked: list[str] = []
        connection = SimpleNamespace(
            password=VALUE, login="me", host=None, schema="", extra_dejson=self.extras
        )
        monkeypatch.setattr(job_secrets.Variable, "get", self.variables.__getitem__)
        monkeypatch.setattr(job_secrets.BaseHook, "get_connection", lambda name: {"wandb": connection}[name])
        monkeypatch.setattr(job_secrets, "mask_secret", self.masked.append)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


def one_job(folder: Path, source: str) -> Job:
    (job,) = jobs_of(write(folder, NATIVE + f"secrets: {{HF_TOKEN: {{{source}}}}}\n"))
    return job


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("variable: hf_token", VALUE),
        ("connection: wandb", VALUE),
        ("connection: wandb, field: password", VALUE),
        ("connection: wandb, field: login", "me"),
        ("connection: wandb, field: extra.key", "from extra"),
    ],
)
def test_a_value_is_looked_up_and_masked(source: str, value: str, tmp_path: Path, airflow: Airflow) -> None:
    job = one_job(tmp_path, source)
    assert airflow.masked == []
    assert looked_up(job, secret_values) == {"HF_TOKEN": value}
    assert value in airflow.masked
    airflow.masked.clear()
    mask_secrets(job.delivered)
    assert value in airflow.masked


@pytest.mark.parametrize(
    ("source", "refusal_text"),
    [
        (
            "connection: other",
            "password of the connection 'other' cannot be looked up (KeyError); add it to Airflow",
        ),
        ("connection: wandb, field: host", "host of the connection 'wandb' is empty"),
        ("connection: wandb, field: schema", "is empty"),
        ("connection: wandb, field: extra.absent", "is empty"),
    ],
)
def test_unavailable_secrets_are_reported(
    source: str, refusal_text: str, tmp_path: Path, airflow: Airflow
) -> None:
    job = one_job(tmp_path, source)
    with pytest.raises(SubmissionRefusedError, match=r"study\.only.run: secret HF_TOKEN: ") as refusal:
        looked_up(job, secret_values)
    assert refusal_text in str(refusal.value)
    mask_secrets(job.delivered)
    assert airflow.masked == []


@pytest.mark.parametrize("value", ["a\0b" + VALUE, "", "\n", VALUE * 9000, "\udcff" + VALUE])
def test_values_that_no_variable_can_hold_are_refused_without_being_shown(
    value: str, tmp_path: Path, airflow: Airflow
) -> None:
    airflow.variables["hf_token"] = value
    job = one_job(tmp_path, "variable: hf_token")
    with pytest.raises(
        SubmissionRefusedError, match=r"the variable 'hf_token' .*; correct it in Airflow"
    ) as refusal:
        looked_up(job, secret_values)
    assert VALUE not in str(refusal.value)


def test_permissions_are_checked_again_at_submission(
    tmp_path: Path, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan may come from another machine, or from a user with access to the store."""
    job = one_job(tmp_path, "variable: hf_token")
    monkeypatch.setenv(VARIABLES, "another")
    with pytest.raises(
        SubmissionRefusedError, match="specs on this Airflow may not read the variable 'hf_token'"
    ):
        looked_up(job, secret_values)


def test_outside_airflow_nothing_is_submitted_without_them(tmp_path: Path) -> None:
    with pytest.raises(SubmissionRefusedError, match="its secrets HF_TOKEN are Airflow's"):
        looked_up(one_job(tmp_path, "variable: hf_token"), None)


@pytest.mark.parametrize("text", [AUTOEXPERIMENT, OELLM, NATIVE])
def test_no_plan_and_no_script_holds_a_value(text: str, tmp_path: Path, airflow: Airflow) -> None:
    native = "secrets: {HF_TOKEN: {variable: hf_token}}\n"
    path = write(tmp_path, text + native, "") if text is NATIVE else write(tmp_path, text, native)
    message = shown(path)
    assert "secrets/HF_TOKEN" in message
    assert VALUE not in message
    assert airflow.masked == []
