"""Values of an oellm-autoexp file that cannot mean anything here are refused, or named in a warning with the reason."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from oellm_harness import text_of, warnings_of

from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job


def job_of(**lines: str) -> Job:
    sweep = load_sweep_text(text_of(**lines), "study.yaml")
    return sweep.jobs(sweep.points[0], load_cluster("local"))[0]


def event(fields: str, action: str = "{class_name: RestartAction}") -> dict[str, str]:
    return {"job": f"log_events: [{{name: e, {fields}, action: {action}}}]"}


def change(old: str, new: str) -> dict[str, str]:
    return {
        "job": f"state_events: [{{name: e, transition: [{old}, {new}], action: {{class_name: RestartAction}}}}]"
    }


def condition(fields: str, word: str = "start_condition") -> dict[str, str]:
    return {"job": f"{word}: {{class_name: {fields}}}"}


REFUSED = {
    "an open quote": (
        {"megatron": 'wandb_project: "it\'s"'},
        'backend.megatron.wandb_project is "it\'s"',
    ),
    "a list as a variable": ({"slurm": "env: {A: [1, 2]}"}, "slurm.env.A is [1, 2], not a text or a number"),
    "keys as a variable": ({"backend": "env: {A: {B: 1}}"}, "backend.env.A is {'B': 1}, not a text"),
    "variables as a list": ({"slurm": "env: [A=1]"}, "slurm.env is ['A=1'], not variables"),
    "variables as a text": ({"backend": "env: A=1"}, "backend.env is 'A=1', not variables"),
    "no name of a variable": ({"slurm": "env: {'A B': 1}"}, "'A B' cannot be the name of a variable"),
    "a text as an action": (event("pattern: x", "RestartAction"), "event 'e': action is 'RestartAction'"),
    "an action without a class": (event("pattern: x", "{reason: y}"), "write {class_name: RestartAction}"),
    "a list as a pattern": (event("pattern: [x]"), "event 'e': pattern is ['x'], not a text"),
    "a word as a flag": (event("pattern: x, match_once: 'no'"), "match_once is 'no'; write true or false"),
    "a group that the pattern lacks": (
        event("pattern_type: regex, pattern: 'a(b)', extract_groups: {node: 2}"),
        "extract_groups has node: 2, and the pattern 'a(b)' has 1 groups",
    ),
    "a group in a content that the pattern lacks": (
        event("pattern: x", "{class_name: AppendToFileAction, path: /x, content: '{node}'}"),
        "content has {node}, and the pattern has no such group",
    ),
    "no change": (change("RUNNING", "RUNNING"), "a job in the state RUNNING does not change to RUNNING"),
    "no change in other words": (change("success", "COMPLETED"), "does not change to COMPLETED"),
    "a state before it runs": (change("RUNNING", "PENDING"), "each job is PENDING before it runs"),
    "a chain without end": (
        {"job": "chain_repeat: 500"},
        "chain_repeat is 500, not a whole number from 1 to 100",
    ),
    "a chain that is a flag": ({"job": "chain_repeat: true"}, "chain_repeat is True"),
    "a list as a path": (condition("FileExistsCondition, path: [/x]"), "path is ['/x'], not a text"),
    "a list as shell text": (
        condition("ShellCommandCondition, command: [a, b]"),
        "command is ['a', 'b'], not a text",
    ),
    "keys as a command": (
        condition("CommandCondition, command: {a: b}"),
        "command is {'a': 'b'}, not a list of words",
    ),
    "a mode": (
        condition("FileContentCondition, path: /x, pattern: a, mode: exact"),
        "write contains or regex",
    ),
    "a mode of parts": (
        condition("CompositeCondition, mode: xor, conditions: [{class_name: AlwaysTrueCondition}]"),
        "mode is 'xor'; write all or any",
    ),
    "nothing to negate": (condition("NotCondition"), "NotCondition needs condition"),
    "no parts": (condition("AndCondition"), "conditions is None, not a list of conditions"),
    "a number of matches": (
        condition("GlobExistsCondition, pattern: /x/*, min_matches: 0"),
        "write 1 or more",
    ),
    "a condition twice": (
        {
            "job": "start_condition: {class_name: FileExistsCondition, path: /x}\n"
            "  start_conditions: [{class_name: FileExistsCondition, path: /y}]"
        },
        "job.start_condition and job.start_conditions are both given (keep one of them)",
    ),
    "a list as an option": ({"sbatch": "exclude: [a, b]"}, "slurm.sbatch.exclude is ['a', 'b'], not a text"),
    "a list as an option of sbatch": ({"sbatch": "mail_type: [END, FAIL]"}, "(write mail_type: END,FAIL)"),
    "no line of sbatch": (
        {"slurm": "sbatch_extra_directives: [echo x]"},
        "'echo x', which is no option of sbatch",
    ),
    "a word for an array": ({"slurm": "array: 'yes'"}, "slurm.array is 'yes', not true or false"),
    "a reference to nothing": ({"job": "chain_repeat: ${nope}"}, "'nope' is not defined"),
}


REFUSED |= {
    "a text as a container": ({"top": "container: lumi"}, "container is 'lumi', not keys with values"),
    "a text as a project": ({"top": "project: x"}, "project is 'x', not keys with values"),
    "a word for a step": (
        {"top": "postprocess: {e: {class_name: OELLMEvalStep, model_path: hf, dry_run: 'yes'}}"},
        "postprocess.e.dry_run is 'yes', not true or false",
    ),
    "a list as a name": ({"job": "name: [a]"}, "job.name is ['a'], not a text"),
    "keys as a command": (
        {"backend": "command: {a: 1}"},
        "the command is {'a': 1}, not a list of words",
    ),
    "nothing in a command": ({"backend": "command: [echo, null]"}, "the command is ['echo', None]"),
}


def with_case(lines: dict[str, str]) -> str:
    """Return a file with lines, in which a line of the case stands instead of the file's own with that key."""
    text = text_of(**lines)
    if "name: [a]" in text:
        text = text.replace('  name: "m_${backend.megatron.lr}"\n', "")
    return text.replace("MegatronBackend", "BashBackend") if "command: " in lines.get("backend", "") else text


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_without_a_meaning_is_refused(case: str) -> None:
    lines, message = REFUSED[case]
    with pytest.raises(SpecError, match=re.escape(message)) as error:
        _ = load_sweep_text(with_case(lines), "study.yaml").points
    assert "sweep:" not in with_case(lines).splitlines()[error.value.problems[0].line - 1]


