"""Composing a Hydra configuration of oellm-autoexp and writing it as a native spec."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.dialects.oellm.dialect import OellmSweep
from airflow_megatron.spec.dialects.oellm.native import native_spec
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.yaml_document import load_yaml_text
from airflow_megatron.spec.foreign.megatron_metadata import PLACE
from airflow_megatron.spec.model.checkpoint_sources import CheckpointSource
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.native.sweep import NativeSweep
from airflow_megatron.spec.oellm_import import MissingHydraError, import_oellm, spec_text
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.model.jobs import Job

FILES = {
    "study.yaml": r"""
defaults:
  - backend: megatron
  - slurm: base
  - job: default
  - _self_
stage: ""
sweep:
  type: product
  groups:
    - type: list
      configs:
        - {backend.megatron.lr: 1e-3, slurm.sbatch.nodes: 1}
        - {backend.megatron.lr: 5e-5, slurm.sbatch.nodes: 4, backend.env.EXTRA: "yes"}
    - type: list
      configs:
        - {stage: stable, backend.megatron.train_iters: 1000}
        - stage: decay
          backend.megatron.train_iters: 800
          backend.megatron.load: "\\${sibling.stable.job.base_output_dir}/checkpoints"
          job.start_condition:
            class_name: FileExistsCondition
            path: "\\${sibling.stable.job.base_output_dir}/checkpoints/\\${oc.pad_iter:600}/metadata.json"
        - stage: export
          backend: megatron_bridge
          backend.tokenizer: gpt2
          backend.extra: "\\${sibling.decay.job.base_output_dir}/current.yaml"
          backend.megatron_path: "\\${sibling.decay.job.base_output_dir}/iter_0000800"
          job.start_condition:
            class_name: AndCondition
            conditions:
              - class_name: FileExistsCondition
                path: "\\${sibling.decay.job.base_output_dir}/checkpoints/iter_0000800/.metadata"
              - class_name: ShellCommandCondition
                command: "test -d \\${sibling.stable.job.base_output_dir}/{{braces}}"
""",
    "backend/megatron.yaml": r"""
class_name: MegatronBackend
env: {HF_HOME: /hf}
megatron:
  num_layers: 2
  lr: 1e-4
  micro_batch_size: 8
  global_batch_size: ${oc.eval:${slurm.sbatch.nodes}*${slurm.sbatch.gpus_per_node}*${.micro_batch_size}}
  norm_epsilon: 1e-5
  split: "99,1,0"
  data_path: ["1e-4"]
  save: ${job.base_output_dir}/checkpoints
  wandb_save_dir: ${job.base_output_dir}/wandb
  unused: 0.5
""",
    "backend/megatron/base_defaults.yaml": "unused: 0.5\nlr: 7\n",
    "backend/megatron_bridge.yaml": "class_name: MegatronBridgeBackend\nenv: {}\n",
    "slurm/base.yaml": 'sbatch: {nodes: 1, gpus_per_node: 2, time: "06:00:00"}\nenv: {}\n',
    "job/default.yaml": r"""
name: "exp_${oc.select:backend.megatron.lr,x}_${stage}"
base_output_dir: ${oc.env:OUT,"./output"}/${.name}
log_events:
  - {name: oom, pattern: "out of memory", action: {class_name: CancelAction}}
