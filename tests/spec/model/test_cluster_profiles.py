from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import HOME_VARIABLE, local_dir, project_root
from airflow_megatron.spec.model.cluster_profile import cluster_names, load_cluster

if TYPE_CHECKING:
    from pathlib import Path

PROFILE = """\
ssh_conn_id: slurm_alps
run_root: "{{ env.SCRATCH_OF_TEST }}/runs"
python: /opt/venv/bin/python
megatron_lm_dir: "{{ project_root }}/Megatron-LM"
slurm: {partition: gpu, time: 6h}
container: {runtime: pyxis, image: "{{ env.SCRATCH_OF_TEST }}/a.sqsh", binds: ["/data:/data"]}
env: {OMP_NUM_THREADS: 4}
visibility_window: 2m
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCRATCH_OF_TEST", "/scratch/me")
    monkeypatch.setenv("AIRFLOW_MEGATRON_SPEC_VARIABLES", "SCRATCH_OF_TEST, NO_SUCH")
    (tmp_path / "alps.yaml").write_text(PROFILE)
    return tmp_path


def told(folder: Path, name: str = "alps") -> str:
    with pytest.raises(SpecError) as caught:
        load_cluster(name, folder)
    return str(caught.value)


def test_a_file_of_signatures_that_is_not_there(folder: Path) -> None:
    (folder / "alps.yaml").write_text(f"{PROFILE}signatures: [here.yaml, sites/gone.yaml]\n")
    (folder / "here.yaml").write_text("signatures: []\n")
    assert f"alps.yaml:9:25: there is no file {folder}/sites/gone.yaml" in told(folder)


@pytest.mark.parametrize(
    "line", ["login_budget: 0", "login_budget: 1.5", "min_poll_interval: 0", "min_poll_interval: soon"]
)
def test_limits_on_logins_and_polls(folder: Path, line: str) -> None:
    (folder / "alps.yaml").write_text(f"{PROFILE}{line}\n")
    name, _, value = line.partition(": ")
    told_of = f"{name}: 'soon' is not a duration" if value == "soon" else f"{name} is "
    assert f"alps.yaml:9:1: {told_of}" in told(folder)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{stripe: 8}", "storage.stripe is 8"),
        (
            "{stripe: '8'}",
            "storage.stripe is '8' (expected options of lfs setstripe, such as --stripe-count 8)",
        ),
        ("{stripe: '--stripe-count 8; rm -rf /'}", "storage.stripe is "),
        ('{quota: "a\\nb"}', "storage.quota is 'a\\nb' (expected one line of text)"),
        ("{purge_after: soon}", "storage.purge_after: 'soon' is not a duration"),
        ("{read: 23.11.2026}", 'read is \'23.11.2026\' (expected a date: "2026-11-23" or "2026-11")'),
    ],
)
def test_storage(folder: Path, value: str, message: str) -> None:
    (folder / "alps.yaml").write_text(f"{PROFILE}storage: {value}\n")
    assert message in told(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *(
            (
                f"trainers: {{megatron_lm: {{transformer_engine: {version}}}}}",
                f"transformer_engine is '{version}' (expected a version, such as \"2.8\")",
            )
            for version in ("latest", "v2.8")
        ),
        (
            "trainers: {megatron_lm: {device: gpu}}",
            "trainers.megatron_lm.device is 'gpu' (expected one of 'cuda' or 'cpu')",
        ),
        ("launcher: mpirun", "launcher is 'mpirun' (expected one of 'torchrun' or 'srun')"),
    ],
)
def test_hints(folder: Path, line: str, message: str) -> None:
    (folder / "alps.yaml").write_text(f"{PROFILE}{line}\n")
    assert "alps.yaml:9:" in told(folder)
    assert message in told(folder)


def test_a_profile_with_expressions(folder: Path) -> None:
    cluster = load_cluster("alps", folder)
    assert cluster.name == "alps"
    assert cluster.run_root == "/scratch/me/runs"
    assert cluster.megatron_lm_dir == f"{project_root()}/Megatron-LM"
    assert cluster.container is not None
    assert cluster.container.image == "/scratch/me/a.sqsh"
    assert (cluster.slurm.time, cluster.visibility_window) == (21600, 120)


@pytest.mark.parametrize("name", cluster_names())
def test_shipped_profiles(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.ssh_conn_id
    assert cluster.run_root.startswith("/")


def test_the_local_profile_lives_in_the_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path))
    assert local_dir() == tmp_path
    assert load_cluster("local").run_root == f"{tmp_path}/runs"


def test_jobs_of_the_local_cluster_use_no_gpu_of_this_machine() -> None:
    """On a GPU, the quick start would need Transformer Engine, and its jobs would share the GPU's memory."""
    assert load_cluster("local").env["CUDA_VISIBLE_DEVICES"] == ""


