"""Harmful specs: each causes only an error for itself, or only its own DAGs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

GOOD = "name: good\npoint: p\nstages: {a: {kind: command, command: [x]}}\n"
"""A spec that each of them lies beside."""


def spec(stages: str = "{a: {kind: command, command: [x]}}", **keys: str) -> str:
    """Return a spec with the stages and keys given as YAML."""
    lines = {"name": "bad", "point": "p", **keys}
    return "".join(f"{key}: {value}\n" for key, value in lines.items() if value) + f"stages: {stages}\n"


def command_stage(name: str, more: str = "") -> str:
    return f"{name}: {{kind: command, command: [x]{more}}}"


def reserved_names() -> Iterator[tuple[str, str, str]]:
    """Yield (name, spec, part of the message) of stages with reserved names of Airflow or of the DAGs."""
    for name in ("plan", "arrays", "launch", "wait", "report", "cancel_left", "resolve", "return_value"):
        yield (
            f"shared {name}",
            spec(f"{{{command_stage(name, ', scope: sweep')}}}"),
            f"cannot be named '{name}'",
        )
    for name in ("resolve", "cancel_left", "return_value"):
        yield f"point {name}", spec(f"{{{command_stage(name)}}}"), f"cannot be named '{name}'"
        yield f"train {name}", spec(f"{{{name}: {{kind: train}}}}"), f"cannot be named '{name}'"
    for kind, name in itertools.product(
        ("command", "convert"), ("submit", "watch", "await_checkpoint", "await_log", "await_start")
    ):
        own = "command: [x]" if kind == "command" else "env: {}"
        stages = f"{{pretrain: {{kind: train}}, {name}: {{kind: {kind}, parent: pretrain, {own}}}}}"
        yield f"{kind} {name} below a training", spec(stages), f"cannot be named '{name}'"


def unusual_names() -> Iterator[tuple[str, str, str]]:
    """Yield names, tags and values that Airflow's keys cannot represent."""
    for length in (101, 150, 5000):
        yield f"tag of {length}", spec(tags=f"[{'t' * length}]"), f"a tag of {length} characters"
    for tag in ("''", "' '", '"\\t"'):
        yield f"tag {tag}", spec(tags=f"[{tag}]"), "an empty tag"
    yield "tags", spec(tags=str([f"t{number}" for number in range(51)])), "more than 50 tags"
    yield "description", spec(description="d" * 10_001), "a description of 10001 characters"
    for length in (101, 300, 10_000):
        stages = f"{{a: {{kind: command, command: [x], for_each: {{v: [{'v' * length}]}}}}}}"
        yield f"for_each value of {length}", spec(stages), f"a for_each value of {length} characters"
    for length in (101, 250, 10_000):
        yield f"name of {length}", spec(name="n" * length), "name is 'nnn"
        yield f"stage of {length}", spec(f"{{{command_stage('s' * length)}}}"), ""
    for name in ("a b", "a.b", "é", "'-a'", "''", "'a/b'", "'../x'", "'a\\nb'", '"a\\0b"', "'{{ x }}'"):
        yield f"name {name}", spec(name=name), ""
        yield f"stage {name}", spec(f"{{{command_stage(name)}}}"), ""
    fan = f"{{t: {{kind: train, for_each: {{v: [{'v' * 100}, x]}}}}, "
    fan += f"u: {{kind: train, parent: t, for_each: {{v: [{'w' * 90}, {'z' * 90}]}}}}, "
    fan += f"w: {{kind: train, parent: u, for_each: {{v: [{'w' * 90}]}}}}}}"
    yield "names of branches added up", spec(fan), "has a name of"


def too_many() -> Iterator[tuple[str, str, str]]:
    """Yield stages whose number explodes."""
    for stages, values in ((6, 8), (3, 20), (2, 60), (9, 3)):
        tree = ", ".join(
            f"s{number}: {{kind: train, {f'parent: s{number - 1}, ' * bool(number)}"
            f"for_each: {{v{number}: {list(range(values))}}}}}"
            for number in range(stages)
        )
        yield f"{stages} stages of {values}", spec(f"{{{tree}}}"), "more than 500 stages"
    values = ", ".join(f"v{number}" for number in range(20_000))
    yield (
        "for_each of 20,000",
        spec(f"{{a: {{kind: train, for_each: {{v: [{values}]}}}}}}"),
        "more than 500 stages",
    )
    many = ", ".join(command_stage(f"s{number}") for number in range(501))
    yield "501 stages", spec(f"{{{many}}}"), "more than 500 stages"


def numbers() -> Iterator[tuple[str, str, str]]:
    """Yield numbers that cannot be shown, stored or computed with."""
    for digits in (400, 5_000, 60_000, 1_000_000):
        for key in ("max_active_points", "max_jobs", "poll_interval"):
            yield f"{key} of {digits} digits", spec(**{key: "9" * digits}), ""
        yield f"hexadecimal tag of {digits} digits", spec(tags=f"[0x{'f' * digits}]"), ""
        yield f"time of {digits} digits", spec(slurm=f"{{time: '{'9' * digits}x'}}"), "is not a duration"
        yield (
            f"clock of {digits} digits",
            spec(slurm=f"{{time: '{'9' * digits}-1:00:00'}}"),
            "is not a duration",
        )
    for key, value in itertools.product(
        ("max_active_points", "max_jobs", "poll_interval"),
        ("99999999999999999999", ".inf", ".nan", "-1", "0", "1e400"),
    ):
        yield f"{key}: {value}", spec(**{key: value}), key
    for value in ("9" * 60_000 + "h", "1h" * 30_000 + "x", " " * 60_000 + "x", "1 " * 30_000, "1." * 30_000):
        yield f"time {value[:6]}… of {len(value)}", spec(slurm=f"{{time: '{value}'}}"), "is not a duration"