@pytest.mark.parametrize("section", ["job", "slurm", "backend"])
def test_a_section_takes_keys(section: str) -> None:
    text = text_of().replace('name: "m_${backend.megatron.lr}"', "name: m")
    text = re.sub(rf"^{section}:\n(?:  .*\n)+", f"{section}: [5]\n", text, flags=re.MULTILINE)
    with pytest.raises(SpecError, match=rf"^study\.yaml:\d+:1: .*{section}|a list of 1 has no"):
        load_sweep_text(text, "study.yaml")


def test_nodes_are_at_least_one() -> None:
    with pytest.raises(SpecError, match=r"slurm.sbatch.nodes is 0, not a whole number from 1 on"):
        load_sweep_text(text_of().replace("nodes: 2", "nodes: 0"), "study.yaml")


NAMED = {
    "a container without an image": (
        {"top": "container: {runtime: podman, bind: [/a]}"},
        "container.runtime, container.bind: the cluster profile's container is used, since there is no image",
    ),
    "a key of another container": (
        {"top": "container: {image: /c.sif, venv_path: /v}"},
        "container.venv_path: nothing here reads it",
    ),
    "a key of the README's project": (
        {"top": "project: {nam: x}"},
        "project.nam: nothing here reads it; did you",
    ),
    "a key of the sidecar": (
        {"top": "cluster: local"},
        "cluster: nothing here reads it; it belongs into the sidecar",
    ),
    "capitals": ({"top": "Job: x"}, "Job: nothing here reads it; did you mean 'job'?"),
    "keys as an argument": (
        {"megatron": "seed: {a: 1}"},
        "backend.megatron.seed: keys with values are no argument",
    ),
    "a signal that is not handled": (
        {"megatron": "exit_signal_handler: false"},
        "backend.megatron.exit_signal_handler: false: a job that is stopped saves first",
    ),
    "a step in quotes that nothing loads": (
        {"megatron": "ckpt_step: '500'"},
        "backend.megatron.ckpt_step: 500: nothing is loaded",
    ),
    "a file of the sweep": ({"sweep": "store_sweep_json: false"}, "nothing here writes such a file"),
    "a list that no group sets": (
        {"sweep": "list_composition: [backend.megatron.lrr]"},
        "list_composition has backend.megatron.lrr, which no group sets",
    ),
    "a variable without a value": ({"slurm": "env: {A: null}"}, "slurm.env.A: null is no value"),
    "a variable of the launcher": (
        {"backend": "env: {MASTER_PORT: 5, PYTHONPATH: /x}"},
        "backend.env.MASTER_PORT, backend.env.PYTHONPATH: the job script or the cluster profile sets it",
    ),
    "a variable that a shell computes": ({"slurm": "env: {A: $B}"}, "slurm.env.A: variables that a shell"),
    "a variable of another machine": (
        {"slurm": "env: {A: '${oc.env:NOT_SET_ANYWHERE}'}"},
        "slurm.env.A: not set, since it cannot be resolved",
    ),
    "a variable from nothing": ({"slurm": "env: {A: '${nope}'}"}, "slurm.env.A: not set"),
    "an event without an action": (event("pattern: x", "null"), "event 'e': it has no action"),
    "a change without an action": (
        {"job": "state_events: [{name: e, transition: [RUNNING, FAILED]}]"},
        "event 'e': it has no action",
    ),
    "any change": (change("null", "null"), "any state counts, and the first one is PENDING"),
    "a pattern of silence": (
        event("pattern_type: inactivity, pattern: x"),
        "event 'e': pattern: nothing here reads it",
    ),
    "polls of a pattern": (
        event("pattern: x, inactivity_polls: 5"),
        "inactivity_polls: nothing here reads it",
    ),
    "groups of a text": (
        event("pattern: x, extract_groups: {a: 1}"),
        "extract_groups: nothing here reads it",
    ),
    "an end that always holds": (
        condition("AlwaysTrueCondition", "cancel_condition"),
        "job.cancel_condition: it always holds, which would cancel every job: left out",
    ),
    "an end after a time": (
        condition("CooldownCondition, cooldown_seconds: 5", "finish_condition"),
        "job.finish_condition: it always holds",
    ),
    "no alternative": (
        condition("OrCondition, conditions: []"),
        "OrCondition without conditions never holds",
    ),
    "a relative path": (condition("FileExistsCondition, path: x"), "path 'x' is not absolute"),
    "a number of tasks": ({"sbatch": "ntasks: 5"}, "slurm.sbatch.ntasks: 5: a training has one process"),
    "another kind's command": (
        {"backend": "command: [echo]"},
        "backend.command: only a stage of the kind command",
    ),
    "arguments of a command line": (
        {"backend": "extra_cli_args: [--seed, '5']"},
        "backend.extra_cli_args: only a stage of the kind command reads it, and the sweep has none",
    ),
    "another kind's tasks": ({"backend": "tasks: [a]"}, "backend.tasks: only a stage of the kind evaluate"),
    "another place of options": ({"job": "slurm: {sbatch: {nodes: 3}}"}, "job.slurm: nothing here reads it"),
}


