"""Values of Airflow's trigger form, of a run's id and note, and of a spec's description are never templates."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from processor_limits import processor_limit

from airflow_megatron.dag_factory.building import build_dags
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.point_choice import choose_points
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import DAG

SPEC = "name: s\npoint: p{{ a }}_{{ b }}\nsweep: {params: {a: @, b: @}}\nstages: {x: {kind: command, command: [x]}}\n"
SECRET = "k3ep-th1s-0ut-of-s1ght"


def dags(**keys: str) -> list[DAG]:
    more = "".join(f"{key}: {value}\n" for key, value in keys.items())
    sweep = load_sweep_text(
        f"name: s\npoint: p\n{more}stages: {{x: {{kind: command, command: [x]}}}}\n", "s.yaml"
    )
    return build_dags(SweepOutline.of(sweep))


TEXTS = (
    *("{{ conn.x.password }}", "{{ var.value.x }}", "{{ 1+1 }}", "{{ ti.xcom_pull('x') }}", "{{ macros }}"),
    *("{% raw %}", "{# x #}", "{%", "}}", "{{", "[1, 2]", "1", "None", "True", "{'a': 1}", "1_000", "0x10"),
    *(
        "'x'",
        '"x"',
        "a'b\"c",
        "'''",
        "\\",
        "\\n",
        "\\x41",
        "\\N{BULLET}",
        "b'x'",
        "f'{1}'",
        "...",
        "1e400",
        "()",
    ),
    *("</script>", "<img src=x onerror=alert(1)>", "$(id)", "`id`", "; id", "| id", "\u2028", "\x00", "a\nb"),
    *(" S_* ", "x.sql", "/etc/passwd", "{{ '/etc/passwd' }}.sh", "😀*", "\ud800", "(" * 5000, "[" * 20_000),
    *("__import__('os').system('id')", "-" * 10_000 + "1", "x" * 20_000),
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_choice_of_points_reaches_the_task_as_it_was_written(text: str) -> None:
    task: Any = copy.copy(dags()[0].get_task("plan"))
    params = {"points": text, "limit": None, "cluster": "local", "dry_run": False, "fresh_start": False}
    context: Any = {"params": params, "dag_run": SimpleNamespace(conf=params)}
    task.render_template_fields(context)
    assert task.points == text
    assert (task.limit, task.cluster) == (0, "local")


@pytest.mark.parametrize("text", TEXTS)
def test_values_of_a_points_run_are_not_templates(text: str) -> None:
    submit: Any = copy.copy(dags()[1].get_task("x.submit"))
    job = {"name": text, "command": [text]}
    context: Any = {
        "params": {},
        "ti": SimpleNamespace(xcom_pull=lambda task_ids, key=None: job),
        "dag_run": SimpleNamespace(conf={"fresh_start": [text], "submitted": {"x": [text]}}),
        "planned_job": lambda source, stage: job,
    }
    submit.render_template_fields(context)
    assert submit.fresh_start == [text]
    assert submit.job == job


CHOICES: dict[str, str] = {
    "stars": "*" * 19_000,
    "stars and letters": "*a" * 9_000 + "b",
    "question marks": "?" * 20_000,
    "brackets": "[" * 20_000,
    "negated brackets": "[!" * 9_000,
    "ranges": "[a-" * 6_000,
    "names": "p," * 10_000,
    "patterns": "*p*_*_*_*_*_*_*z," * 1_100,
    "many patterns": ",".join(f"*{number}*" for number in range(3_000)),
    "letters": "x" * 20_000,
    **{
        f"expression {number}": f"{{{{ {text} }}}}"
        for number, text in enumerate(
            (
                *(
                    "'x' * 10**9",
                    "(a|string) * 10**8",
                    "9**9**9**99",
                    "range(10**9)|list|length",
                    "[a] * 10**9",
                ),
                *(
                    "''.__class__.__mro__",
                    "point.__class__",
                    "a.__add__",
                    "(1).__class__",
                    "a|attr('__class__')",
                ),
                *(
                    "[a]|map(attribute='__class__')|list",
                    "'{0.__class__}'.format(a)",
                    "'%s'|format(a.__class__)",
                ),
                *(
                    "lipsum.__globals__",
                    "cycler.__init__.__globals__",
                    "joiner",
                    "namespace()",
                    "self",
                    "caller",
                ),
                *(
                    "env.HOME",
                    "conn.x",
                    "var.value.x",
                    "ti",
                    "dag_run.conf",
                    "macros",
                    "params.points",
                    "context",
                ),
                *(
                    "a/0",
                    "a[10**30]",
                    "'" + "(" * 9_000 + "'",
                    "(" * 5_000 + "1" + ")" * 5_000,
                    "not " * 4_000 + "1",
                ),
                *(
                    "1" + "+1" * 9_000,
                    "'" + "a" * 19_000 + "'|wordwrap(1)",
                    "a|tojson|urlize",
                    "'a' ~ " * 3_000 + "a",
                ),
                *(
                    "[[a]*9000]*9000",
                    "dict(x=a)|pprint",
                    "a.real.real.real",
                    "point|replace('', 'x' * 90000)",
                ),
            )
        )
    },
    "loop": "{% for i in range(10**9) %}{% endfor %}{{ a }}",
    "import": "{% import 'x' as y %}{{ a }}",
    "include": "{% include '/etc/passwd' %}{{ a }}",
    "macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "set": "{% set x = a %}{{ x }}",
}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_a_choice_of_points_costs_little_and_shows_nothing(choice: str) -> None:
    sweep = load_sweep_text(SPEC.replace("@", str(list(range(20)))), "s.yaml")
    assert len(sweep.points) == 400
    with processor_limit(0.5):
        try:
            text = " ".join(point.name for point in choose_points(sweep, choice))
        except SpecError as error:
            text = str(error)
    assert len(text) < 4_000
    assert "root:x:" not in text


def test_names_and_usual_patterns_choose_points() -> None:
    sweep = load_sweep_text(SPEC.replace("@", "[1, 2, 3]"), "s.yaml")

    def chosen(choice: str) -> list[str]:
        return [point.name for point in choose_points(sweep, choice)]

    assert chosen("p1_2, p3_3") == ["p1_2", "p3_3"]
    assert chosen("p1_*,p?_3") == ["p1_1", "p1_2", "p1_3", "p2_3", "p3_3"]
    assert chosen("p[12]_[!23]") == ["p1_1", "p2_1"]
    assert chosen(",".join(f"p{one % 3 + 1}_1" for one in range(5_000))) == ["p1_1", "p2_1", "p3_1"]


PROFILE = "ssh_conn_id: x\nrun_root: /runs\npython: python\nmegatron_lm_dir: /m\n"
PROFILE_EXPRESSIONS = (
    *(
        "env.AIRFLOW__CORE__FERNET_KEY",
        "env['SECRET_TOKEN']",
        "env.get('SECRET_TOKEN')",
        "env|string",
        "env|tojson",
    ),
    *(
        "env.values()|list",
        "env.items()|list",
        "env.__class__",
        "env.copy()",
        "project_root.__class__.__mro__",
    ),
    *(
        "''.__class__",
        "lipsum.__globals__.os.environ",
        "cycler.__init__.__globals__.os.environ",
        "self._TemplateReference__context",
    ),
    *(
        "'{0.__class__}'.format(env)",
        "'%s' % env",
        "'x' * 10**9",
        "range(10**9)|list",
        "9**9**9**99",
        "[env]*10**8",
    ),
    *(
        "conn.x",
        "var.value.x",
        "local_dir|attr('__class__')",
        "job_programs.join('x' * 10**6)",
        "open('/etc/passwd')",
    ),
)


@pytest.mark.parametrize("expression", PROFILE_EXPRESSIONS)
@pytest.mark.parametrize("key", ["description", "run_root", "python", "env"])
def test_expressions_of_profiles(
    expression: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AIRFLOW__CORE__FERNET_KEY", "SECRET_TOKEN", "OTHER"):
        monkeypatch.setenv(name, SECRET)
    value = f'"{{{{ {expression} }}}}"'
    line = f"env: {{X: {value}}}" if key == "env" else f"{key}: {value}"
    kept = "".join(one for one in PROFILE.splitlines(keepends=True) if not one.startswith(f"{key}:"))
    (tmp_path / "mine.yaml").write_text(f"{kept}{line}\n")
    with processor_limit(2):
        try:
            text = repr(load_cluster("mine", tmp_path))
        except SpecError as error:
            text = str(error)
    assert SECRET not in text
    assert "root:x:" not in text
    assert len(text) < 10_000


RUN_IDS = (
    *(
        "..",
        ".",
        "",
        "/",
        "../x",
        "a/../../x",
        "/etc/passwd",
        "~",
        "x\0y",
        "x\ny",
        "_",
        "__",
        "%2e%2e",
        "%",
        "x%2fy",
    ),
    *(
        "a" * 250,
        "é" * 250,
        "😀" * 250,
        "manual__2026-01-01T00:00:00+00:00",
        "a b",
        "*",
        "[a]",
        "-rf",
        "$(id)",
        "\\",
    ),
)


@pytest.mark.parametrize("run", RUN_IDS)
@pytest.mark.parametrize("dag_id", ["s", "s.point"])
def test_records_of_runs_stay_in_their_folder(run: str, dag_id: str, tmp_path: Path) -> None:
    store = PinStore(tmp_path / "pins")
    store.set_newest(dag_id, run, "0" * 64)
    assert store.newest(dag_id, run) == "0" * 64
    assert store.runs(dag_id) == [run]
    assert [path.name for path in tmp_path.iterdir()] == ["pins"]
    depths = {len(path.relative_to(tmp_path / "pins" / "runs").parts) for path in tmp_path.rglob("runs/**/*")}
    assert depths == {1, 2}
    for other in RUN_IDS:
        assert other == run or store.newest(dag_id, other) is None
    store.forget(dag_id, run)
    assert store.runs(dag_id) == []


IMAGES = (
    *(
        "![x](https://evil.example/pixel)",
        "![](/auth/logout)",
        "![x][y]\n\n[y]: /auth/logout",
        "![y]\n\n[y]: //evil",
    ),
    *(
        "text ![](x) text ![](y)",
        "!![](x)",
        "\\![](x)",
        "\\\\![](x)",
        "![![](x)](y)",
        "[![](x)](y)",
        "# ![](x)",
    ),
    *(
        "- ![](x)",
        "> ![](x)",
        "| ![](x) |\n|---|",
        "*![](x)*",
        "!\u200b[](x) ![](x)",
        "![a\nb](x)",
        "![](<x y>)",
    ),
    *("![](data:text/html,x)", "![](javascript:alert(1))", "~~![](x)~~", "1. ![](x)"),
)


@pytest.mark.parametrize("text", IMAGES)
def test_pages_of_dags_load_nothing_that_a_description_names(text: str) -> None:
    """Airflow's page would send the request with the login of whoever looks: ``/auth/logout`` ends it."""
    for dag in dags(description=repr(text).replace("'", '"')):
        assert dag.doc_md is not None
        assert "![" not in dag.doc_md
        assert not dag.doc_md.endswith(".md")  # Airflow would read the file
