"""Configurations of oellm-autoexp as sweeps: stages, conditions, events, names, filters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from processor_limits import processor_limit

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.dialects.oellm import dialect as oellm
from airflow_megatron.spec.dialects.recognition import is_oellm
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.yaml_document import load_yaml_text
from airflow_megatron.spec.foreign.interpolation import configuration
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.model.jobs import Job

BASE = r"""
job:
  name: "exp_${backend.megatron.lr}_${backend.megatron.global_batch_size}_${stage}"
  base_output_dir: "out/${.name}"
stage: ""
backend:
  class_name: MegatronBackend
  megatron:
    num_layers: 2
    lr: 1e-3
    global_batch_size: 64
    seq_length: 128
    save_interval: 100
    train_iters: 1000
    save: ${job.base_output_dir}/checkpoints
    aux: {tokens: 0}
slurm:
  sbatch: {nodes: 2, gres: "gpu:4", time: "1-02:00:00", account: abc, hint: nomultithread}
  env: {MASTER_ADDR: "$(hostname)", NCCL_DEBUG: INFO, SPECIAL: "$HOME/x"}
"""


@pytest.fixture(scope="module")
def cluster() -> ClusterProfile:
    return load_cluster("local").model_copy(update={"run_root": "/runs"})


def sweep(text: str, base: str = BASE) -> oellm.OellmSweep:
    document = load_yaml_text(base + text, "study.yaml")
    assert is_oellm(document)
    return oellm.load(document)


def all_jobs(text: str, cluster: ClusterProfile) -> list[Job]:
    loaded = sweep(text)
    return [job for point in loaded.points for job in loaded.jobs(point, cluster)]


README_SWEEPS = {
    "grid": (
        9,
        r"""
sweep:
  base_values:
    backend.megatron.num_layers: 20
    backend.megatron.hidden_size: 896
    job.name: "experiment_\\${backend.megatron.lr}_\\${backend.megatron.global_batch_size}"
  grids:
    - backend.megatron.lr: [1e-4, 5e-4, 1e-3]
      backend.megatron.global_batch_size: [64, 128, 256]
""",
    ),
    "groups": (
        14,
        r"""
sweep:
  type: list
  defaults:
    job.name: "tuning_\\${backend.megatron.lr}_\\${backend.megatron.global_batch_size}_\\${stage}"
  groups:
    - type: product
      groups:
        - params: {backend.megatron.lr: [1e-4, 5e-4, 1e-3]}
        - params: {backend.megatron.global_batch_size: [64, 128]}
      defaults: {stage: small_batch, backend.megatron.train_iters: 5000}
    - type: product
      groups:
        - params: {backend.megatron.lr: [5e-4, 1e-3, 2e-3]}
        - params: {backend.megatron.global_batch_size: [256, 512]}
      defaults: {stage: large_batch, backend.megatron.train_iters: 5000}
    - configs:
        - {stage: production, backend.megatron.lr: 5e-4, backend.megatron.global_batch_size: 256}
        - {stage: production, backend.megatron.lr: 1e-3, backend.megatron.global_batch_size: 128}
""",
    ),
    "filter": (
        18,
        r"""
sweep:
  defaults:
    job.name: "experiment_\\${backend.megatron.lr}_\\${backend.megatron.global_batch_size}"
  type: 'product'
  groups:
    - backend.megatron.lr: [1e-4, 5e-4, 1e-3, 2e-3]
    - backend.megatron.global_batch_size: [64, 128, 256, 512, 1024]
  filter: "\\${oc.eval:'not (\\${backend.megatron.lr} > 1e-3 and \\${backend.megatron.global_batch_size} > 256)'}"
""",
    ),
    "nested": (
        19,
        r"""
sweep:
  type: list
  groups:
    - type: product
      groups:
        - params: {backend.megatron.lr: [1e-4, 5e-4, 1e-3, 2e-3]}
        - params: {backend.megatron.global_batch_size: [64, 128]}
      defaults: {stage: small_batch}
      filter: "\\${oc.eval:'\\${backend.megatron.lr} <= 1e-3'}"
    - type: product
      groups:
        - params: {backend.megatron.lr: [5e-4, 1e-3, 2e-3, 5e-3]}
        - params: {backend.megatron.global_batch_size: [256, 512, 1024]}
      defaults: {stage: large_batch}
    - configs:
        - {stage: production, backend.megatron.lr: 5e-4, backend.megatron.global_batch_size: 256}
