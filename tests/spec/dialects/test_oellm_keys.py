"""Every key of an oellm-autoexp file is used, listed in a warning with the reason, or refused with a similar name."""

from __future__ import annotations

import pytest
from oellm_harness import text_of, warnings_of

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep, plan_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.spec.spec_files import load_sweep_text


@pytest.fixture(scope="module")
def cluster() -> ClusterProfile:
    return load_cluster("example-slurm").model_copy(update={"run_root": "/runs"})


def test_a_plain_file_has_no_warnings() -> None:
    assert warnings_of() == []


PASSED_OVER = {
    "an image whose place depends on where one stands": (
        {"top": "container: {image: ./megatron.sif, runtime: apptainer, bind: [/p]}"},
        ("container (./megatron.sif)", "the path of the image is not absolute"),
    ),
    "an image of another machine": (
        {"top": "container: {image: '${oc.env:NOT_SET_ANYWHERE}/m.sif'}"},
        ("container (${oc.env:NOT_SET_ANYWHERE}/m.sif)", "a variable of the image's path is not known"),
    ),
    "a runtime that no profile has": (
        {"top": "container: {image: /c/m.sif, runtime: podman}"},
        ("container.runtime: podman", "known here: apptainer, singularity"),
    ),
    "an environment instead of a container": (
        {"top": "container: {class_name: Venv, venv_path: /v}"},
        ("container (Venv)", "the cluster profile says which Python runs"),
    ),
    "how a container is started": (
        {"top": "container: {image: /c/m.sif, pwd: /x, python: /usr/bin/python, env: {A: b}}"},
        ("container.pwd, container.python, container.env", "slurm.env and backend.env"),
    ),
    "launcher": (
        {"slurm": 'launcher_cmd: "apptainer exec x"'},
        ("slurm.launcher_cmd", "the cluster profile says how processes start"),
    ),
    "arrays of one job": ({"sbatch": 'array: "0-3"'}, ("slurm.sbatch.array", "run this same command")),
    "conversion to what nothing reads": (
        {"top": "postprocess: {to_torch: {class_name: MegatronDistToTorchStep, cmd: x}}"},
        ("postprocess.to_torch", "nothing here needs checkpoints in the format torch"),
    ),
    "evaluation of what nothing converts": (
        {"top": "postprocess: {eval: {class_name: OELLMEvalStep, model_path: hf}}"},
        ("postprocess.eval", "no step before it converts"),
    ),
    "a key like a known one": (
        {"backend": "clas_name: MegatronBridgeBackend"},
        ("backend.clas_name: nothing here reads it", "did you mean 'class_name'"),
    ),
    "directories": (
        {"job": 'base_output_dir: "out/x"', "megatron": "save: out/x"},
        ("job.base_output_dir, backend.megatron.save", "below <run_root>/<sweep>/<point>"),
    ),
    "output": ({"sbatch": "error: x.err"}, ("slurm.sbatch.error", "below <run_root>/<sweep>/<point>")),
    "dependency": ({"sbatch": 'dependency: "afterok:1"'}, ("slurm.sbatch.dependency", "submits")),
    "a key of one's own that nothing reads": ({"top": "mixture: web"}, ("mixture", "nothing here reads it")),
    "a tracked step without a directory": (
        {"megatron": "ckpt_step: 500"},
        ("backend.megatron.ckpt_step: 500", "load names nothing"),
    ),
    "a tracked step that is no checkpoint": (
        {"megatron": "load: /old\n    ckpt_step: 0"},
        ("backend.megatron.ckpt_step: 0", "the newest checkpoint of /old is loaded"),
    ),
    "conversion while training": (
        {"megatron": "ckpt_convert_format: torch"},
        ("backend.megatron.ckpt_convert_format", "add a stage that converts"),
    ),
    "a condition's latch": (
        {
            "job": "cancel_condition: "
            "{class_name: LogPatternCondition, pattern: nan, tail_lines: 5, persistent_fail: true}"
        },
        ("LogPatternCondition: tail_lines, persistent_fail", "nothing here reads it"),
    ),
    "an action's field": (
        {
            "job": "log_events: [{name: e, pattern: x, action: {class_name: RestartAction, pre_command: y}}]",
        },
        ("event e: RestartAction: pre_command", "nothing here reads it"),
    ),
    "another job": (
        {"job": "cancel_condition: {class_name: SlurmStateCondition, job_name: other, state: FAILED}"},
        ("other is not a job of this point", "read with squeue"),
    ),
    "another signal": ({"sbatch": "signal: USR1@60"}, ("slurm.sbatch.signal: USR1@60", "TERM")),
    "a swept key that nothing reads": (
        {"swept": "megatron.lr: [1, 2]"},
        ("nothing reads the swept key megatron.lr", "did you mean backend.megatron.lr"),
    ),
    "a swept variable that nothing reads": (
        {"swept": "aux.repeat: [1, 2]"},
        ("nothing reads the swept key aux.repeat", "the same job twice"),
    ),
}


