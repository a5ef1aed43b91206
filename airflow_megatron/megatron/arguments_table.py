"""Make the committed table of Megatron's arguments from dumps of its parsers.

A dump is one release's argparse parser as JSON: ``{"release": TAG, "arguments": [{"flags", "dest", "group",
"action", "type", "nargs", "choices", "default", "required"}, …]}``, in the parser's order. The table holds
each distinct argument once and, per release, which of them it has. To make it again::

    python -m airflow_megatron.megatron.arguments_table DUMP.json …
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

from airflow_megatron.megatron.arguments import TABLE_FILE

_ENUM_MEMBER = re.compile(r"<\w+\.(\w+): .*>")
_COLUMNS = ("flags", "dest", "group", "action", "type", "nargs", "choices", "default", "required")


def make_table(dumps: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the dumps of several releases.

    :param dumps: one dump per release.
    :returns: ``{"columns", "releases": {tag: [index, …]}, "arguments": [row, …]}``.
    """
    rows: dict[str, int] = {}
    releases: dict[str, list[int]] = {}
    for dump in sorted(dumps, key=_release_order):
        indices = []
        for argument in dump["arguments"]:
            row = json.dumps([_cell(argument, column) for column in _COLUMNS], separators=(",", ":"))
            indices.append(rows.setdefault(row, len(rows)))
        releases[dump["release"]] = indices
    return {"columns": list(_COLUMNS), "releases": releases, "arguments": [json.loads(row) for row in rows]}


def table_text(table: dict[str, Any]) -> str:
    """Write a table as JSON, one argument a line, so that a new release reads as a diff.

    :param table: what :func:`make_table` returns.
    """
    lines = ["{", f'"columns": {json.dumps(table["columns"])},', '"releases": {']
    releases = [
        f'"{name}": {json.dumps(indices, separators=(",", ":"))}'
        for name, indices in table["releases"].items()
    ]
    lines += [",\n".join(releases), "},", '"arguments": [']
    rows = [json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in table["arguments"]]
    lines += [",\n".join(rows), "]", "}", ""]
    return "\n".join(lines)


def write_table(table: dict[str, Any], path: Path) -> None:
    """Write a table file (see :func:`table_text`).

    :param table: what :func:`make_table` returns.
    :param path: the file to write.
    """
    path.write_text(table_text(table), encoding="utf-8")


def _cell(argument: dict[str, Any], column: str) -> Any:
    value = argument[column]
    if column == "choices" and value is not None:
        if argument["dest"] == "exit_signal":  # an enum of signals is written with numbers, but read by name
            return [signal.Signals(number).name for number in value]
        return [_enum_name(choice) for choice in value if choice is not None]
    return _enum_name(value) if column == "default" else value


def _enum_name(value: Any) -> Any:
    match = _ENUM_MEMBER.fullmatch(value) if isinstance(value, str) else None
    return match.group(1) if match else value


def _release_order(dump: dict[str, Any]) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", dump["release"])]


def main(paths: list[str]) -> int:
    """Write :data:`~airflow_megatron.megatron.arguments.TABLE_FILE` from the dumps at ``paths``."""
    if not paths:
        print("usage: python -m airflow_megatron.megatron.arguments_table DUMP.json …", file=sys.stderr)
        return 2
    write_table(
        make_table([json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]), TABLE_FILE
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