""",
    ),
}


@pytest.mark.parametrize("name", README_SWEEPS)
def test_sweeps_of_the_readme(name: str, cluster: ClusterProfile) -> None:
    count, text = README_SWEEPS[name]
    jobs = all_jobs(text, cluster)
    assert len(jobs) == count
    assert len({job.name for job in jobs}) == len({job.run_dir for job in jobs}) == count


STAGES = r"""
sweep:
  type: list
  groups:
    - params:
        backend.megatron.lr: [2.5e-4, 5e-4, 1e-3]
        backend.megatron.global_batch_size: [64, 128, 256]
      defaults: {stage: stable, backend.megatron.train_iters: 18000}
    - params:
        backend.megatron.lr: [2.5e-4, 5e-4, 1e-3]
        backend.megatron.global_batch_size: [64, 128, 256]
      defaults:
        stage: decay6B
        backend.megatron.train_iters: 36000
        backend.megatron.load: "\\${sibling.stable.output_dir}/checkpoints"
      job.start_conditions:
        - class_name: FileExistsCondition
          path: "\\${sibling.stable.output_dir}/checkpoints/done.txt"
      job.cancel_conditions:
        - class_name: SlurmStateCondition
          job_name: "\\${sibling.stable.name}"
          state: FAILED
"""


def test_stages_of_the_readme(cluster: ClusterProfile) -> None:
    loaded = sweep(STAGES)
    assert [(item.name, item.parent, item.waits) for item in loaded.tree] == [
        ("stable", None, "parent"),
        ("decay6B", "stable", "parent"),
    ]
    assert len(loaded.points) == 9
    stable, decay = loaded.jobs(loaded.points[4], cluster)
    assert (stable.params["lr"], stable.params["global_batch_size"]) == (5e-4, 128)
    assert (decay.params["lr"], decay.params["global_batch_size"]) == (5e-4, 128)
    assert stable.run_dir == "/runs/study/exp_0.0005_128"
    assert decay.run_dir == "/runs/study/exp_0.0005_128/decay6B"
    assert (decay.parent_dir, decay.iteration) == (stable.run_dir, 18000)
    finished = Condition("finished", path=stable.stage_dir)
    assert decay.start is None
    assert [(item.stage, item.until) for item in decay.depends_on] == [("stable", "finished")]
    told = "no training writes checkpoints/done.txt; it is taken as: stable has finished"
    (line,) = {problem.line for problem in loaded.warnings() if told in problem.message}
    assert "class_name: FileExistsCondition" in loaded.document.text.splitlines()[line - 1]
    assert decay.cancel == Condition(
        "all", parts=(Condition("ended", path=stable.stage_dir), Condition("not", parts=(finished,)))
    )


COOLDOWNS = r"""
sweep:
  type: product
  groups:
    - params: {backend.megatron.lr: [1e-3, 2e-3]}
    - type: list
      configs:
        - stage: stable
        - type: list
          defaults:
            backend.megatron.aux.start: "\\${oc.eval:'int(\\${backend.megatron.aux.tokens}*0.8/128/64)//100*100'}"
            backend.megatron.train_iters: "\\${oc.cdivi:\\${backend.megatron.aux.tokens},\\${oc.muli:128,64}}"
            backend.megatron.load: "\\${sibling.stable.job.base_output_dir}/checkpoints"
            job.start_condition:
              class_name: FileExistsCondition
              path: "\\${backend.megatron.load}/\\${oc.pad_iter:\\${backend.megatron.aux.start}}/metadata.json"
          configs:
            - {stage: decay4M, backend.megatron.aux.tokens: 4_000_000}
            - {stage: decay8M, backend.megatron.aux.tokens: 8_000_000}
        - stage: export
          backend.class_name: MegatronBridgeBackend
          backend.tokenizer: gpt2
          aux.last: "\\${sibling.decay8M.backend.megatron.train_iters}"
          backend.megatron_path: "\\${sibling.decay8M.job.base_output_dir}/\\${oc.pad_iter:\\${aux.last}}"
          job.start_condition:
            class_name: FileExistsCondition
            path: "\\${sibling.decay8M.job.base_output_dir}/latest_checkpointed_iteration.txt"
        - stage: score
          backend.class_name: OELLMEvalBackend
          backend.tasks: [a, b]
          backend.limit: 4
          job.start_condition:
            class_name: FileExistsCondition
            path: "\\${sibling.decay8M.job.base_output_dir}/hf/iter_0000977/model.safetensors"