@pytest.mark.parametrize("case", NAMED)
def test_what_is_not_taken_over_is_named(case: str) -> None:
    lines, message = NAMED[case]
    text = text_of(**lines)
    if "sweep" in lines:
        text = text.replace("  type: product\n", f"  type: product\n  {lines['sweep']}\n")
    told = [problem.message for problem in load_sweep_text(text, "study.yaml").warnings()]
    assert any(message in warning for warning in told), told


def test_two_keys_for_the_same_input() -> None:
    text = text_of(backend="megatron_path: /old/iter_0000100\n  tokenizer: /a\n  hf_model: /b")
    sweep = load_sweep_text(text.replace("MegatronBackend", "MegatronBridgeBackend"), "study.yaml")
    assert "backend.hf_model: backend.tokenizer gives the same, and counts" in [
        p.message for p in sweep.warnings()
    ]


def test_values_that_are_read_through_a_reference_are_no_argument() -> None:
    assert warnings_of(megatron="own: {a: 5}\n    seed: ${backend.megatron.own.a}") == []


STAGES = r"""
job: {name: x}
backend: {class_name: BashBackend, command: "echo ${stage}"}
sweep:
  type: product
  groups:
    - configs:
        - {stage: decay6B}
        - {stage: decay12B}
        - {stage: last, backend.command: "echo \\${sibling.decay.output_dir}"}
"""


