"""The scripts and styles of the report's page: those of the live page as one text, so that no other file is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import airflow_megatron
from airflow_megatron.errors import AirflowMegatronError

_LIVE: Final = Path(airflow_megatron.__file__).parent / "ui" / "static"
_OWN: Final = Path(__file__).parent
_START: Final = "report.js"
_IMPORT: Final = re.compile(r'^import \{ ([\w, ]+) \} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) (\w+))", re.MULTILINE)
_LEFT: Final = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


class PageScriptError(AirflowMegatronError, ValueError):
    """A script of the page has a form that cannot be combined with the others."""


def page_script() -> str:
    """Return the page's modules as one script, because a page in a file cannot import modules.

    :raises PageScriptError: if a module imports or exports in another form than names in braces
    """
    done: dict[str, str] = {}
    _add(_START, done)
    script = "'use strict';\nconst modules = {};\n" + "".join(done.values())
    return script.replace("</", "<\\/").replace("<!--", "<\\!--")


def _add(name: str, done: dict[str, str]) -> None:
    """Append a module after those that it imports, as a function that stores its exports in ``modules``."""
    if name in done:
        return
    path = _OWN / name if (_OWN / name).is_file() else _LIVE / name
    text = path.read_text(encoding="utf-8")
    for _, imported in _IMPORT.findall(text):
        _add(imported, done)
    names = _EXPORT.findall(text)
    body = _EXPORT.sub("", _IMPORT.sub(r'const { \1 } = modules["\2"];\n', text))
    if left := _LEFT.search(body):
        raise PageScriptError(f"{path}: {left.group()!r} cannot be put into the report")
    done[name] = f'{{\n{body}modules["{name}"] = {{ {", ".join(names)} }};\n}}\n'


def page_style() -> str:
    """Return the styles of the live page, of its charts if installed, and of the report."""
    sheets = [_LIVE / "page.css", _LIVE / "vendor" / "uplot" / "uPlot.min.css", _OWN / "report.css"]
    return "\n".join(path.read_text(encoding="utf-8") for path in sheets if path.is_file()).replace(
        "</", "<\\/"
    )


def chart_library() -> str:
    """Return the chart library; empty in a checkout without it, where the page shows pictures."""
    path = _LIVE / "vendor" / "uplot" / "uPlot.iife.min.js"
    return path.read_text(encoding="utf-8").replace("</script", "<\\/script") if path.is_file() else ""