"""


def test_cooldowns_wait_for_the_checkpoint_that_their_path_names(cluster: ClusterProfile) -> None:
    loaded = sweep(COOLDOWNS)
    assert [(item.name, item.kind, item.parent, item.branch, item.waits) for item in loaded.tree] == [
        ("stable", "train", None, "stable", "parent"),
        ("decay4M", "train", "stable", "decay4M", "checkpoint"),
        ("decay8M", "train", "stable", "decay8M", "checkpoint"),
        ("export", "convert", "decay8M", "decay8M", "checkpoint"),
        ("score", "evaluate", "export", "decay8M", "parent"),
    ]
    assert [point.name for point in loaded.points] == ["exp_0.001_64", "exp_0.002_64"]
    _, _, decay, export, score = loaded.jobs(loaded.points[1], cluster)
    assert decay.params["train_iters"] == 977
    assert (decay.iteration, decay.depends_on[0].until) == (700, "checkpoint")
    assert (export.iteration, export.run_dir, export.params["tokenizer"]) == (977, decay.run_dir, "gpt2")
    assert (score.iteration, score.params["tasks"], score.params["limit"]) == (977, ["a", "b"], 4)
    assert {job.swept for job in (decay, export, score)} == {("lr",)}


LADDERS = r"""
job: {name: "m_${backend.megatron.hidden_size}_${stage}"}
stage: ""
backend: {class_name: MegatronBackend, megatron: {num_layers: 2, train_iters: 9, save_interval: 1}}
sweep:
  type: list
  groups:
    - type: list
      configs:
"""
LADDER = r"""
        - defaults: {backend.megatron.hidden_size: SIZE}
          configs:
            - {stage: stable, backend.megatron.seed: 1}
            - configs:
                - {defaults: {stage: short}, configs: [{backend.megatron.seed: 2, LOAD}]}
                - {defaults: {stage: long}, configs: [{backend.megatron.seed: 3, LOAD}]}
""".replace("LOAD", r'backend.megatron.load: "\\${sibling.stable.output_dir}/checkpoints"')


def test_each_ladder_of_a_list_has_its_own_siblings(cluster: ClusterProfile) -> None:
    loaded = sweep(LADDERS + LADDER.replace("SIZE", "64") + LADDER.replace("SIZE", "128"), "")
    assert [point.name for point in loaded.points] == ["m_64", "m_128"]
    for point, size in zip(loaded.points, (64, 128), strict=True):
        jobs = loaded.jobs(point, cluster)
        assert [(job.stage, job.params["hidden_size"]) for job in jobs] == [
            (stage, size) for stage in ("stable", "short", "long")
        ]
        assert [job.depends_on[0].stage for job in jobs[1:]] == ["stable", "stable"]


def test_a_sibling_agrees_on_the_swept_values_that_both_have(cluster: ClusterProfile) -> None:
    text = r"""
job: {name: "m_${backend.megatron.lr}_${stage}"}
backend: {class_name: MegatronBackend, megatron: {num_layers: 2, train_iters: 9, lr: 1}}
sweep:
  type: list
  groups:
    - {configs: [{stage: stable, backend.megatron.lr: 3, seed: 1}, {stage: stable, backend.megatron.lr: 2}]}
    - configs:
        - {stage: decay, backend.megatron.lr: 3, seed: 1, backend.megatron.load: "\\${sibling.stable.output_dir}"}