def shapes() -> Iterator[tuple[str, str, str]]:
    """Yield documents that are not specs, or one of an odd shape."""
    for what, text in (
        ("empty", ""),
        ("a list", "[]"),
        ("a number", "1"),
        ("deep", "[" * 5_000),
        ("deep flow", "a: " + "[" * 60 + "]" * 60),
        ("deep mapping", "{a: " * 5_000),
        ("an alias of itself", "a: &a [*a]"),
        (
            "a bomb of aliases",
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
            ),
        ),
        ("a Python object", "!!python/object/apply:os.system [true]"),
        ("two documents", "a: 1\n---\nb: 2"),
        ("a NUL", spec(description='"a\\0b"')),
        ("a lone surrogate", spec(description='"\\ud800"')),
        ("a key twice", spec() + "name: other\n"),
        ("extends itself", spec(extends="bad.yaml")),
        ("extends a device", spec(extends="/dev/zero")),
        ("extends a folder", spec(extends=".")),
        ("extends nothing", spec(extends="nothing.yaml")),
        ("no such cluster", spec(cluster="nowhere")),
        ("no such trainer", spec(trainer="x")),
        ("no such release", spec(release="core_v99")),
        ("a cycle of stages", spec("{a: {kind: train, parent: b}, b: {kind: train, parent: a}}")),
        ("no such parent", spec("{a: {kind: train, parent: b}}")),
    ):
        yield what, text, ""


def notifiers() -> Iterator[tuple[str, str, str]]:
    """Yield notifiers that the operator has not permitted; none of their modules may be imported."""
    for path in (
        *(
            "venv.__main__.X",
            "this.X",
            "antigravity.X",
            "idlelib.__main__.X",
            "airflow.__main__.X",
            "os.system",
        ),
        *("subprocess.Popen", "builtins.exec", "airflow.sdk.BaseNotifier", "site.X", "pip.__main__.X"),
        *("ensurepip.__main__.X", "json.tool.X", "turtledemo.__main__.X", "lib2to3.__main__.X"),
        *("airflow.providers.smtp.notifications.smtp.SmtpNotifier", "airflow_megatron.cli.app.main"),
    ):
        yield (
            f"notifier {path}",
            spec(notify=f"[{{notifier: {path}}}]"),
            "is not allowed in specs on this Airflow",
        )


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield undefined names and failing expressions, in every place that is evaluated."""
    for name in (
        "undefined_name",
        "lrr",
        "stages.nothing.run_dir",
        "1/0",
        "'a' + 1",
        "[][5]",
        "env.HOME",
        "self",
    ):
        expression = "{{ " + name + " }}"
        yield f"params {name}", spec(params=f'{{x: "{expression}"}}', point='"p{{ x }}"'), ".yaml:"
        yield f"command {name}", spec(f'{{a: {{kind: command, command: ["{expression}"]}}}}'), ".yaml:"
        yield f"point {name}", spec(point=f'"{expression}"'), ".yaml:"
        yield f"env {name}", spec(env=f'{{X: "{expression}"}}'), ".yaml:"


def long_words() -> Iterator[tuple[str, str, str]]:
    """Yield specs with an invalid word that is too long for a list of errors."""
    length = 1_000_000
    word = "w" * length
    for key in (
        "cluster",
        "trainer",
        "release",
        "extends",
        word,
        "max_jobs",
        "tags",
        "stages",
        "restart",
        "health",
    ):
        yield f"{key[:9]} of {length}", spec(**{key: word}) if key != "stages" else spec(word), ""
    yield f"stage kind of {length}", spec(f"{{a: {{kind: {word}}}}}"), ""
    yield f"stage parent of {length}", spec(f"{{a: {{kind: train, parent: {word}}}}}"), ""
    yield f"expression of {length}", spec(point=f'"{{{{ {word} }}}}"'), ""
    yield f"sum of {length}", spec(point='"{{ ' + "1+" * (length // 2) + ' }}"'), ""
    yield f"notifier of {length}", spec(notify=f"[{{notifier: {word}}}]"), ""
    yield f"argument of {length}", spec(f"{{a: {{kind: train, megatron: {{{word}: 1}}}}}}"), ""
    yield (
        f"pattern of {length}",
        spec(f"{{a: {{kind: command, command: [x], events: [{{log: '({word}', do: notify}}]}}}}"),
        "",
    )
    oellm = "job: {name: '@'}\nbackend: {class_name: NullBackend, command: [x]}\n"
    oellm += "slurm: {sbatch: {}, env: {}}\nsweep: {}\n"
    for text in (
        '${oc.eval:"' + "1+" * (length // 2) + '"}',
        "${" + word + "}",
        "${oc.eval:" + word + "}",
    ):
        yield f"oellm {text[:12]} of {length}", oellm.replace("@", text), ""


def endless() -> Iterator[tuple[str, str]]:
    """Yield specs that would exceed the limits of time or memory."""
    yield "an expression", spec(point="\"{{ 'x' * 10**9 }}\"")
    yield "patterns", spec(point="\"{{ range(10**7) | map('string') | join }}\"")
    axes = ", ".join(f"a{number}: {list(range(30))}" for number in range(4))
    yield "points", spec(sweep=f"{{params: {{{axes}}}}}", point='"p{{ a0 }}_{{ a1 }}_{{ a2 }}_{{ a3 }}"')