@pytest.mark.parametrize("case", PASSED_OVER)
def test_what_has_no_effect_is_named_with_the_reason(case: str) -> None:
    lines, words = PASSED_OVER[case]
    assert any(all(word in message for word in words) for message in warnings_of(**lines)), warnings_of(
        **lines
    )


def test_a_variable_of_one_stage_that_nothing_reads_is_named() -> None:
    text = text_of(top="aux: {start: 1}").replace(
        "    lr: 1e-3\n", "    lr: ${oc.eval:'1e-3 * ${aux.start}'}\n"
    )
    text = text[: text.index("sweep:")] + (
        "stage: ''\nsweep:\n  type: list\n  configs:\n"
        "    - {stage: a, aux.start: 1}\n    - {stage: b, aux.start: 2, aux.strt: 2}\n"
    )
    (problem,) = load_sweep_text(text, "study.yaml").warnings()
    assert "nothing reads the swept key aux.strt" in problem.message
    assert problem.message.endswith("did you mean aux.start?")
    assert "aux.strt" in text.splitlines()[problem.line - 1]


def test_a_swept_variable_that_is_read_is_not_warned_of() -> None:
    lines = {"swept": "aux.depth: [2, 3]", "megatron": "hidden_size: ${oc.muli:${aux.depth},64}"}
    assert warnings_of(**lines) == []
    assert warnings_of(top="mixture: web", megatron="hidden_size: ${mixture}") == []


MISSPELT = {
    "a step": (
        {"top": "postprocess: {convert: {class_name: MegatronToHF}}"},
        None,
        "'MegatronToHFStep'",
    ),
    "a field of a step": (
        {"top": "postprocess: {convert: {class_name: MegatronToHFStep, hf_ouput_dir: x}}"},
        None,
        "'hf_output_dir'",
    ),
    "a key of a container": ({"top": "container: {imgae: /c/m.sif}"}, None, "'image'"),
    "job": ({"job": "start_conditon: {class_name: FileExistsCondition, path: x}"}, 3, "'start_condition'"),
    "slurm": ({"slurm": "lancher_cmd: x"}, None, "'launcher_cmd'"),
    "sbatch": ({"sbatch": "nodess: 4"}, None, "'nodes'"),
    "a section": ({"top": "slrum: {sbatch: {nodes: 3}}"}, None, "'slurm'"),
    "a swept job key": (
        {"swept": "job.start_conditon: [{class_name: AlwaysTrueCondition}]"},
        None,
        "'start_condition'",
    ),
    "a state": (
        {"job": "cancel_condition: {class_name: SlurmStateCondition, job_name: x, state: FAILD}"},
        None,
        "'FAILED'",
    ),
    "a state of a transition": (
        {
            "job": "state_events: [{name: e, transition: [RUNING, FAILED], action: {class_name: RestartAction}}]"
        },
        None,
        "'RUNNING'",
    ),
    "a field of a condition": (
        {"job": "start_condition: {class_name: FileExistsCondition, pth: x}"},
        3,
        "'path'",
    ),
    "a field of an event": (
        {"job": "log_events:\n    - {name: e, patern: x, action: {class_name: RestartAction}}"},
        4,
        "'pattern'",
    ),
    "a kind of pattern": (
        {
            "job": "log_events: [{name: e, pattern: x, pattern_type: regexp, action: {class_name: RestartAction}}]"
        },
        None,
        "'regex'",
    ),
    "an action": (
        {"job": "log_events: [{name: e, pattern: x, action: {class_name: RestrtAction}}]"},
        None,
        "'RestartAction'",
    ),
}