"""
    loaded = sweep(text, "")
    assert [len(loaded.jobs(point, cluster)) for point in loaded.points] == [2, 1]


def test_a_finished_job_is_not_looked_for_in_its_own_log_before_it_starts(cluster: ClusterProfile) -> None:
    unfinished = r"""
      - class_name: NotCondition
        condition: {class_name: LogPatternCondition, log_path: "${job.log_path_current}", pattern: done}"""
    for more, kind in (("", None), ("\n      - {class_name: FileExistsCondition, path: /x}", "file")):
        condition = f"  start_condition:\n    class_name: AndCondition\n    conditions:{unfinished}{more}"
        text = f"job:\n  name: run\n{condition}\nbackend: {{class_name: BashBackend, command: echo x}}\n"
        loaded = sweep(text, "")
        start = loaded.jobs(loaded.points[0], cluster)[0].start
        assert (start.kind if start else None) == kind


LOGS = r"""
job: {name: "run"}
backend: {class_name: BashBackend, command: "echo x"}
sweep:
  type: list
  groups:
    - configs:
        - stage: train
          job.cancel_condition: {class_name: LogPatternCondition, pattern: nan, log_path: "\\${job.log_path}"}
        - stage: convert
          job.start_condition:
            class_name: LogPatternCondition
            log_path: "\\${sibling.train.job.log_path_current}"
            pattern: saved 20
          job.cancel_condition:
            class_name: FileContentCondition
            path: "\\${sibling.train.job.log_path}"
            pattern: exploded
stage: ""
"""


def test_conditions_on_a_log_mean_the_log_of_every_attempt(cluster: ClusterProfile) -> None:
    loaded = sweep(LOGS, base="")
    train, convert = (job for point in loaded.points for job in loaded.jobs(point, cluster))
    assert train.cancel == Condition("log", path=train.log_pattern, pattern="nan", producer=train.stage_dir)
    assert convert.depends_on[0].until == "log"
    assert convert.depends_on[0].pattern == "saved 20"
    assert convert.cancel == Condition(
        "log", path=train.log_pattern, pattern="exploded", producer=train.stage_dir
    )
    assert "{attempt}" in train.log_pattern


def test_slurm_and_environment(cluster: ClusterProfile) -> None:
    loaded = sweep("sweep: {}\n")
    (job,) = loaded.jobs(loaded.points[0], cluster)
    assert (job.slurm.nodes, job.slurm.gpus_per_node, job.slurm.time) == (2, 4, 26 * 3600)
    assert (job.slurm.account, job.slurm.options[-1:]) == ("abc", ["--hint=nomultithread"])
    assert job.env == {"NCCL_DEBUG": "INFO"}
    assert "save" not in job.params
    assert any("SPECIAL" in problem.message for problem in loaded.warnings())


EVENTS = r"""
sweep: {}
"""
EVENTS_JOB = r"""
  log_events:
    - {name: done, pattern: "[after training is done]", action: {class_name: FinishAction, reason: ok}}
    - name: node
      pattern: 'failed on node ([^:\s]+): Communication (\w+)'
      pattern_type: regex
      extract_groups: {node: 1}
      match_once: false
      action: {class_name: AppendToFileAction, path: "/x/bad nodes", content: "{node}"}
    - name: idle
      pattern_type: inactivity
      inactivity_polls: 5
      inactivity_timeout_s: 200
      action: {class_name: CancelAction}
  state_events:
    - name: failed
      transition: [RUNNING, FAILED]
      condition: {class_name: MaxAttemptsCondition, max_attempts: 3}
      action: {class_name: RestartAction}
  finish_condition:
    class_name: AndCondition
    conditions:
      - {class_name: AlwaysTrueCondition}
      - class_name: NotCondition
        condition: {class_name: FileContentCondition, path: /a, pattern: "x+", mode: contains}
      - {class_name: GlobExistsCondition, pattern: "/b/*.pt", min_matches: 2}
      - {class_name: CommandCondition, command: [test, -e, "a b"]}
      - {class_name: CommandCondition, command: [check, --strict, true, 3]}