def test_a_beginning_of_several_stages_is_named() -> None:
    (warning,) = (
        problem
        for problem in load_sweep_text(STAGES, "study.yaml").warnings()
        if "beginning" in problem.message
    )
    assert "is the beginning of decay6B, decay12B; decay6B is taken" in warning.message
    assert warning.line == 10


def test_a_missing_sibling_stands_at_its_reference() -> None:
    with pytest.raises(SpecError, match=r"^study\.yaml:10:\d+: there is no stage 'decai'"):
        load_sweep_text(STAGES.replace("sibling.decay.", "sibling.decai."), "study.yaml")


def test_a_warning_stands_at_its_key() -> None:
    text = text_of(slurm="env: {A: $B}")
    (warning,) = load_sweep_text(text, "study.yaml").warnings()
    assert "env: {A: $B}" in text.splitlines()[warning.line - 1]


@pytest.mark.parametrize(
    "lines",
    [
        {"slurm": "env: {A: '', B: true}"},
        event(
            "pattern: x, inactivity_polls: 1, inactivity_timeout_s: 0, match_once: true, extract_groups: {}"
        ),
        {"sbatch": "ntasks_per_node: '4'"},
        {"sbatch": "ntasks: 8"},
        {"sbatch": "export: ALL"},
        {"slurm": "sbatch_extra_directives: ['', '# from the site', '#SBATCH --hint=x']"},
        {"top": "stage: ''", "backend": "command: null"},
    ],
)
def test_what_changes_nothing_is_not_warned_of(lines: dict[str, str]) -> None:
    assert warnings_of(**lines) == []


def test_an_empty_variable_is_set() -> None:
    assert job_of(slurm="env: {A: '', B: 1}", backend="env: {B: 2}").env == {"A": "", "B": "2"}


def test_leaving_a_state_is_not_entering_the_queue() -> None:
    (event,) = job_of(**change("RUNNING", "null")).events
    for state, acts in (("FAILED", True), ("TIMEOUT", True), ("PENDING", False), ("RUNNING", False)):
        assert bool(re.search(event.pattern, state)) == acts


def test_silence_acts_as_often_as_it_is_written() -> None:
    (event,) = job_of(
        job="log_events: [{name: e, pattern_type: inactivity, match_once: false, action: {class_name: LogAction}}]"
    ).events
    assert event.limit is None


BRANCH = r"""
job: {name: "x_${stage}"}
backend:
  class_name: MegatronBackend
  megatron: {num_layers: 2, lr: 1e-3, train_iters: 100, save_interval: 50}
sweep:
  type: product
  groups:
    - configs:
        - {stage: stable}
        - stage: decay
          backend.megatron.load: "\\${sibling.stable.output_dir}/checkpoints"
          backend.megatron.ckpt_step: STEP
"""


@pytest.mark.parametrize("step", ["50", "'50'", "50.0"])
def test_a_step_in_quotes_is_a_step(step: str) -> None:
    sweep = load_sweep_text(BRANCH.replace("STEP", step), "study.yaml")
    _, decay = sweep.jobs(sweep.points[0], load_cluster("local"))
    assert decay.iteration == 50