@pytest.mark.parametrize("case", MISSPELT)
def test_misspelt_keys_are_refused_with_the_name_that_was_meant(case: str) -> None:
    lines, line, near = MISSPELT[case]
    with pytest.raises(SpecError) as error:
        load_sweep_text(text_of(**lines), "study.yaml")
    assert f"did you mean {near}" in str(error.value)
    if line:
        assert f"study.yaml:{line}:" in str(error.value)


def test_a_backend_that_does_not_exist_gets_a_near_name() -> None:
    text = text_of().replace("MegatronBackend", "MegatronBakend")
    with pytest.raises(SpecError, match="did you mean 'MegatronBackend'"):
        load_sweep_text(text, "study.yaml")


def test_a_finding_on_resources_stands_at_the_line_that_gives_them(cluster: ClusterProfile) -> None:
    text = text_of(sbatch="partition: nowhere")
    with pytest.raises(SpecError, match="has no partition 'nowhere'") as error:
        check_sweep(load_sweep_text(text, "study.yaml"), cluster)
    assert text.splitlines()[error.value.problems[0].line - 1].strip() == "partition: nowhere"


def directives(cluster: ClusterProfile, **lines: str) -> dict[str, str]:
    sweep = load_sweep_text(text_of(**lines), "study.yaml")
    job = sweep.jobs(sweep.points[0], cluster)[0]
    written = [line for line in job_script(job, cluster, 1).splitlines() if line.startswith("#SBATCH --")]
    return dict([*line.removeprefix("#SBATCH --").split("=", 1), ""][:2] for line in written)


def test_a_request_for_gpus_stays_as_it_is_written(cluster: ClusterProfile) -> None:
    given = directives(cluster, sbatch="gres: gpu:a100:4")
    assert given["gres"] == "gpu:a100:4"
    plain = cluster.model_copy(update={"gpu_option": "gpus-per-node"})
    given = directives(plain, sbatch="gres: gpu:h100:4")
    assert given["gres"] == "gpu:h100:4"
    assert "gpus-per-node" not in given


def without_gpus_per_node(sbatch: str) -> str:
    return text_of(sbatch=sbatch).replace("    gpus_per_node: 4\n", "")


@pytest.mark.parametrize("gpus", ["4", "a100:4"])
def test_gpus_of_the_whole_job_give_the_processes_of_a_node(gpus: str, cluster: ClusterProfile) -> None:
    sweep = load_sweep_text(without_gpus_per_node(f"gpus: {gpus}"), "study.yaml")
    job = sweep.jobs(sweep.points[0], cluster)[0]
    assert (job.slurm.gpus_per_node, job.slurm.node_count) == (2, 2)
    assert f"--gpus={gpus}" in job.slurm.options


@pytest.mark.parametrize(
    ("line", "gres"),
    [
        ("gpus_per_node: a100:4", "gpu:a100:4"),
        ("gpus_per_task: 1\n    ntasks_per_node: 4", None),
        ("gpus_per_task: a100:1\n    ntasks: 8", "gpu:a100:4"),
        ("gpus_per_task: 4", None),
        ("gpus_per_task: 1\n    gpus_per_node: 4\n    ntasks_per_node: 4", None),
    ],
)
def test_gpus_of_a_type_or_of_a_task_are_those_of_a_node(
    line: str, gres: str | None, cluster: ClusterProfile
) -> None:
    sweep = load_sweep_text(without_gpus_per_node(line), "study.yaml")
    job = sweep.jobs(sweep.points[0], cluster)[0]
    assert job.slurm.gpus_per_node == 4
    wanted = [] if gres is None else [f"--gres={gres}"]
    assert [option for option in job.slurm.options or () if "gpu" in option] == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (text_of(sbatch="gpus_per_task: 1"), "gpus_per_task and gpus_per_node give different numbers"),
        (without_gpus_per_node("gpus_per_task: some"), "gpus_per_task is 'some' (write gpus_per_task: 4)"),
        (text_of(sbatch="gres: gpu:a100:2"), "(gpus_per_node: 4, gres: gpu:a100:2) (keep one of them)"),
        (without_gpus_per_node("gpus: 3"), "slurm.sbatch.gpus: 3 GPUs for 2 nodes (write gpus_per_node)"),
    ],
)
def test_gpus_that_contradict_each_other_are_refused(
    text: str, message: str, cluster: ClusterProfile
) -> None:
    with pytest.raises(SpecError) as error:
        check_sweep(load_sweep_text(text, "study.yaml"), cluster)
    assert message in str(error.value)


