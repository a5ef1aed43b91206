"""Valid and invalid specs: each error is reported once, with file, line, column and hint."""

from __future__ import annotations

import pytest
from example_specs import CHAIN, STAGES, spec_text

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.spec_files import load_sweep_text


def told(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_sweep_text(text, "s.yaml")
    return str(caught.value).splitlines()


def with_stage(lines: str) -> str:
    return f"name: x\npoint: p\nstages:\n  pretrain:\n    kind: train\n    {lines}\n"


def test_a_whole_spec() -> None:
    sweep = load_sweep_text(CHAIN, "s.yaml")
    assert sweep.name == "chain"
    assert (sweep.spec.cluster, sweep.spec.trainer, sweep.spec.release) == (
        "local",
        "megatron_core",
        "core_v0.16.1",
    )


def test_the_file_names_the_sweep() -> None:
    assert load_sweep_text(f"point: p\n{STAGES}", "specs/warm-up.yaml").name == "warm-up"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"pont: p\npoint: p\n{STAGES}",
            "s.yaml:1:1: unknown key 'pont' (did you mean 'point'?)",
        ),
        (with_stage("megatorn: {lr: 1}"), "s.yaml:6:5: unknown key 'megatorn' (did you mean 'megatron'?)"),
        (
            with_stage("slurm: {gpus: 4}"),
            "s.yaml:6:13: unknown key 'gpus' (did you mean 'gpus_per_node'?)",
        ),
        (
            with_stage("slurm: {gres: 'gpu:4'}"),
            "unknown key 'gres' (other options of sbatch: options: [--gres=…]; known here: account, ",
        ),
        (with_stage("slurm: {env: {A: 1}}"), "unknown key 'env' (write it in stages.pretrain)"),
        (with_stage("checkpoint: 100"), "unknown key 'checkpoint' (write start: {checkpoint: …})"),
        (with_stage("cluster: x"), "unknown key 'cluster' (write it at the top level)"),
        (with_stage("num_layers: 2"), "unknown key 'num_layers' (write megatron: {num_layers: …})"),
        (spec_text(point="p", more="lr: 1"), "s.yaml:3:1: unknown key 'lr' (write megatron: {lr: …})"),
        (spec_text(point="p", more="time: 1h"), "unknown key 'time' (write slurm: {time: …})"),
        (
            spec_text(point="p", more="partition: gpu"),
            "unknown key 'partition' (write slurm: {partition: …})",
        ),
        (spec_text(point="p", more="array: true"), "unknown key 'array' (write stages: {NAME: {array: …}})"),
        (
            spec_text(point="p", more="notifier: a.B"),
            "unknown key 'notifier' (write notify: [{notifier: …}])",
        ),
        (with_stage("start: 100"), "start is 100 (expected keys with values, such as {checkpoint: 1000})"),
        (
            with_stage("each_checkpoint: 10"),
            "each_checkpoint is 10 (expected true, false, or keys with values)",
        ),
        (
            with_stage("slurm: {exclude: [n1, n2]}"),
            's.yaml:6:13: stages.pretrain.slurm.exclude is a list (write exclude: "n1,n2")',
        ),
        (
            with_stage("slurm: {partition: '[a, b]'}"),
            's.yaml:6:13: stages.pretrain.slurm.partition: a list in brackets (write "a,b")',
        ),
        (with_stage("slurm: {exclude: '[n1,n2]'}"), 'slurm.exclude: a list in brackets (write "n1,n2")'),
        *(
            (
                with_stage(f"slurm: {{cpus_per_task: {value}}}"),
                f'cpus_per_task is {value} (expected a whole number or an expression "{{{{ … }}}}")',
            )
            for value in ("2.5", "true")
        ),
        (with_stage("parent: [a, 3]"), "s.yaml:6:17: stages.pretrain.parent.1 is 3 (expected text"),
        (
            with_stage("container: {runtime: ce, image: /e.toml, binds: [/a]}"),
            "s.yaml:6:46: stages.pretrain.container.binds: ce takes none (write them into mounts of the EDF file)",
        ),
        (
            with_stage("container: {runtime: ce, image: /e.toml, env: [A]}"),
            "s.yaml:6:46: stages.pretrain.container.env: ce takes none (drop it: variables of the job reach",
        ),
        (
            with_stage("container: {runtime: ce, image: a/e.toml}"),
            "s.yaml:6:5: stages.pretrain.container: ce cannot start it (write as image the absolute path of an EDF",
        ),
        (with_stage("slurm: {cpu_per_task: 4}"), "(did you mean 'cpus_per_task'?)"),
        (
            with_stage("restart: {retriable: 4}"),
            "s.yaml:6:15: unknown key 'retriable' (did you mean 'retryable'?)",
        ),
        ("name: x\n" + STAGES, "s.yaml:1:1: 'point' is missing (add point: …)"),
        ("name: x\npoint: p\n", "s.yaml:1:1: 'stages' is missing (add stages: …, or benchmark: …)"),
        (
            "name: x\npoint: p\nstages:\n  a: {parent: b}\n",
            "s.yaml:4:3: 'kind' is missing (add kind: …, with 'train', 'lr_finder', 'benchmark', 'convert', 'eval",
        ),
        ("name: x\npoint: p\nstages: {}\n", "'stages' is missing"),
        ("[1, 2]\n", "s.yaml:1:1: expected keys with values (write name: …)"),
        (
            spec_text(point="p", more="max_active_points: many"),
            "s.yaml:3:1: max_active_points is 'many' (expected a whole number)",
        ),
        (spec_text(point="p", more="max_active_points: 0"), "greater than or equal to 1"),
        (
            spec_text(point="p", more="tags: wide"),
            "s.yaml:3:1: tags is 'wide' (expected a list, such as [wide])",
        ),
        (
            spec_text(point="p", more="wrapper: nsys profile"),
            "s.yaml:3:1: wrapper is 'nsys profile' (expected a list, such as [nsys, profile])",
        ),
        (spec_text(point="p", more="trackers: wandb"), "trackers is 'wandb' (expected a list)"),
        (spec_text(point="p", more="tags: '{{ x }}'"), "tags is '{{ x }}' (expected a list)"),
        (
            spec_text(point="p", more="restart: 3"),
            "restart is 3 (expected keys with values, such as {retryable: 5})",
        ),
        (
            spec_text(point="p", more="health: {nan: stop}"),
            "health.nan is 'stop' (expected keys with values, such as {do: cancel})",
        ),
        (
            spec_text(point="p", more="description: 3"),
            "s.yaml:3:1: description is 3 (expected text (quote it))",
        ),
        (
            spec_text(point="p", more="megatron: [lr]"),
            "s.yaml:3:1: megatron is a list (expected keys with values)",
        ),
        (
            spec_text(point="p", more="trainer: megatron"),
            "trainer is 'megatron' (expected one of 'megatron_core', 'megatron_lm' or 'megatron_deepspeed')",
        ),
        (spec_text(point="p", more="trainer: Megatron-LM"), "(did you mean 'megatron_lm'? expected one of "),
        (spec_text(point="p", more="trainer: megatron_ml"), "(did you mean 'megatron_lm'? expected one of "),
        (
            spec_text(point="p", more="trackers: [{tracker: wandb, connection: my conn}]"),
            "trackers.0.connection is 'my conn' (expected letters, digits, '_', '.' and '-', at most 200 characters)",
        ),
        (
            spec_text(point="p", more="trackers: [{tracker: wandb, connection: w, project: a/b}]"),
            "project is 'a/b' (expected letters, digits, spaces, '_', '.' and '-', at most 100 characters)",
        ),
        (
            with_stage("slurm: {time: soon}"),
            "slurm.time: 'soon' is not a duration (write 30m, 6h or 06:00:00)",
        ),
        (
            with_stage("slurm: {nodes: two}"),
            "s.yaml:6:13: stages.pretrain.slurm.nodes is 'two' (expected a whole number or an expression \"{{ … }}\")",
        ),
        (with_stage("slurm: {nodes: true}"), "expected a whole number"),
        (
            with_stage("restart: {failed: true}"),
            "s.yaml:6:15: stages.pretrain.restart.failed is true (expected a whole number)",
        ),
        (with_stage("health: {spike: {rise: true}}"), "health.spike.rise is true (expected a number)"),
        (with_stage("env: {DEBUG: true}"), "env.DEBUG is true (expected text (quote it))"),
        (with_stage("command: [x, true]"), "s.yaml:6:18: stages.pretrain.command.1 is true (expected text"),
        (with_stage("finish: {command: x, prints: true}"), "finish.prints is true (expected text"),
        (
            with_stage("restart: {chain: 100000}"),
            "s.yaml:6:15: stages.pretrain.restart.chain is 100000 (expected less than or equal to 100",
        ),
        (with_stage("slurm: {nodes: 0}"), "slurm.nodes is 0 (expected greater than or equal to 1"),
        (
            with_stage("slurm: {mem: 64Gi}"),
            "s.yaml:6:13: stages.pretrain.slurm.mem: '64Gi' is not a memory size of Slurm (write a whole number",
        ),
        (
            with_stage("env: {'A B': 1}"),
            "s.yaml:6:11: stages.pretrain.env.A B: 'A B' cannot be the name of an environment",
        ),
        (
            with_stage("secrets: {A: {file: hf_x}}"),
            "secrets.A.file is … (expected a path that begins with / or ~/;",
        ),
        (with_stage("container: {runtime: apptainer, image: ''}"), "container.image is ''"),
        (
            spec_text(point="p", more="notify: [{notifier: slack}]"),
            "notify.0.notifier is 'slack' (expected the path of a class: package.module.ClassName)",
        ),
        (
            with_stage("slurm: {time: 90}"),
            "s.yaml:6:13: stages.pretrain.slurm.time: 90 is not a walltime: Slurm counts a number in minutes, other",
        ),
        (
            with_stage("slurm: {time: '1:30'}"),
            "slurm.time: '1:30' is not a walltime: to Slurm it is minutes and",
        ),
        (
            with_stage("slurm: {time: 00:00:00}"),
            "s.yaml:6:13: stages.pretrain.slurm.time: '00:00:00' is not a walltime: to Slurm, 0 is no limit (write a",
        ),
        (
            with_stage("slurm: {time: 1h, signal_before: 0}"),
            "s.yaml:6:23: stages.pretrain.slurm.signal_before: 0 is not an interval (write 1s or more)",
        ),
        (with_stage("monitor: {every: 0.4s}"), "monitor.every: '0.4s' is not an interval (write 1s or more)"),
        (with_stage("monitor: {command: ''}"), "monitor.command is ''"),
        (
            with_stage("wrapper: {command: [x], ranks: []}"),
            "wrapper.ranks is [] (expected at least one item)",
        ),
        (with_stage("array: 0"), "array is 0 (expected true or false or greater than or equal to 1)"),
        (with_stage("health: {stall: {startup: 0}}"), "health.stall.startup: 0 is not an interval"),
        (with_stage("health: {stall: {quiet: 0m}}"), "health.stall.quiet: '0m' is not an interval"),
        (with_stage("slurm: {nodes: 1.5}"), "expected a whole number"),
        (with_stage("slurm: {nodes: -1}"), "slurm.nodes is -1 (expected greater than or equal to 1)"),
        (
            with_stage("command: echo hi"),
            """command is 'echo hi' (expected a list of words, such as [bash, -c, "…"])""",
        ),
        (spec_text(point="p", more="cluster: []"), "cluster is [] (expected at least one item)"),
        (with_stage("slurm: {gpus_per_node: -1}"), "greater than or equal to 0"),
        (
            with_stage("env: {SLURM_JOB_ID: 1}"),
            "s.yaml:6:11: stages.pretrain.env.SLURM_JOB_ID: Slurm sets it in each job (drop it)",
        ),
        (
            with_stage("env: {UID: 1}"),
            "s.yaml:6:11: stages.pretrain.env.UID: bash sets it in each job (drop it)",
        ),
        (
            with_stage("env: {A: 1, PATH: /opt/bin}"),
            "s.yaml:6:17: stages.pretrain.env.PATH: /usr/bin, where the job script's programs are, is not in it (to",
        ),
        (
            with_stage("secrets: {PATH: {file: ~/p}}"),
            "s.yaml:6:15: stages.pretrain.secrets.PATH: the name belongs to the system, to Slurm or to job scripts",
        ),
        (with_stage("env: {A: [1]}"), 'env.A is a list (write A: "1")'),
        (
            with_stage("slurm: {mem: 64}"),
            "slurm.mem: 64 is not a memory size of Slurm (write a whole number with K",
        ),
        (
            with_stage("start: {file: [/a, /b]}"),
            "start.file is a list (write all: [{file: /a}, {file: /b}])",
        ),
        (
            with_stage("finish: {any: [{log: [a, b]}, {file: /c}]}"),
            "finish.any.0.log is a list (write all: [{log: a}, {log: b}])",
        ),
        (
            with_stage("slurm: {options: {exclusive: true, constraint: gpu}}"),
            "slurm.options is a mapping (expected a list, such as [--exclusive, --constraint=gpu])",
        ),
        (
            spec_text(point="p") + "  evaluate: {kind: evaluate, parent: pretrain, tasks: [a]}\n",
            "unknown key 'tasks' (write params: {tasks: …})",
        ),
        (
            spec_text(point="p") + "  convert: {kind: convert, parent: pretrain, tokenizer: /t}\n",
            "unknown key 'tokenizer' (write params: {tokenizer: …})",
        ),
        (with_stage("health: of"), "health is 'of' (expected on, off, or keys with values)"),
        (with_stage("health: 0"), "health is 0 (expected on, off, or keys with values)"),
        (with_stage("monitor: yes"), "monitor is 'yes' (expected on, off, or keys with values)"),
        (with_stage("monitor: 1"), "monitor is 1 (expected on, off, or keys with values)"),
        (
            "name: a.b\npoint: p\n" + STAGES,
            "s.yaml:1:1: name is 'a.b' (expected letters, digits, '_' and '-')",
        ),
        ("name: x\npoint: p\nstages:\n  a b: {kind: train}\n", "letters, digits, '_' and '-'"),
        (
            "name: x\npoint: p\nstages:\n  a: {kind: trian}\n",
            "expected one of 'train', 'lr_finder', 'benchmark', 'convert', 'evaluate', 'prefetch' or 'command'",
        ),
    ],
)
def test_wrong_places(text: str, message: str) -> None:
    assert any(message in line for line in told(text)), told(text)