"""


def test_events_and_conditions(cluster: ClusterProfile) -> None:
    loaded = sweep(EVENTS, BASE.replace('"out/${.name}"\n', '"out/${.name}"' + EVENTS_JOB))
    (job,) = loaded.jobs(loaded.points[0], cluster)
    done, node, idle, failed = job.events
    assert (done.do, done.limit) == ("finish", 1)
    assert re.search(done.pattern, "x [after training is done] y")
    match = re.search(node.pattern, "failed on node n7: Communication connection")
    assert match is not None
    assert match["node"] == "n7"
    assert (node.do, node.limit) == ("run", None)
    assert "'/x/bad nodes'" in node.command
    assert '"${am_match_node:-}"' in node.command
    assert (idle.on, idle.after, idle.do) == ("idle", 300.0, "cancel")
    assert (failed.pattern, failed.do, failed.limit, failed.condition) == ("^FAILED", "restart", 1, None)
    assert job.restart.retryable == 2
    assert job.finish is not None
    assert [part.kind for part in job.finish.parts] == ["not", "command", "command", "command"]
    assert job.finish.parts[0].parts[0] == Condition("log", path="/a", pattern=r"x\+")
    assert "-ge 2" in job.finish.parts[1].command
    assert job.finish.parts[2].command == "test -e 'a b'"
    assert job.finish.parts[3].command == "check --strict True 3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sweep: {type: list, groups: [{configs: [{stage: a, job.x: '${sibling.b.job.name}'}]}]}", "b"),
        (
            r"""
sweep:
  type: list
  groups:
    - configs:
        - {stage: a, job.x: "\\${sibling.b.job.name}"}
        - {stage: b, job.x: "\\${sibling.a.job.name}"}
""",
            "stages wait for each other: a → b → a",
        ),
        (
            r"""
sweep:
  type: list
  groups:
    - configs: [{stage: stable}, {stage: decay, job.x: "\\${sibling.stabel.job.name}"}]
""",
            "did you mean 'stable'",
        ),
        ("sweep: {type: list, groups: [{configs: [{backend: titan}]}]}", "airflow-megatron import oellm"),
        ("sweep: {filter: false}", "the sweep has no points"),
        ("sweep: {filter: '\\${oc.eval:1+1}'}", "filter gives 2, not true or false"),
        (
            "sweep: {base_values: {job.start_condition: {class_name: FileExist}}}",
            "there is no condition 'FileExist'",
        ),
        ("sweep: {base_values: {backend.class_name: TitanBackend}}", "torchtitan"),
        ("sweep: {base_values: {slurm.sbatch.nodes: many}}", "not a whole number"),
        ('sweep: {base_values: {backend.megatron.lr: "\\\\${oc.env:NOT_SET_ANYWHERE}"}}', "study.yaml:"),
        ("sweep: {}\ndefaults: [base]\n", "Hydra defaults list"),
    ],
)
def test_mistakes_are_refused(text: str, message: str, cluster: ClusterProfile) -> None:
    with pytest.raises(SpecError) as error:
        all_jobs(text, cluster)
    assert message in str(error.value)
    assert re.match(r"study\.yaml:\d+", str(error.value))


def test_names_that_repeat_get_the_index() -> None:
    loaded = sweep("sweep: {type: list, groups: [{params: {backend.megatron.seq_length: [1, 2, 3]}}]}")
    assert [point.name for point in loaded.points] == ["exp_0.001_64_0", "exp_0.001_64_1", "exp_0.001_64_2"]


@pytest.mark.parametrize(
    "data",
    [
        {"stages": {}, "sweep": {}, "slurm": {}, "point": "x"},
        {"sweep": [], "job": {}},
        {"lr": [1, 2], "template": "x"},
        [],
    ],
)
def test_other_documents_are_not_recognised(data: Any) -> None:
    document = load_yaml_text("a: 1", "x.yaml")
    document.data = data
    assert not is_oellm(document)


@pytest.mark.slow
def test_ten_thousand_points_are_quick(cluster: ClusterProfile) -> None:
    numbers = ", ".join(str(number) for number in range(1, 101))
    groups = f"[{{backend.megatron.lr: [{numbers}]}}, {{backend.megatron.global_batch_size: [{numbers}]}}]"
    with processor_limit(5):
        loaded = sweep(f"sweep: {{type: product, groups: {groups}}}")
        assert len(loaded.points) == 10_000


def test_no_hint_is_looked_for_where_a_default_is_used(
    cluster: ClusterProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hints compare names, and the comparisons of one spec are limited."""
    compared: list[str] = []
    monkeypatch.setattr(configuration, "did_you_mean", lambda name, *_: compared.append(name) or "")
    assert all_jobs("sweep: {grids: [{backend.megatron.lr: [1, 2]}]}", cluster)
    assert compared == []