def test_a_node_may_have_more_gpus_than_the_job_has_processes(cluster: ClusterProfile) -> None:
    """sbatch takes ``gres`` of the two, and the launcher starts ``gpus_per_node`` processes."""
    sweep = load_sweep_text(text_of(sbatch="gres: gpu:8"), "study.yaml")
    job = sweep.jobs(sweep.points[0], cluster)[0]
    assert job.slurm.gpus_per_node == 4
    assert directives(cluster, sbatch="gres: gpu:8")["gres"] == "gpu:8"
    (warning,) = [each for each in warnings_of(sbatch="gres: gpu:8") if "gres" in each]
    assert "gpus_per_node: 4, gres: gpu:8: a node has 8 GPUs, and the job uses 4 of them" in warning


@pytest.mark.parametrize("written", ["true", '""'])
def test_exclusive_nodes_give_all_their_gpus(cluster: ClusterProfile, written: str) -> None:
    lines = {"sbatch": f"gres: gpu:1\n    exclusive: {written}"}
    given = directives(cluster, **lines)
    assert ("exclusive" in given, given["gres"]) == (True, "gpu:a100:4")
    (warning,) = [each for each in warnings_of(**lines) if "gres" in each]
    assert warning.startswith("slurm.sbatch.gres: gpu:1: exclusive allocates all GPUs of the nodes")
    assert directives(cluster, sbatch="gres: gpu:8\n    exclusive: true")["gres"] == "gpu:8"


def test_cores_of_a_nodes_task_are_those_that_were_asked_for(cluster: ClusterProfile) -> None:
    given = directives(cluster)
    assert (given["ntasks-per-node"], given["cpus-per-task"]) == ("1", "12")
    odd = warnings_of(sbatch="ntasks_per_node: 3")
    assert any("slurm.sbatch.ntasks_per_node: 3" in message for message in odd)


def test_options_of_sbatch_are_passed_on(cluster: ClusterProfile) -> None:
    given = directives(
        cluster,
        sbatch="exclusive: true\n    container_image: x.sqsh\n    gpu_bind: none\n    mem_per_cpu: 4G\n    hint: null",
        slurm='sbatch_extra_directives: ["#SBATCH --licenses=x", "--begin=now+1hour"]',
    )
    assert {
        key: given.get(key)
        for key in ("exclusive", "container-image", "gpu-bind", "mem-per-cpu", "licenses", "begin")
    } == {
        "exclusive": "",
        "container-image": "x.sqsh",
        "gpu-bind": "none",
        "mem-per-cpu": "4G",
        "licenses": "x",
        "begin": "now+1hour",
    }
    assert "hint" not in given


@pytest.mark.parametrize("value", ["5", "x", "[1]", "{a: b}"])
def test_further_options_are_lines(value: str) -> None:
    with pytest.raises(SpecError, match=r"sbatch_extra_directives is .*, not a list of lines"):
        load_sweep_text(text_of(slurm=f"sbatch_extra_directives: {value}"), "study.yaml")


@pytest.mark.parametrize("time", ["0", "'0:00'", "'00:00:00'", "0-0"])
def test_no_limit_is_no_walltime(time: str) -> None:
    text = text_of().replace('time: "01:00:00"', f"time: {time}")
    with pytest.raises(SpecError, match=r"slurm.sbatch.time is .*: to Slurm, 0 is no limit"):
        load_sweep_text(text, "study.yaml")


def test_the_signal_before_the_walltime(cluster: ClusterProfile) -> None:
    assert directives(cluster, sbatch="signal: B:TERM@300")["signal"].endswith("TERM@300")


def test_silence_restarts_a_job() -> None:
    sweep = load_sweep_text(text_of(job="inactivity_threshold_seconds: 1800"), "study.yaml")
    (event,) = sweep.jobs(sweep.points[0], load_cluster("local"))[0].events
    assert (event.on, event.do, event.after) == ("idle", "restart", 1800)