@pytest.mark.parametrize(
    "section",
    [
        "env: [HF_TOKEN=hf_hidden]",
        "env: HF_TOKEN=hf_hidden",
        "env: {PATH: /opt, HF_TOKEN: hf_hidden}",
        "env: {HF_TOKEN: [hf_hidden]}",
        "start: [{env: {HF_TOKEN: hf_hidden}}]",
        "slurm: [{HF_TOKEN: hf_hidden}]",
    ],
)
def test_a_value_that_may_be_a_secret_is_not_repeated(section: str) -> None:
    (line,) = told(with_stage(section))
    assert "hf_hidden" not in line


def test_one_wrong_key_of_each_checkpoint_is_one_error() -> None:
    (line,) = told(with_stage("each_checkpoint: {from: 100}"))
    assert line.startswith("s.yaml:6:23: unknown key 'from' (did you mean 'from_iteration'?)")


@pytest.mark.parametrize("word", ["on", "off", "true", "false"])
def test_sections_that_are_switches(word: str) -> None:
    spec = load_sweep_text(with_stage(f"monitor: {word}"), "s.yaml").spec
    assert spec.stages["pretrain"].monitor is (word in ("on", "true"))


@pytest.mark.parametrize("nodes", ["n1,n2", "n[1-4,7]", "[1-4]", "[12,14]"])
def test_lists_of_nodes(nodes: str) -> None:
    spec = load_sweep_text(with_stage(f"slurm: {{exclude: '{nodes}'}}"), "s.yaml").spec
    assert spec.stages["pretrain"].slurm.exclude == nodes


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"pont: p\n{STAGES}", "s.yaml:1:1: unknown key 'pont' (did you mean 'point'?)"),
        ("point: p\nstages:\n  a: {knd: train}\n", "s.yaml:3:7: unknown key 'knd' (did you mean 'kind'?)"),
        (
            spec_text(point="p", more="trackers: [{trackers: wandb, connection: w}]"),
            "s.yaml:3:13: unknown key 'trackers' (did you mean 'tracker'?)",
        ),
    ],
)
def test_a_misspelt_key_is_not_also_missing(text: str, error: str) -> None:
    assert told(text) == [error]


