"""Jobs get secrets from private files on the cluster; no spec, script, record or message contains them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from probed_specs import AUTOEXPERIMENT, NATIVE, OELLM, TEMPLATE, errors_of, shown

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.submission.job_script import render_job_script
from airflow_megatron.spec.documents.project import templates_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.spec_files import load_sweep
from airflow_megatron.spec.trust.secret_names import holds_secret, is_secret_name

VALUE = "hf_k3epTh1sOutOfS1ght"
SECRETS = [
    *(
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "hf_token",
    ),
    *(
        "GITHUB_TOKEN",
        "GH_PAT",
        "NGC_API_KEY",
        "COMET_API_KEY",
        "MLFLOW_TRACKING_PASSWORD",
        "DB_PASSWORD",
        "PGPASSWORD",
    ),
    *(
        "MY_SECRET",
        "SECRET_NAME_OF_MINE",
        "OPENAI_API_KEY",
        "SSH_KEY",
        "KEY",
        "TOKEN",
        "API_TOKEN_2",
        "Wandb_Api_Key",
    ),
    *(
        "SITE_CREDENTIALS",
        "KEY_PASSPHRASE",
        "DB_PASS",
        "MYSQL_PWD",
        "ENCRYPTION_KEY",
        "APIKEY",
        "WANDB_APIKEY",
    ),
]
NO_SECRETS = [
    *(
        "TOKENIZERS_PARALLELISM",
        "MONKEY",
        "NUM_TOKENS",
        "MAX_TOKENS",
        "TOKENIZER",
        "KEYBOARD",
        "HOTKEYS",
        "PWD",
    ),
    *(
        "OLD_PWD",
        "OLDPWD",
        "PAD_TOKEN",
        "EOS_TOKEN",
        "EOD_TOKEN_ID",
        "MAX_TOKEN",
        "HF_TOKEN_PATH",
        "TOKEN_FILE",
    ),
    *(
        "SSH_KEY_FILE",
        "SORT_KEY",
        "PUBLIC_KEY",
        "PRIMARY_KEY",
        "CACHE_KEY",
        "AWS_ACCESS_KEY_ID",
        "SECRETARY",
        "PASSES",
    ),
    *(
        "NCCL_DEBUG",
        "OMP_NUM_THREADS",
        "HF_HOME",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "BYPASS",
        "COMPASS",
        "TOKENS_PER_SECOND",
    ),
    *(
        "TURKEY",
        "FORWARD_PASS",
        "PATH",
        "PATCH",
        "KEYRING_DIR",
        "TOKEN_COUNT",
        "PASSWORD_FILE",
        "SECRET_PATH",
    ),
]


@pytest.mark.parametrize("name", SECRETS)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert holds_secret(name, VALUE)
    assert not holds_secret(name, "")


@pytest.mark.parametrize("name", NO_SECRETS)
def test_names_that_are_not_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("value", ["true", "0", "1", "no", "4096", "None", "off"])
def test_switches_are_not_secrets(value: str) -> None:
    assert not holds_secret("USE_TOKEN", value)


@pytest.mark.parametrize("name", ["GOOGLE_APPLICATION_CREDENTIALS", "SSH_PRIVATE_KEY", "TLS_KEY"])
def test_paths_to_keys_are_not_secrets(name: str) -> None:
    assert not holds_secret(name, "/home/me/.keys/site.json")
    assert holds_secret(name, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


KNOWN = [
    "hf_" + "aB3" * 11 + "z",
    "ghp_" + "aB3" * 12,
    "github_pat_" + "aB3_" * 10,
    "AKIA" + "AB23" * 4,
    "sk-ant-" + "aB3-" * 10 + "z",
    "xoxb-" + "1234-" * 5 + "z",
    "eyJ" + "aB3" * 6 + ".eyJ" + "aB3" * 6 + "." + "aB3" * 6,
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "postgresql://me:s3cret@db.example.org/runs",
    "http://proxy:pw@10.0.0.1:3128",
    "redis://:pw@cache:6379",
]
UNKNOWN = [
    "hf_checkpoints_of_the_large_model_and_others",
    "https://example.org:8080/a@b",
    "https://me@example.org/x",
    "postgresql://me:$PGPASSWORD@db/runs",
    "postgresql://me:${PGPASSWORD}@db/runs",
    "/scratch/me/eyJ/x.y.z",
    "sk-learn-intelex-for-everybody",
    "AKIAPATH",
    "tcp://node01:29500",
    "-----BEGIN PUBLIC KEY-----",
]


@pytest.mark.parametrize("value", KNOWN)
def test_secrets_of_known_forms_under_any_name(value: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    assert holds_secret("SITE_VALUE", value)
    texts = [NATIVE + f"env: {{SITE_VALUE: {json.dumps(value)}}}\n"]
    for command in (["login", "--with", value], ["bash", "-c", f"login '{value}'"]):
        texts.append(NATIVE.replace("[echo, hello]", json.dumps(command)))
    for text in texts:
        path.write_text(text)
        found = errors_of(path)
        assert "in plain text" in found
        assert value not in found


@pytest.mark.parametrize("value", UNKNOWN)
def test_values_that_are_like_them(value: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        NATIVE.replace("[echo, hello]", json.dumps(["echo", value])) + f"env: {{SITE: {json.dumps(value)}}}\n"
    )
    assert errors_of(path) == ""


PLACES = {
    "sweep": NATIVE + "env: {NAME: VALUE}\n",
    "stage": NATIVE + "    env: {NAME: VALUE}\n",
    "expression": NATIVE + "params: {x: VALUE}\n" + 'env: {NAME: "{{ x }}"}\n',
    "command": NATIVE.replace("[echo, hello]", "[env, NAME=VALUE, echo]"),
    "shell": NATIVE.replace("[echo, hello]", "[bash, -c, 'cd /x; export NAME=VALUE; echo']"),
    "oellm": OELLM.replace("env: {}", "env: {NAME: VALUE}"),
    "oellm backend": OELLM.replace("backend: {", "backend: {env: {NAME: VALUE}, "),
    "oellm command": OELLM.replace("[echo, hello]", "[env, NAME=VALUE, echo]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_plain_secrets_are_refused_and_not_repeated(place: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    for name in SECRETS:
        path.write_text(PLACES[place].replace("NAME", name).replace("VALUE", VALUE))
        text = errors_of(path)
        assert f"{name} in plain text" in text
        assert f"secrets: {{{name}: {{file: PATH}}}}" in text
        assert VALUE not in text


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_other_variables_are_taken(place: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    for name in NO_SECRETS:
        path.write_text(PLACES[place].replace("NAME", name).replace("VALUE", "/some/folder:/usr/bin"))
        assert errors_of(path) == "", name


@pytest.mark.parametrize(
    "line", ["export HF_TOKEN=VALUE", "HF_TOKEN='VALUE' python x", 'export WANDB_API_KEY="VALUE"']
)
def test_a_script_with_a_secret_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(AUTOEXPERIMENT)
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n{line.replace('VALUE', VALUE)}\n")
    assert "its script holds" in shown(tmp_path / "study.yaml")


@pytest.mark.parametrize(
    "line", ["export HF_TOKEN=$(cat x)", 'HF_TOKEN="$TOKEN" python', "echo $HF_TOKEN", "X_DIR=/a"]
)
def test_a_script_that_reads_a_secret_is_fine(line: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(AUTOEXPERIMENT)
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n{line}\n")
    assert "its script holds" not in shown(tmp_path / "study.yaml")


@pytest.mark.parametrize(
    "section",
    [
        "secrets: {HF_TOKEN: VALUE}",
        "secrets: {HF_TOKEN: {value: VALUE}}",
        "secrets: {HF_TOKEN: [VALUE]}",
        "secrets: VALUE",
        "secrets: [VALUE]",
        "secrets: {HF_TOKEN: {file: [VALUE]}}",
        "secrets: {HF_TOKEN: {file: {VALUE: 1}}}",
        "secrets: {HF_TOKEN: {file: /x, connection: VALUE}}",
        "env: {HF_TOKEN: [VALUE]}",
        "env: {HF_TOKEN: {a: VALUE}}",
    ],
)
def test_a_wrong_section_does_not_show_its_value(section: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(NATIVE + section.replace("VALUE", VALUE) + "\n")
    text = errors_of(path)
    assert "study.yaml:" in text
    assert VALUE not in text


def test_one_name_in_env_and_in_secrets(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(NATIVE + "secrets: {SITE: {file: /x}}\nenv: {SITE: abc}\n")
    assert "SITE is in env and in secrets" in errors_of(path)
    path.write_text(
        NATIVE + f"    env:\n      HF_TOKEN: {VALUE}\n    secrets:\n      HF_TOKEN: {{file: /x}}\n"
    )
    line = path.read_text().splitlines().index(f"      HF_TOKEN: {VALUE}") + 1
    assert errors_of(path).startswith(f"{path}:{line}:7: stage ")
    assert errors_of(path).count("HF_TOKEN") == 1


@pytest.mark.parametrize("name", ["1A", "A-B", "A B", "A=B", "", "A;rm", "$(x)"])
def test_names_that_are_not_variables(name: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(NATIVE + f"secrets: {{'{name}': {{file: /x}}}}\n")
    assert "study.yaml:" in errors_of(path)


def _job(folder: Path, file: str) -> Job:
    path = folder / "study.yaml"
    path.write_text(
        NATIVE.replace("[echo, hello]", "[bash, -c, 'printf %s \"$HF_TOKEN\" >$OUT']")
        + f"    secrets: {{HF_TOKEN: {{file: '{file}'}}}}\n"
    )
    (job,) = check_sweep(load_sweep(path), load_cluster("local")).jobs
    return job


def test_a_stage_s_secret_is_named_in_its_job_and_script(tmp_path: Path) -> None:
    job = _job(tmp_path, "~/.secrets/{{ stage }}")
    assert job.secrets == {"HF_TOKEN": "~/.secrets/run"}
    assert Job.from_json(job.to_json()) == job
    assert "am_secret HF_TOKEN '~/.secrets/run' || exit" in render_job_script(
        job, load_cluster("local"), 1, templates_dir()
    )


@pytest.mark.slow
def test_a_rendered_script_reads_the_secret(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(VALUE + "\n")
    token.chmod(0o600)
    profile = load_cluster("local").model_copy(
        update={"run_root": str(tmp_path / "runs"), "setup": ["set -x"]}
    )
    job = _job(tmp_path, str(token))
    script = render_job_script(job, load_cluster("local"), 1, templates_dir())
    assert VALUE not in script
    (job,) = check_sweep(load_sweep(tmp_path / "study.yaml"), profile).jobs
    script = render_job_script(job, profile, 1, templates_dir())
    out = tmp_path / "out"
    Path(job.stage_dir, "1").mkdir(parents=True)
    Path(job.stage_dir, "1", "jobid").write_text("7\n")  # as the submitter does
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OUT": str(out), "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["bash"], input=script, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert out.read_text() == VALUE
    assert VALUE not in done.stdout + done.stderr
    for path in (tmp_path / "runs").rglob("*"):
        assert path.is_dir() or VALUE not in path.read_text()


@pytest.mark.parametrize(
    ("mode", "content", "wrong"),
    [
        (0o600, f"{VALUE}\n", ""),
        (0o400, VALUE, ""),
        (0o700, VALUE, ""),
        (0o600, "two\nlines", ""),
        (0o644, VALUE, "can be read by others (mode 644); run chmod 600"),
        (0o640, VALUE, "can be read by others"),
        (0o604, VALUE, "can be read by others"),
        (0o620, VALUE, "can be read by others"),
        (0o601, VALUE, "can be read by others"),
        (0o666, VALUE, "can be read by others"),
        (0o600, "", "is empty"),
        (0o600, "\n\n", "is empty"),
        (None, "", "is not a file here"),
    ],
)
def test_only_a_private_file_is_read(mode: int | None, content: str, wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "to ken"
    if mode is not None:
        file.write_text(content)
        file.chmod(mode)
    text = f"set -x\n{shell_file('job_secret')}\nam_secret HF_TOKEN '~/to ken' || exit\nprintf %s \"${{#HF_TOKEN}}\"\n"
    done = subprocess.run(
        ["bash"],
        input=text,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        check=False,
    )
    if wrong:
        assert done.returncode == 77
        assert f"airflow-megatron: the secret HF_TOKEN: ~/to ken {wrong}" in done.stderr
    else:
        assert done.stdout == str(len(content.rstrip("\n")))
    assert VALUE not in done.stderr


def test_a_folder_and_a_foreign_file_are_not_secrets(tmp_path: Path) -> None:
    for path in (str(tmp_path), "/dev/zero", "/nowhere"):
        text = f"{shell_file('job_secret')}\nam_secret A {path}"
        done = subprocess.run(
            ["bash", "-c", text],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 77
        assert "is not a file here" in done.stderr


def test_the_template_of_foreign_files_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(AUTOEXPERIMENT)
    (tmp_path / "job.sbatch").write_text(TEMPLATE)
    assert "am_secret()" not in shown(tmp_path / "study.yaml")