@pytest.mark.parametrize("length", ["100", "'100'", "1e2"])
def test_a_length_in_quotes_is_a_length(length: str) -> None:
    text = BRANCH.replace("STEP", "null").replace("train_iters: 100", f"train_iters: {length}")
    sweep = load_sweep_text(text, "study.yaml")
    stable, decay = sweep.jobs(sweep.points[0], load_cluster("local"))
    assert (stable.params["train_iters"], decay.iteration) == (100, 100)


def test_scalars_are_those_of_omegaconf() -> None:
    job = job_of(megatron="bf16: yes", slurm="env: {FLAG: on, MASK: 010}", sbatch="comment: no")
    assert job.params["bf16"] is True
    assert job.env == {"FLAG": "True", "MASK": "8"}
    lines = {"megatron": "seed: 010", "sbatch": "time_min: 1:30:00"}
    assert job_of(**lines).slurm.options == ["--time-min=5400"]
    assert warnings_of(**lines) == [
        "010 is read as 8, an octal number",
        "1:30:00 is read as 5400, a number in base 60",
    ]


def test_keys_are_text() -> None:
    assert job_of(slurm="env: {ON: 1, on: 2}").env == {"ON": "1", "on": "2"}


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ({"megatron": "wandb_exp_name: '???'"}, "backend.megatron.wandb_exp_name"),
        ({"sbatch": "account: ???"}, "slurm.sbatch.account"),
        ({"slurm": "env: {A: '???'}"}, "slurm.env.A"),
    ],
)
def test_a_value_to_fill_in_is_an_error(lines: dict[str, str], key: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"{key} is ???, which has to be filled in")):
        job_of(**lines)


def test_the_place_of_the_index_in_a_name() -> None:
    text = text_of().replace("m_${backend.megatron.lr}", "run-%a_x")
    sweep = load_sweep_text(text, "study.yaml")
    assert [point.name for point in sweep.points] == ["run-0_x", "run-1_x"]


def test_variables_of_the_monitor() -> None:
    lines = {
        "job": (
            "metadata: {team: blue}\n"
            "  cancel_condition: {class_name: FileExistsCondition, path: '/x/{job_name}/{sweep_index}/{team}/{a}'}\n"
            "  finish_condition: {class_name: ShellCommandCondition, command: \"awk '{print $1}' /x/{team}\"}\n"
            "  log_events: [{name: e, pattern: x, action: "
            "{class_name: LogAction, message: '{event_name} of {job_name}, {match}'}}]"
        )
    }
    job = job_of(**lines)
    assert job.cancel is not None
    assert job.cancel.path == "/x/m_0.001/0/blue/{a}"
    assert job.finish is not None
    assert job.finish.command == "awk '{print $1}' /x/blue"
    assert job.events[0].message == "e of m_0.001, {match}"
    (text,) = warnings_of(**lines)
    assert text.startswith("event e: {match}: not replaced here")


def restarting(*limits: int | None) -> dict[str, str]:
    events = [
        f"{{name: e{number}, pattern: x{number}, action: {{class_name: RestartAction}}"
        + (f", condition: {{class_name: MaxAttemptsCondition, max_attempts: {limit}}}}}" if limit else "}")
        for number, limit in enumerate(limits)
    ]
    return {"job": f"log_events: [{', '.join(events)}]"}


def test_the_largest_number_of_attempts_is_one_of_the_job() -> None:
    assert job_of(**restarting(3)).restart.retryable == 2
    assert job_of(**restarting(1)).restart.retryable == 0
    assert "retryable" not in job_of(**restarting(None)).restart.model_fields_set
    assert job_of(**restarting(2, 4)).restart.retryable == 3
    assert "the largest one, 4, counts" in warnings_of(**restarting(2, 4))[0]
    assert "retryable" not in job_of(**restarting(2, None)).restart.model_fields_set
    assert "none counts" in warnings_of(**restarting(2, None))[0]
    same_name = {key: text.replace("e1", "e0") for key, text in restarting(2, None).items()}
    assert "retryable" not in job_of(**same_name).restart.model_fields_set
    with pytest.raises(
        SpecError, match="MaxAttemptsCondition has no 'max_attempt'; did you mean 'max_attempts'"
    ):
        job_of(**{key: text.replace("max_attempts", "max_attempt") for key, text in restarting(2).items()})