def test_another_unknown_key_leaves_the_missing_one() -> None:
    assert len(told("point: p\nstages:\n  a: {xyzzy: train}\n")) == 2


def test_all_problems_are_reported_together_in_order() -> None:
    lines = told("pont: p\nname: a.b\npoll_interval: often\nstages:\n  pretrain: {kind: trian}\n")
    assert len(lines) == 4
    assert [int(line.split(":")[1]) for line in lines] == sorted(int(line.split(":")[1]) for line in lines)


def test_durations_and_expressions_are_read() -> None:
    text = with_stage('slurm: {time: 06:00:00, nodes: "{{ 2 * 2 }}", signal_before: 2m, cpus_per_task: 0x10}')
    slurm = load_sweep_text(text, "s.yaml").spec.stages["pretrain"].slurm
    assert (slurm.time, slurm.nodes, slurm.signal_before, slurm.cpus_per_task) == (
        21600,
        "{{ 2 * 2 }}",
        120,
        16,
    )


@pytest.mark.parametrize("mem", ["64", "64G", "64GB", "64g", "0", "512M", "1T"])
def test_memory_as_slurm_takes_it(mem: str) -> None:
    assert (
        load_sweep_text(with_stage(f"slurm: {{mem: '{mem}'}}"), "s.yaml").spec.stages["pretrain"].slurm.mem
        == mem
    )
