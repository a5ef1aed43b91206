"""``notify:`` of a spec can only report on jobs, with classes and connections that the operator permits."""

from __future__ import annotations

import itertools
import json
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from airflow.sdk import DAG, BaseNotifier
from airflow.sdk.execution_time.context import set_current_context

from airflow_megatron.checks.sweeps.notifiers import notifier_problems
from airflow_megatron.notices.notice import Notice
from airflow_megatron.notices.notice_files import NoticePathError, append_line
from airflow_megatron.notices.notifier_classes import NotifierError, notifier_class, rendered_arguments
from airflow_megatron.notifications.json_lines import JsonLinesNotifier
from airflow_megatron.notifications.notices import NoticeCallback, send
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.expressions import bounds
from airflow_megatron.spec.model.schema import NotifySection
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

OWN = "airflow_megatron.notifications.json_lines.JsonLinesNotifier"
SMTP = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"
SENT: list[dict[str, Any]] = []
SECRET = "do-not-tell"


class TextNotifier(BaseNotifier):
    """Records its arguments and received notices."""

    template_fields = ("text", "other")

    def __init__(
        self, text: Any = "", other: Any = None, chat_conn_id: str = "chat", files: Any = None
    ) -> None:
        super().__init__()
        self.text, self.other, self.chat_conn_id = text, other, chat_conn_id

    def notify(self, context: Any) -> None:
        SENT.append({"text": self.text, "other": self.other, "notice": context["notice"]})


TEXTS = f"{__name__}.TextNotifier"


@pytest.fixture(autouse=True)
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that permits one class and one connection, with secrets."""
    SENT.clear()
    monkeypatch.setenv("AIRFLOW_MEGATRON_NOTICES", str(tmp_path / "notices"))
    monkeypatch.setenv("AIRFLOW_MEGATRON_NOTIFIERS", f" {TEXTS} ,{SMTP}")
    monkeypatch.setenv("AIRFLOW_MEGATRON_NOTIFIER_CONNECTIONS", "our_chat, other_chat")
    monkeypatch.setenv("AIRFLOW_CONN_SLURM_LOCAL", f"ssh://me:{SECRET}@host")
    monkeypatch.setenv("AIRFLOW_VAR_SITE_TOKEN", SECRET)
    monkeypatch.setenv("SITE_TOKEN", SECRET)


def section(path: str, /, **arguments: Any) -> NotifySection:
    return NotifySection(notifier=path, on=["failure", "retry", "report"], arguments=arguments)


def refusals(path: str, arguments: dict[str, Any]) -> list[str]:
    notify = json.dumps([{"notifier": path, "arguments": arguments}])
    text = f"name: s\npoint: p\nnotify: {notify}\nstages: {{a: {{kind: command, command: [x]}}}}\n"
    return [str(problem) for problem in notifier_problems(load_sweep_text(text, "s.yaml"))]


def context(**values: Any) -> Any:
    task = SimpleNamespace(dag_id="s.point", task_id="pretrain.watch", run_id="lr1", try_number=1)
    variables = SimpleNamespace(value=SimpleNamespace(site_token=SECRET))
    connections = SimpleNamespace(slurm_local=SimpleNamespace(password=SECRET))
    return {"ti": task, "dag": DAG("s.point"), "var": variables, "conn": connections, **values}


AIRFLOWS = (
    *(
        "conn.slurm_local.password",
        "var.value.site_token",
        "var.json.x",
        "conn.get('slurm_local')",
        "ti.run_id",
    ),
    *(
        "dag.folder",
        "dag_run.conf",
        "params",
        "macros.datetime",
        "macros.os",
        "task.dag",
        "run_id",
        "ds",
        "conf",
    ),
    *(
        "inlets",
        "task_instance.xcom_pull()",
        "context",
        "env.SITE_TOKEN",
        "os.environ",
        "config.items()",
    ),
    *(
        "cycler.__init__.__globals__.os",
        "lipsum.__globals__",
        "joiner",
        "namespace",
        "request",
        "get_flashed_messages",
    ),
)
ESCAPES = (
    *(
        "''.__class__.__mro__",
        "notice.__class__",
        "notice.items.__globals__",
        "notice['__class__']",
        "notice.keys.__self__",
    ),
    *("notice.text.__class__.__base__", "notice.text.format.__globals__", "notice.to_json", "notice.nothing"),
    *("'%s' % notice.__init__", "notice | attr('__class__')", "notice.update({'x': 1})", "[].__class__"),
)


@pytest.mark.parametrize(
    ("path", "argument"), [(OWN, "message"), (OWN, "path"), (TEXTS, "text"), (SMTP, "subject")]
)
@pytest.mark.parametrize("expression", [*AIRFLOWS, *ESCAPES])
def test_expressions_read_the_notice_only(expression: str, path: str, argument: str) -> None:
    """Each is refused when the spec is checked, and again before the notice is sent."""
    given = {"to": "a@b"} if path == SMTP else {"path": "x.jsonl"} if path == OWN else {}
    for template in ("{{ " + expression + " }}", "a {{ " + expression + " }} b"):
        arguments = {**given, argument: template}
        caught: list[Exception] = []
        try:
            rendered = rendered_arguments(path, arguments, Notice("report", "n", "r"))
        except Exception as error:
            caught.append(error)
        assert caught, rendered
        assert SECRET not in str(caught[0])
        if expression in AIRFLOWS:
            assert refusals(path, arguments)


def test_each_notice_has_its_own_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sends notices for months does not run out of steps."""
    monkeypatch.setattr(bounds, "MAX_STEPS", 20_000)
    for number in range(30):
        arguments = {"path": "x.jsonl", "message": f"{{{{ notice.text }}}} {number}"}
        rendered = rendered_arguments(OWN, arguments, Notice("report", "n", "r"))
        assert rendered["message"].endswith(f" {number}")