""",
}


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    return tmp_path


@pytest.fixture
def cluster() -> ClusterProfile:
    return load_cluster("local").model_copy(update={"run_root": "/runs"})


METADATA = """\
MEGATRON_ARG_METADATA = {{
{metadata}
    "router_spec": Metadata(arg_type=str, default=None, choices=None, nargs=None, element_type=None),
}}
MEGATRON_ACTION_SPECS = {{
{actions}
    "router_spec": Spec(option_strings=("--router",), action_type="store", nargs=None, const=None, default=None),
}}
"""


@pytest.mark.slow
def test_arguments_of_the_checkouts_fork(tmp_path: Path, cluster: ClusterProfile) -> None:
    pytest.importorskip("hydra")
    for name, text in FILES.items():
        file = tmp_path / "config" / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    known = (
        *("num_layers", "lr", "micro_batch_size", "global_batch_size", "norm_epsilon", "split", "data_path"),
        *("save", "wandb_save_dir", "train_iters", "load", "wd_mult"),
    )
    actions = (
        f'    "{name}": Spec(option_strings=("--{name.replace("_", "-")}",), action_type="store", default=None),'
        for name in known
    )
    metadata = (f'    "{name}": Metadata(arg_type=float, default=None),' for name in known)
    list_of_arguments = tmp_path / PLACE
    list_of_arguments.parent.mkdir(parents=True)
    list_of_arguments.write_text(METADATA.format(metadata="\n".join(metadata), actions="\n".join(actions)))
    given = ("wd_mult=0.5", "router_spec=cosine", "wd_mutl=1")
    overrides = [f"++backend.megatron.{words}" for words in given]
    text = import_oellm(tmp_path / "config", "study", overrides, environment={})
    assert "wd_mutl: oellm-autoexp does not pass it" in text
    assert "did you mean 'wd_mult'?" in text
    assert "wd_mult, router_spec: no release of Megatron-LM takes it" in " ".join(
        text.replace("#", "").split()
    )
    assert "OpenEuroLLM's fork" not in text
    sweep = load_sweep_text(text, "study.yaml")
    for job in plan_sweep(sweep, cluster).jobs:
        if job.kind == "train":
            assert job.command[job.command.index("--wd-mult") + 1] == "0.5"
            assert job.command[job.command.index("--router") + 1] == "cosine"
            assert "wd_mutl" not in job.params
    list_of_arguments.write_text("def")
    with pytest.raises(SpecError, match=r"cli_metadata.py:1:\d+: is not Python"):
        import_oellm(tmp_path / "config", "study", environment={})


def test_a_swept_group_is_read(config_dir: Path) -> None:
    pytest.importorskip("hydra")
    for name, layers in (("small", 2), ("large", 4)):
        (config_dir / f"backend/megatron/{name}.yaml").write_text(f"num_layers: {layers}\n")
    (config_dir / "backend/megatron.yaml").write_text(
        "defaults:\n  - megatron: small\n  - _self_\nclass_name: MegatronBackend\nmegatron: {train_iters: 10}\n"
    )
    sweep = "sweep: {type: product, groups: [{params: {backend/megatron: [small, large]}}]}\n"
    text = FILES["study.yaml"]
    (config_dir / "study.yaml").write_text(text[: text.index("sweep:")] + sweep)
    imported = import_oellm(config_dir, "study", environment={})
    assert "num_layers: 2" in imported
    assert "num_layers: 4" in imported
    assert "nothing reads the swept key" not in imported


def test_missing_hydra_is_reported(config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hydra", None)
    with pytest.raises(MissingHydraError, match=r"pip install 'airflow-megatron\[hydra\]'"):
        import_oellm(config_dir, "study")


def test_text_is_read_back_as_it_was() -> None:
    data = {
        "a": ["1e-4", "on", "06:00:00", "", "null", "x: y", "# z", "{{ b }}", "two\nlines\n", "1_0", "- d"],
        "b": [1e-5, 1.0, 1e20, 5, True, None, float("inf")],
        "sweep": {"configs": [{"label": "1.5", "lr": 1e-3}]},
    }
    text = spec_text(data)
    assert load_yaml_text(text, "x.yaml").data == data
    assert '- {label: "1.5", lr: 0.001}' in text


@pytest.fixture
def jobs(config_dir: Path, cluster: ClusterProfile) -> dict[str, Job]:
    pytest.importorskip("hydra")
    text = import_oellm(config_dir, "study", ["++backend.megatron.num_layers=3"], environment={})
    sweep = load_sweep_text(text, "study.yaml")
    made = [job for point in sweep.points for job in sweep.jobs(point, cluster)]
    return {job.name: job for job in made}


@pytest.mark.slow
def test_jobs_of_the_native_spec(jobs: dict[str, Job]) -> None:
    assert list(jobs) == [
        f"study.{point}.{stage}"
        for point in ("exp_0.001", "exp_5e-05")
        for stage in ("stable", "decay", "decay.export")
    ]


@pytest.mark.slow
def test_values_of_the_native_spec(jobs: dict[str, Job]) -> None:
    stable, decay, export = list(jobs.values())[3:]
    assert (stable.slurm.nodes, stable.slurm.gpus_per_node, stable.slurm.time) == (4, 2, 21600)
    arguments = {name: stable.params[name] for name in stable.explicit_arguments}
    assert arguments["num_layers"] == 3
    assert arguments["norm_epsilon"] == 1e-5
    assert arguments["split"] == "99,1,0"
    assert arguments["data_path"] == ["1e-4"]
    assert arguments["wandb_save_dir"] == f"{stable.run_dir}/wandb"
    assert "unused" not in arguments
    assert (stable.params["lr"], stable.params["global_batch_size"]) == (5e-5, 64)
    assert stable.env == {"HF_HOME": "/hf", "EXTRA": "yes"}
    assert next(iter(jobs.values())).env == {"HF_HOME": "/hf"}
    assert (decay.iteration, decay.parent_dir, decay.params["train_iters"]) == (600, stable.run_dir, 800)
    assert (export.kind, export.iteration, export.params["tokenizer"]) == ("convert", 800, "gpt2")
    assert export.start is not None
    checkpoint, command = export.start.parts
    assert (checkpoint.path, checkpoint.iteration) == (decay.checkpoint_dir, 800)
    assert command.command == f"test -d {stable.run_dir}/{{{{braces}}}}"
    assert [event.do for event in stable.events] == ["cancel"]


@pytest.mark.slow
def test_what_the_file_alone_does_not_say_is_written(config_dir: Path, cluster: ClusterProfile) -> None:
    pytest.importorskip("hydra")
    overrides = [
        "++backend.megatron.load=/old/checkpoints",
        "++backend.megatron.ckpt_step=500",
        "++backend.megatron.finetune=true",
        "++backend.megatron.output_z_loss_coeff=1e-4",
        "++job.chain_repeat=2",
        "++slurm.sbatch.gres=gpu:a100:2",
        "++slurm.launcher_cmd=apptainer",
    ]
    text = import_oellm(config_dir, "study", overrides, environment={})
    assert "\ntrainer: megatron_lm\nrelease: core_v0.16.1\n" in text
    assert "# Note: slurm.launcher_cmd: the cluster profile says how processes start" in text
    assert "extra_arguments:\n  output_z_loss_coeff:\n    type: float\n" in text
    sweep = load_sweep_text(text, "study.yaml")
    stable, decay, _ = plan_sweep(sweep, cluster).jobs[:3]
    assert stable.source == CheckpointSource("/old/checkpoints", 500, "finetune")
    assert (decay.source, decay.iteration, decay.parent_dir) == (None, 600, stable.run_dir)
    assert stable.restart.chain == 2
    assert "--gres=gpu:a100:2" in stable.slurm.options
    assert "--output-z-loss-coeff" in stable.command


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("nope", [], "Hydra cannot compose it"),
        ("study", ["backend=nope"], "Could not find 'backend/nope'"),
        ("study", ["backend.megatron.lr=${backend.megatron.nope}"], "nope"),
    ],
)
def test_mistakes_are_refused(config_dir: Path, name: str, overrides: list[str], message: str) -> None:
    pytest.importorskip("hydra")
    with pytest.raises(SpecError) as error:
        import_oellm(config_dir, name, overrides)
    assert message in str(error.value)


DIFFERENT = r"""
job:
  name: "m_${backend.megatron.lr}_${stage}"
  base_output_dir: /old/${.name}