def test_repeats_of_a_chain_wait_in_the_queue() -> None:
    sweep = load_sweep_text(text_of(job="chain_repeat: 3"), "study.yaml")
    assert sweep.jobs(sweep.points[0], load_cluster("local"))[0].restart.chain == 3
    with pytest.raises(SpecError, match="chain_repeat"):
        load_sweep_text(text_of(job="chain_repeat: many"), "study.yaml")


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("param: {backend.megatron.seed: [1, 2]}", "'params'"),
        ("confgs: [{stage: a}, {stage: b}]", "'configs'"),
        ("params: {backend.megatrn.seed: [1, 2]}", "'megatron'"),
    ],
)
def test_misspelt_words_of_a_sweep_have_their_place(line: str, near: str) -> None:
    text = text_of().replace("    - params:\n", f"    - {line}\n    - params:\n")
    number = text[: text.index(line)].count("\n") + 1
    with pytest.raises(SpecError, match=rf"study\.yaml:{number}:.*did you mean {near}"):
        load_sweep_text(text, "study.yaml")


def test_an_unescaped_sibling_is_named_with_a_hint() -> None:
    text = text_of(swept='backend.megatron.load: ["${sibling.stable.job.base_output_dir}/checkpoints"]')
    with pytest.raises(SpecError, match=r"escape it: \\\\\$\{sibling.stable.job.base_output_dir\}"):
        load_sweep_text(text, "study.yaml")


def test_arguments_of_their_fork_are_declared(cluster: ClusterProfile) -> None:
    text = text_of(megatron="output_z_loss_coeff: 1e-4")
    sweep = load_sweep_text(text, "study.yaml")
    job = plan_sweep(sweep, cluster).jobs[0]
    assert job.command[job.command.index("--output-z-loss-coeff") + 1] == "0.0001"
    assert any("only OpenEuroLLM's fork" in problem.message for problem in sweep.warnings())


def test_a_training_that_names_no_directory_and_no_interval_saves_nothing(cluster: ClusterProfile) -> None:
    text = text_of().replace("    save_interval: 50\n", "")
    for job in plan_sweep(load_sweep_text(text, "study.yaml"), cluster).jobs:
        assert not {"--save", "--save-interval"} & set(job.command)
    for job in plan_sweep(load_sweep_text(text_of(), "study.yaml"), cluster).jobs:
        assert {"--save", "--save-interval"} <= set(job.command)


def test_a_file_without_a_sweep_is_one_point() -> None:
    text = text_of()
    sweep = load_sweep_text(text[: text.index("sweep:")], "study.yaml")
    assert [point.name for point in sweep.points] == ["m_0.001"]


def test_a_file_that_takes_parts_from_others_is_imported() -> None:
    text = "# @package _global_\ndefaults:\n  - /backend: megatron\n  - _self_\njob: {name: x}\n"
    with pytest.raises(SpecError, match=r"study\.yaml:2:1: .*airflow-megatron import oellm"):
        load_sweep_text(text, "study.yaml")


README_STAGES = r"""
project: {name: none}
backend:
  class_name: BashBackend
  command: "sleep 1; echo ${stage}"
sweep:
  type: product
  groups:
    - params: {aux.size: [1, 2]}
    - configs:
        - {stage: stable, project.name: "\\${stage}_\\${aux.size}"}
        - stage: decay
          project.name: "\\${stage}_\\${aux.size}"
          job.start_conditions:
            - {class_name: FileExistsCondition, path: "\\${sibling.stable.output_dir}/done.txt"}
          job.cancel_conditions:
            - {class_name: SlurmStateCondition, job_name: "\\${sibling.stable.name}", state: FAILED}
"""


def test_conditions_are_as_narrow_as_they_are_written() -> None:
    sweep = load_sweep_text(README_STAGES, "study.yaml")
    stable, decay = sweep.jobs(sweep.points[1], load_cluster("local"))
    assert decay.start == Condition("file", path=f"{stable.run_dir}/done.txt")
    finished = Condition("finished", path=stable.stage_dir)
    assert decay.cancel == Condition(
        "all", parts=(Condition("ended", path=stable.stage_dir), Condition("not", parts=(finished,)))
    )