@pytest.mark.parametrize("depth", range(1, 6))
@pytest.mark.parametrize("shape", ["list", "mapping"])
def test_expressions_within_lists_and_mappings(depth: int, shape: str) -> None:
    value: Any = "{{ conn.slurm_local.password }}"
    for _ in range(depth):
        value = [value] if shape == "list" else {"x": value}
    assert refusals(TEXTS, {"text": value})


HOSTILE_WORDS = (
    *(
        "{{ conn.slurm_local.password }}",
        "{{ var.value.site_token }}",
        "{% raw %}",
        "{{ 7*7 }}",
        "{{",
        "{#",
        "%}",
    ),
    *(
        "${oc.env:SITE_TOKEN}",
        "{{ ti.xcom_pull() }}",
        "{{ ''.__class__ }}",
        "$(id)",
        "\x1b[2J",
        "\ud800",
        "a\0b",
    ),
)


@pytest.mark.parametrize("field", ["reason", "line", "name", "log_file", "next_action"])
@pytest.mark.parametrize("words", HOSTILE_WORDS)
def test_output_of_jobs_is_not_a_template(words: str, field: str) -> None:
    """A log line reaches a notifier unchanged, although Airflow would render it as a template."""
    notice = Notice(**{"what": "retry", "name": "n", "reason": "r", field: words})
    values = context()
    with set_current_context(values):
        send([section(TEXTS, text="{{ notice." + field + " }}", other=["{{ notice.text }}"])], notice)
    (sent,) = SENT
    assert sent["text"] == words
    assert sent["other"] == [notice.text]
    assert SECRET not in repr(sent)


def test_what_a_class_gets_by_itself() -> None:
    """Permitted classes have access to the task, like Airflow's notifiers."""
    with set_current_context(context()):
        send([section(TEXTS)], Notice("retry", "n", "r"))
    assert SENT[0]["notice"]["name"] == "n"