stage: ""
backend:
  class_name: MegatronBackend
  megatron: {num_layers: 2, lr: 1e-3, train_iters: 100, seed: 1, save: "${job.base_output_dir}/checkpoints"}
slurm:
  sbatch: {nodes: 1, gpus_per_node: 4, time: "01:00:00"}
sweep:
  type: product
  groups:
    - params: {backend.megatron.lr: [1e-3, 2e-3]}
    - type: list
      configs:
        - {stage: stable, backend.megatron.train_iters: 1000}
        - type: list
          defaults:
            backend.megatron.load: "\\${sibling.stable.job.base_output_dir}/checkpoints"
            backend.megatron.ckpt_step: 800
            job.start_condition:
              class_name: FileExistsCondition
              path: "\\${sibling.stable.job.base_output_dir}/checkpoints/iter_0000800"
          configs:
            - {stage: short, backend.megatron.train_iters: 900}
            - {stage: long, backend.megatron.train_iters: 1000, backend.megatron.seed: 2}
  filter: >-
    FILTER
"""


def native_of(filtered: str, change: tuple[str, str] = ("", "")) -> NativeSweep:
    text = DIFFERENT.replace("FILTER", rf"\${{oc.eval:'{filtered}'}}").replace(*change)
    sweep = load_sweep_text(text, "study.yaml")
    assert isinstance(sweep, OellmSweep)
    native = load_sweep_text(spec_text(native_spec(sweep)), "study.yaml")
    assert isinstance(native, NativeSweep)
    return native


def jobs_of(native: NativeSweep, cluster: ClusterProfile) -> list[dict[str, Job]]:
    return [{job.stage: job for job in native.jobs(point, cluster)} for point in native.points]


def test_points_with_different_stages(cluster: ClusterProfile) -> None:
    native = native_of(r'"\${stage}" != "long" or \${backend.megatron.lr} < 2e-3')
    one, two = jobs_of(native, cluster)
    assert (list(one), list(two)) == (["stable", "short", "long"], ["stable", "short"])
    assert native.spec.stages["long"].filter == "{{ 'long' in own_stages }}"
    assert native.spec.stages["stable"].filter is True
    for jobs in (one, two):
        assert jobs["short"].depends_on[0].iteration == 800
        assert [job.params["lr"] for job in jobs.values()] == [jobs["stable"].params["lr"]] * len(jobs)
    assert [one[stage].params["train_iters"] for stage in one] == [1000, 900, 1000]
    assert [one[stage].params["seed"] for stage in one] == [1, 1, 2]


def test_a_stage_whose_parent_a_filter_drops_starts_from_the_directory_of_the_file(
    cluster: ClusterProfile,
) -> None:
    native = native_of(r'"\${stage}" != "stable" or \${backend.megatron.lr} < 2e-3')
    one, two = jobs_of(native, cluster)
    assert (list(one), list(two)) == (["stable", "short", "long"], ["short_2", "long_2"])
    assert (one["short"].source, one["short"].depends_on[0].stage) == (None, "stable")
    checkpoints = "/old/m_0.002_stable/checkpoints"
    for job in two.values():
        assert job.source == CheckpointSource(checkpoints, 800)
        assert job.depends_on == ()
        assert (job.start and (job.start.kind, job.start.path)) == ("file", f"{checkpoints}/iter_0000800")


def test_a_stage_that_has_another_form_at_some_points(cluster: ClusterProfile) -> None:
    events = "job.log_events: [[], [{name: x, pattern: x, action: {class_name: CancelAction}}]]"
    native = native_of("True", ("params: {", f"params: {{{events}, "))
    stages = [list(jobs) for jobs in jobs_of(native, cluster)]
    assert stages == [["stable", "short", "long"]] * 2 + [["stable_2", "short_2", "long_2"]] * 2
    assert [len(jobs[next(iter(jobs))].events) for jobs in jobs_of(native, cluster)] == [0, 0, 1, 1]
    assert native.spec.stages["short_2"].parent == "stable_2"


def test_points_with_one_stage_each_of_different_names(cluster: ClusterProfile) -> None:
    start, _, _ = DIFFERENT.partition("    - params")
    sweep = load_sweep_text(
        f"{start}    - params: {{stage: [a, b], backend.megatron.seed: [3, 4]}}\n", "study.yaml"
    )
    assert isinstance(sweep, OellmSweep)
    native = load_sweep_text(spec_text(native_spec(sweep)), "study.yaml")
    assert isinstance(native, NativeSweep)
    jobs = [jobs["train"] for jobs in jobs_of(native, cluster)]
    assert [(job.point, job.params["seed"]) for job in jobs] == [
        ("m_0.001_a_0", 3),
        ("m_0.001_a_1", 4),
        ("m_0.001_b_2", 3),
        ("m_0.001_b_3", 4),
    ]


HOSTILE_FILES = {
    "a file outside": ("defaults: [/../../secret/private@stolen, _self_]\n", "below its folder"),
    "a link to a file outside": ("defaults: [/link@stolen, _self_]\n", "below its folder"),
    "a folder outside": ('hydra: {searchpath: ["file:///SECRET"]}\n', "hydra.searchpath"),
    "a package": ('hydra: {searchpath: ["pkg://evil_package"]}\n', "hydra.searchpath"),
    "a variable": ('defaults: [{backend: "${oc.env:API_TOKEN}"}, _self_]\n', "may not read the environment"),
}


@pytest.mark.parametrize(("text", "message"), HOSTILE_FILES.values(), ids=HOSTILE_FILES)
def test_hydra_reads_only_what_a_spec_may(
    text: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("hydra")
    secret, config = tmp_path / "secret", tmp_path / "a" / "config"
    for folder in (secret, config, tmp_path / "evil_package"):
        folder.mkdir(parents=True)
    (secret / "private.yaml").write_text("token: hunter2\n")
    (tmp_path / "evil_package" / "__init__.py").write_text("print('hunter2')\n")
    (config / "link.yaml").symlink_to(secret / "private.yaml")
    (config / "study.yaml").write_text(text.replace("/SECRET", str(secret)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("API_TOKEN", "hunter2")
    with pytest.raises(SpecError) as caught:
        import_oellm(config, "study")
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value) + capsys.readouterr().out
    assert "evil_package" not in sys.modules