COMPUTED = r"""
job: {name: "m_${aux.size}_${stage}"}
backend:
  class_name: BashBackend
  command: "echo ${stage}"
stage: ""
aux: {size: 1, start: 5}
sweep:
  type: product
  groups:
    - params: {aux.size: [1, 2]}
    - type: list
      defaults: {stage: "at_\\${aux.start}", backend.command: "cat \\${sibling.first.job.base_output_dir}/x"}
      configs: [{stage: first, backend.command: echo}, {aux.start: START}, {aux.start: 20}]
"""


def test_computed_stages_have_the_names_that_they_resolve_to() -> None:
    sweep = load_sweep_text(COMPUTED.replace("START", "10"), "study.yaml")
    assert [instance.name for instance in sweep.tree] == ["first", "at_10", "at_20"]
    varying = COMPUTED.replace("START", '"\\\\${oc.muli:\\\\${aux.size},10}"')
    sweep = load_sweep_text(varying, "study.yaml")
    assert [instance.name for instance in sweep.tree] == ["first", "at__aux_start", "at_20"]


@pytest.mark.parametrize(
    ("swept", "told"),
    [
        ("[1e-3, 0.001]", ["m_0.001_0: m_0.001_1 is the same training"]),
        ("[1e-3, 2e-3, 1e-3, 1e-3]", ["m_0.001_0: m_0.001_2, m_0.001_3 are the same training"]),
        ("[1e-3, 2e-3]", []),
    ],
)
def test_points_that_are_the_same_training(cluster: ClusterProfile, swept: str, told: list[str]) -> None:
    megatron = (
        "{micro_batch_size: 1, global_batch_size: 8, hidden_size: 64, num_attention_heads: 4, seq_length: 32,"
        " max_position_embeddings: 32, mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 128,"
        " eval_interval: 100, wandb_exp_name: '${job.name}'}"
    )
    lines = "\n    ".join(megatron.strip("{}").split(", "))
    text = text_of(megatron=lines).replace("[1e-3, 2e-3]", swept)
    warnings = check_sweep(load_sweep_text(text, "study.yaml"), cluster).warnings
    found = [problem.message for problem in warnings if "the same training" in problem.message]
    assert len(found) == len(told)
    assert all(part in message for part, message in zip(told, found, strict=True))


def test_the_section_that_upstream_repeats_in_job_hides_no_misspelt_key() -> None:
    repeated = "slurm: ${slurm}"
    assert warnings_of(job=repeated) == []
    with pytest.raises(SpecError, match=r"no key 'slurm.srun_optss' \(did you mean 'srun_opts'"):
        warnings_of(job=repeated, slurm="srun_optss: --mpi=pmix")
    assert "job.slurm" in warnings_of(job="slurm: {sbatch: {nodes: 3}}")[0]


@pytest.mark.parametrize(
    "path",
    [
        "${.name}/slurm-%j.log",
        "${.name}/${oc.if:${slurm.array},slurm-%A_%a.log,slurm-%j.log}",
        "${oc.env:OUTPUT_DIR,/slurm}/${.name}",
    ],
)
def test_words_that_name_no_key_hide_no_misspelt_key(path: str) -> None:
    own = f'log_path: "{path}"'
    with pytest.raises(SpecError, match=r"no key 'slurm.lancher_cmd' \(did you mean 'launcher_cmd'"):
        warnings_of(job=own, slurm="lancher_cmd: x")
    assert "slurm.foo: nothing here reads it" in warnings_of(job=own, slurm="foo: 1")


@pytest.mark.parametrize(
    "reference",
    [
        "${slurm.foo}",
        "${oc.select:slurm.foo,1}",
        "${slurm[foo]}",
        "${oc.eval:'2 * ${slurm.foo}'}",
        "${${aux.part}.foo}",
    ],
)
def test_a_key_that_a_reference_names_is_read(reference: str) -> None:
    lines = {"top": "aux: {part: slurm}", "slurm": "foo: 64"}
    assert warnings_of(**lines, megatron=f'hidden_size: "{reference}"') == []


def test_a_misspelt_key_of_the_sidecar_names_the_intended_one() -> None:
    (text,) = warnings_of(top="clustre: local")
    assert text.startswith("clustre: nothing here reads it; did you mean 'cluster', in the sidecar")