def test_a_folder_instead_of_a_profile(folder: Path) -> None:
    (folder / "mine.yaml").mkdir()
    assert "mine.yaml: the cluster profile 'mine' is a folder (a profile is a file" in told(folder, "mine")


def test_an_unknown_profile(folder: Path) -> None:
    assert told(folder, "alp").endswith("alp.yaml: there is no cluster profile 'alp' (did you mean 'alps'?)")
    assert "(known: alps; or write juwels.yaml)" in told(folder, "juwels")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "ssh_conn_id",
            "ssh_con_id",
            "alps.yaml:1:1: unknown key 'ssh_con_id' (did you mean 'ssh_conn_id'?)",
        ),
        ("python: /opt/venv/bin/python\n", "", "'python' is missing"),
        (
            "runtime: pyxis",
            "runtime: enroot",
            "expected one of 'apptainer', 'singularity', 'pyxis', 'ce', 'docker', 'podman-hpc', 'podman-hpc-shared'",
        ),
        (
            "env.SCRATCH_OF_TEST }}/runs",
            "env.NO_SUCH }}/runs",
            "alps.yaml:2:1: the environment variable NO_SUCH is not set",
        ),
        (
            "{{ env.SCRATCH_OF_TEST }}/runs",
            "runs",
            "alps.yaml:2:1: run_root: 'runs' is not absolute (start it with /)",
        ),
        (
            "{{ env.SCRATCH_OF_TEST }}/a",
            "{{ env.SCRATCH_OF_TEST }/a",
            "alps.yaml:6:1: '{{ env.SCRATCH_OF_TEST }/a",
        ),
        ("OMP_NUM_THREADS: 4", "A: '{{ 4', B: '{{ (x }}'", "alps.yaml:7:1: '{{ 4' is not a valid expression"),
        ("{{ project_root }}/", "", "alps.yaml:4:1: megatron_lm_dir: 'Megatron-LM' is not absolute"),
        ("visibility_window: 2m", "slurm_bin: bin", "alps.yaml:8:1: slurm_bin: 'bin' is not absolute"),
        (
            "/opt/venv/bin/python",
            "~/venv/bin/python",
            "python: '~/venv/bin/python' is not absolute (no shell expands ~)",
        ),
        (
            "visibility_window: 2m",
            "trainers: {megatron_lm: {checkout: ~/Megatron-LM}}",
            "alps.yaml:8:26: trainers.megatron_lm.checkout: '~/Megatron-LM' is not absolute (start it with /)",
        ),
        (
            "visibility_window: 2m",
            "trainers: {megatron_core: {arguments_table: none.json}}",
            "alps.yaml:8:28: there is no file {folder}/none.json (make it with: airflow-megatron megatron-args",
        ),
        ("visibility_window: 2m", "signatures: [{pattern: x}]", "signatures.0 is a mapping (expected text)"),
        (
            "visibility_window: 2m",
            "gpu_per_node: 4",
            "unknown key 'gpu_per_node' (write slurm: {gpus_per_node: …})",
        ),
        ("project_root", "projectroot", "'projectroot', which is not defined; did you mean 'project_root'?"),
        ("2m", "later", "visibility_window: 'later' is not a duration (write 30m, 6h or 06:00:00)"),
        (PROFILE, "[1]", "expected keys with values"),
    ],
)
def test_wrong_profiles(folder: Path, old: str, new: str, message: str) -> None:
    (folder / "alps.yaml").write_text(PROFILE.replace(old, new))
    assert message.replace("{folder}", str(folder)) in told(folder)


def test_a_table_of_arguments_is_relative_to_the_profile(folder: Path) -> None:
    text = PROFILE.replace("visibility_window: 2m", "trainers: {megatron_core: {arguments_table: mine.json}}")
    (folder / "alps.yaml").write_text(text)
    (folder / "mine.json").write_text("{}")
    assert load_cluster("alps", folder).trainer("megatron_core").arguments_table == str(folder / "mine.json")


def test_a_project_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    expected = f"holds no sbatch/, clusters/ or sweep_specs/ folder; set {HOME_VARIABLE}"
    with pytest.raises(FileNotFoundError, match=expected):
        project_root()