def test_words_of_variables_are_flags() -> None:
    lines = "bf16: ${oc.env:NOT_SET,true}\n    overlap_grad_reduce: ${oc.env:NOT_SET,False}"
    params = job_of(megatron=lines).params
    assert (params["bf16"], params["overlap_grad_reduce"]) == (True, False)


def test_quarantine_is_part_of_the_restart_policy() -> None:
    fields = "pattern_type: regex, pattern: 'iter_(\\d+)', extract_groups: {iteration: 1}"
    action = "{class_name: QuarantineCheckpointAction, checkpoint_dir: /x, iteration: '{iteration}', max_rollbacks: 3}"
    job = job_of(**event(fields, action))
    assert (job.events, job.restart.quarantine) == ((), 3)
    (text,) = warnings_of(**event(fields, action))
    assert text.startswith("event e: QuarantineCheckpointAction is not needed")
    assert (
        job_of(**event(fields, action.replace("max_rollbacks: 3", "dry_run: true"))).restart.quarantine == 0
    )


def test_the_group_of_a_progress_event_is_named() -> None:
    lines = event("pattern_type: progress, progress_timeout_s: 600, progress_group: 1")
    assert job_of(**lines).events[0].after == 600
    assert any("progress_group: nothing here reads it" in text for text in warnings_of(**lines))


def test_a_chain_of_none_is_no_chain() -> None:
    assert job_of(job="chain_repeat: 0").restart.chain == 1


AFTER_THE_SHELL = {
    "escaped signs": (r'"Et\\*9\\|t\\*8\\|t\\*7L"', "Et*9|t*8|t*7L"),
    "quotes around signs": ("\"'E|t*2|L'\"", "E|t*2|L"),
    "an escaped quote": (r'"{\\\"a\\\":1}"', '{"a":1}'),
    "signs that nothing escapes": ("'E|t*2|L'", "E|t*2|L"),
}


@pytest.mark.parametrize("case", AFTER_THE_SHELL)
def test_an_argument_is_what_the_shell_of_upstreams_script_passes(case: str) -> None:
    written, passed = AFTER_THE_SHELL[case]
    job = job_of(megatron=f"pipeline_model_parallel_layout: {written}")
    assert job.params["pipeline_model_parallel_layout"] == passed


def test_the_words_of_a_list_are_those_of_the_shell() -> None:
    job = job_of(megatron=r'data_path: ["0.5", "\"/a b\"", "\"0.5\" /c\\ d"]')
    assert job.params["data_path"] == ["0.5", "/a b", "0.5", "/c d"]


def test_a_training_that_only_validates_saves_nothing() -> None:
    sweep = load_sweep_text(text_of(megatron="skip_train: true\n    load: /other/checkpoints"), "study.yaml")
    words = plan_sweep(sweep, load_cluster("local")).jobs[0].command
    assert "--skip-train" in words
    assert "--save" not in words


SPARE_NODES = {
    "the numbers are equal": ("1:1", "torchrun x", 1),
    "torchrun trains on all that there are": ("1:2", "torchrun x", 0),
    "ft_launcher keeps the others in reserve": ("1:2", "ft_launcher x", 1),
    "all nodes": ("2:2", "ft_launcher x", 0),
    "more than there are": ("3:4", "ft_launcher x", 0),
    "one number": ("2", "torchrun x", 0),
    "none": ("0:0", "torchrun x", 0),
}


@pytest.mark.parametrize("case", SPARE_NODES)
def test_nodes_that_upstream_keeps_in_reserve_are_named(case: str) -> None:
    numbers, launcher, spare = SPARE_NODES[case]
    lines = {"backend": f"dist_cmd: {launcher}\n  torchrun_args: {{nnodes: '{numbers}'}}"}
    warned = [message for message in warnings_of(**lines) if "in reserve" in message]
    assert len(warned) == spare