NOT_ALLOWED = (
    *("os.system", "subprocess.Popen", "builtins.exec", "builtins.eval", "code.InteractiveConsole", "this.X"),
    *("airflow.providers.smtp.notifications.smtp.Other", "airflow.sdk.BaseNotifier", "venv.__main__.X"),
    *("airflow_megatron.notifications.json_lines", "airflow_megatron.notifications.json_lines.BaseNotifier"),
    *(
        "airflow.providers.standard.operators.bash.BashOperator",
        f"{TEXTS}2",
        f"x.{TEXTS}",
        TEXTS.lower(),
        "a.b",
    ),
    *(
        "pdb.Pdb",
        "webbrowser.open",
        "shutil.rmtree",
        "pathlib.Path",
        "tempfile.TemporaryDirectory",
        "ctypes.CDLL",
    ),
)


@pytest.mark.parametrize("path", NOT_ALLOWED)
def test_classes_that_are_not_allowed_are_not_imported(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(sys.modules)
    (problem,) = refusals(path, {})
    assert "is not allowed in specs on this Airflow" in problem
    assert "AIRFLOW_MEGATRON_NOTIFIERS" in problem
    with pytest.raises(NotifierError):
        notifier_class(path)
    assert not {name for name in set(sys.modules) - before if name.startswith(path.partition(".")[0])}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("setting", ["", " ", ",", OWN])
def test_without_a_setting_there_is_the_projects_own(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_NOTIFIERS", setting)
    assert notifier_class(OWN) is JsonLinesNotifier
    with pytest.raises(NotifierError):
        notifier_class(TEXTS)


@pytest.mark.parametrize("name", ["our_chat", "other_chat", None])
def test_connections_that_are_allowed(name: str | None) -> None:
    assert refusals(TEXTS, {"chat_conn_id": name}) == []


@pytest.mark.parametrize(
    "value",
    ["slurm_local", "OUR_CHAT", "our_chat ", "our_chat,slurm_local", "", "{{ 'slurm' ~ '_local' }}", 3, True,
     ["our_chat"], {"a": 1}, "{{ notice.sweep }}", "our_chat\n", "our*", "."],
)  # fmt: skip
@pytest.mark.parametrize("path", [TEXTS, SMTP])
def test_connections_that_are_not(value: Any, path: str) -> None:
    argument = "chat_conn_id" if path == TEXTS else "smtp_conn_id"
    found = refusals(path, {argument: value, **({"to": "a@b"} if path == SMTP else {})})
    assert any(
        "is not a connection that notifiers of specs may use on this Airflow" in problem for problem in found
    )
    with pytest.raises(NotifierError):
        rendered_arguments(path, {argument: value}, Notice("report", "n", "r"))


@pytest.mark.parametrize(
    "argument", ["files", "template", "file", "file_path", "attachments", "directory", "config_file"]
)
def test_files_of_the_host(argument: str) -> None:
    found = refusals(SMTP, {"to": "a@b", argument: ["/etc/passwd"]})
    assert any("names a file on Airflow's machine" in problem for problem in found)


@pytest.mark.parametrize(
    "argument", ["to", "subject", "html_content", "cc", "mime_subtype", "profile", "pathology"]
)
def test_words_that_only_look_like_files(argument: str) -> None:
    assert not any("names a file" in problem for problem in refusals(SMTP, {"to": "a@b", argument: "x"}))


OUTSIDE = (
    *(
        "/etc/passwd",
        "~/.bashrc",
        "~root/x",
        "../x",
        "a/../../x",
        "a/..",
        "..",
        ".",
        "",
        "/",
        "//etc/x",
        "a/",
        "./",
    ),
    *(
        ".bashrc",
        "a/.ssh/x",
        ".ssh/authorized_keys",
        "a\0b",
        "a\nb",
        "a\x1bb",
        "/proc/self/mem",
        "/dev/null",
        "x" * 300,
    ),
    *("a/" * 20 + "b", "NOTICES/../x", "NOTICESx/y", "NOTICES", "NOTICES/", "/NOTICES/x", "NOTICES/./../x"),
)


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_lead_elsewhere(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    path = path.replace("NOTICES", str(tmp_path / "notices"))
    with pytest.raises(NoticePathError):
        append_line(path, "x")
    NoticeCallback("failure", [section(OWN, path=path)], always=True)(context())
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    if "\0" not in path:
        assert any("write path: my-sweep.jsonl" in problem for problem in refusals(OWN, {"path": path}))


@pytest.mark.parametrize("words", [path for path in OUTSIDE if "NOTICES" not in path])
def test_paths_that_jobs_make(words: str, tmp_path: Path) -> None:
    """An expression in a path may become a job's own words."""
    notice = Notice("retry", "n", "r", line=words)
    with set_current_context(context()):
        send([section(OWN, path="{{ notice.line }}")], notice)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


@pytest.mark.parametrize(
    "path", ["x.jsonl", "a/b/c.jsonl", "x", "a//b", "./a/./b", "NOTICES/a/b", "é.jsonl", "a b.jsonl", "a..b"]
)
def test_paths_below_the_folder(path: str, tmp_path: Path) -> None:
    notices = tmp_path / "notices"
    append_line(path.replace("NOTICES", str(notices)), "one")
    append_line(path.replace("NOTICES", str(notices)), "two")
    (file,) = [file for file in notices.rglob("*") if file.is_file()]
    assert file.read_text() == "one\ntwo\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert all(
        folder.stat().st_mode & 0o777 == 0o700 for folder in (notices, *notices.rglob("*")) if folder.is_dir()
    )
    assert refusals(OWN, {"path": path.replace("NOTICES", str(notices))}) == []


@pytest.mark.parametrize(
    ("place", "target"),
    itertools.product(
        ("x", "a", "a/x", "a/b", "a/b/x"), ("file", "folder", "nothing", "/etc/passwd", "/dev/null", "/tmp")
    ),
)
def test_links_are_not_followed(place: str, target: str, tmp_path: Path) -> None:
    notices, outside = tmp_path / "notices", tmp_path / "outside"
    (outside / "folder" / "b").mkdir(parents=True)
    (outside / "file").write_text("before\n")
    link = notices / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / target)
    for path in (place, f"{place}/x", f"{place}/b/x"):
        with pytest.raises((NoticePathError, OSError)):
            append_line(path, "after")
    assert (outside / "file").read_text() == "before\n"
    assert sorted(str(file.relative_to(outside)) for file in outside.rglob("*")) == [
        "file",
        "folder",
        "folder/b",
    ]


@pytest.mark.parametrize("what", ["pipe", "second name", "socket", "folder"])
def test_anything_but_a_file_with_one_name_is_refused(what: str, tmp_path: Path) -> None:
    notices = tmp_path / "notices"
    notices.mkdir()
    (tmp_path / "other").write_text("before")
    match what:
        case "pipe":
            os.mkfifo(notices / "x")
        case "second name":
            os.link(tmp_path / "other", notices / "x")
        case "socket":
            os.mknod(notices / "x", 0o140600)
        case _:
            (notices / "x").mkdir()
    with pytest.raises((NoticePathError, OSError)):
        append_line("x", "after")
    assert (tmp_path / "other").read_text() == "before"


@pytest.mark.parametrize("size", [10**6, 10**7])
def test_a_notice_that_is_too_long(size: int, tmp_path: Path) -> None:
    with pytest.raises(NoticePathError, match="at most"):
        append_line("x", "x" * (size + 1))
    assert not (tmp_path / "notices").exists()


def test_the_documented_mail_shows_the_markup_of_a_log_as_text() -> None:
    text = (project_root() / "docs" / "spec.md").read_text(encoding="utf-8")
    (section,) = yaml.safe_load(
        text[text.index("    notify:\n      - notifier: airflow.providers.smtp") :].split("\n\n")[0]
    )["notify"]
    notice = Notice("failure", "s.p.x", "in a log: </pre><img src=//x> &lt;")
    mail = rendered_arguments(SMTP, {"html_content": section["arguments"]["html_content"]}, notice)
    assert mail["html_content"] == "<pre>s.p.x: failure: in a log: &lt;/pre>&lt;img src=//x> &amp;lt;</pre>"