def test_folder_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sweep(STAGES).points
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "writes"),
    [("/data/exp_0.001_64_stable/checkpoints", True), ("/data/exp_0.01_64_stable/checkpoints", False)],
)
def test_a_plain_path_to_where_upstreams_job_of_another_point_writes(path: str, writes: bool) -> None:
    """Here that job writes to a run directory of its own, so that the other one would wait without end."""
    loaded = sweep(
        f"""
sweep:
  configs:
    - {{stage: stable}}
    - {{stage: later, backend.megatron.lr: 1e-4, backend.megatron.load: {path}}}
""",
        BASE.replace('"out/', '"/data/'),
    )
    assert len(loaded.points) == 2
    found = [str(problem) for problem in loaded.warnings() if "of this file writes there" in str(problem)]
    assert len(found) == writes
    for text in found:
        assert re.match(
            rf"study.yaml:\d+:\d+: backend.megatron.load: {path}: in oellm-autoexp, point 0 ", text
        )
        assert text.endswith("write ${sibling.stable.output_dir}")


DECAYS = """\
job: {name: "s_${backend.megatron.lr}_${stage}"}
stage: ""
aux: {start: 0}
backend:
  class_name: MegatronBackend
  megatron:
    num_layers: 2
    hidden_size: 64
    num_attention_heads: 2
    seq_length: 64
    max_position_embeddings: 64
    micro_batch_size: 2
    global_batch_size: 8
    bf16: true
    lr: 1e-3
    train_iters: 100
    save_interval: 20
    lr_warmup_iters: 35
    override_opt_param_scheduler: true
    tokenizer_type: HuggingFaceTokenizer
    tokenizer_model: /tok
    data_path: [/data/merged]
slurm: {sbatch: {nodes: 1, gpus_per_node: 1, time: "01:00:00"}}
sweep:
  type: product
  groups:
    - params:
        backend.megatron.lr: [1e-3, 2e-3]
    - type: list
      configs:
        - stage: stable
          backend.megatron.train_iters: 100
        - type: list
          defaults:
            backend.megatron.load: "\\\\${sibling.stable.job.base_output_dir}/checkpoints"
            backend.megatron.ckpt_step: "\\\\${aux.start}"
          configs:
            - {stage: decay2, aux.start: 20, backend.megatron.train_iters: 50}
            - {stage: decay4, aux.start: 40, backend.megatron.train_iters: 80}
            - {stage: decay6, aux.start: 60, backend.megatron.train_iters: 100}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "written", "message"),
    [
        ("train_iters: 80", "train_iters: 80.5", "must be an integer, not 80.5"),
        ("train_iters: 80", "train_iters: 30", "starts at iteration 40 and ends at train_iters 30"),
        (
            "stable\n          backend.megatron.train_iters: 100",
            "stable\n          slurm.sbatch.nodes: 0",
            "nodes",
        ),
    ],
)
def test_an_error_stands_at_the_value_of_its_stage(
    line: str, written: str, message: str, cluster: ClusterProfile
) -> None:
    text = DECAYS.replace(line, written)
    with pytest.raises(SpecError) as refused:
        check_sweep(load_sweep_text(text, "study.yaml"), cluster)
    (error,) = refused.value.problems
    assert message in error.message
    assert written.splitlines()[-1].strip() in text.splitlines()[error.line - 1]


def test_messages_name_the_keys_of_the_file() -> None:
    loaded = load_sweep_text(DECAYS, "study.yaml")
    text = "--train-iters 30 and train_iters 30, not --no-such-flag of x/--train-iters"
    assert loaded.in_its_keys(text) == (
        "backend.megatron.train_iters 30 and train_iters 30, not --no-such-flag of x/--train-iters"
    )
