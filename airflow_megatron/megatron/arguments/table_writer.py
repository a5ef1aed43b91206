"""Make the committed table of Megatron's arguments from dumps of its parsers.

A dump is one release's argparse parser as JSON: ``{"release": TAG, "arguments": [{"flags", "dest", "group",
"action", "type", "nargs", "choices", "default", "required"}, …], "programs": {…}}``, in the parser's order (see
:func:`airflow_megatron.megatron.arguments.checkout.dump_checkout`). The table contains each distinct argument once
    and, per release, the indices of its arguments. To create it again, from checkouts whose folders are named as their
    releases::

    python -m airflow_megatron.megatron.arguments.table_writer CHECKOUT …
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

from airflow_megatron.megatron.arguments.tables import TABLE_FILE

_ENUM_MEMBER = re.compile(r"<\w+\.(\w+): .*>")
_COLUMNS = ("flags", "dest", "group", "action", "type", "nargs", "choices", "default", "required")


def make_table(dumps: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the dumps of several releases.

    :param dumps: one dump per release.
    :returns: ``{"columns", "releases": {tag: [index, …]}, "programs": {script: {tag: {"defaults", "adds": [index,
        …], "packages": {package: [index, …]}}}}, "arguments": [row, …]}``.
    """
    rows: dict[str, int] = {}
    releases: dict[str, list[int]] = {}
    programs: dict[str, dict[str, Any]] = {}

    def indices(arguments: list[dict[str, Any]]) -> list[int]:
        texts = (json.dumps(_row(argument), separators=(",", ":")) for argument in arguments)
        return [rows.setdefault(text, len(rows)) for text in texts]

    for dump in sorted(dumps, key=_release_order):
        releases[dump["release"]] = indices(dump["arguments"])
        for script, own in dump.get("programs", {}).items():
            packages = {package: indices(more) for package, more in own["packages"].items()}
            adds = {"defaults": own["defaults"], "adds": indices(own["adds"]), "packages": packages}
            programs.setdefault(script, {})[dump["release"]] = adds
    return {
        "columns": list(_COLUMNS),
        "releases": releases,
        "programs": programs,
        "arguments": [json.loads(row) for row in rows],
    }


def with_release(table: dict[str, Any], dump: dict[str, Any]) -> dict[str, Any]:
    """Return a table with a release added or replaced.

    Rows keep their positions and new rows are appended, so that a new release gives a readable diff.

    :param table: what :func:`make_table` returns
    :param dump: the dump of the release
    """
    one = make_table([dump])
    rows = [*table["arguments"]]
    places = {json.dumps(row): index for index, row in enumerate(rows)}
    moved = []
    for row in one["arguments"]:
        text = json.dumps(row)
        if text not in places:
            places[text] = len(rows)
            rows.append(row)
        moved.append(places[text])

    def of(indices: list[int]) -> list[int]:
        return [moved[index] for index in indices]

    name: str = dump["release"]
    releases = {**table["releases"], name: of(one["releases"][name])}
    programs = {script: dict(own) for script, own in table["programs"].items()}
    for script, own in one["programs"].items():
        adds = own[name]
        packages = {package: of(more) for package, more in adds["packages"].items()}
        programs.setdefault(script, {})[name] = {**adds, "adds": of(adds["adds"]), "packages": packages}
    return {
        "columns": table["columns"],
        "releases": _in_order(releases),
        "programs": {script: _in_order(own) for script, own in programs.items()},
        "arguments": rows,
    }


def table_text(table: dict[str, Any]) -> str:
    """Return a table as JSON with one argument per line, so that a new release gives a readable diff.

    :param table: what :func:`make_table` returns.
    """
    lines = ["{", f'"columns": {json.dumps(table["columns"])},', '"releases": {']
    releases = [
        f'"{name}": {json.dumps(indices, separators=(",", ":"))}'
        for name, indices in table["releases"].items()
    ]
    lines += [",\n".join(releases), "},"]
    if table["programs"]:
        programs = []
        for script, own in table["programs"].items():
            rows = [f'"{name}": {json.dumps(adds, separators=(",", ":"))}' for name, adds in own.items()]
            programs.append(f'"{script}": {{\n' + ",\n".join(rows) + "\n}")
        lines += ['"programs": {', ",\n".join(programs), "},"]
    lines += ['"arguments": [']
    rows = [json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in table["arguments"]]
    lines += [",\n".join(rows), "]", "}", ""]
    return "\n".join(lines)


def write_table(table: dict[str, Any], path: Path) -> None:
    """Write a table file (see :func:`table_text`).

    :param table: what :func:`make_table` returns.
    :param path: the file to write.
    """
    path.write_text(table_text(table), encoding="utf-8")


def _row(argument: dict[str, Any]) -> list[Any]:
    return [_cell(argument, column) for column in _COLUMNS]


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
    return _numbers(dump["release"])


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


def _in_order(by_release: dict[str, Any]) -> dict[str, Any]:
    return {name: by_release[name] for name in sorted(by_release, key=_numbers)}


def main(paths: list[str]) -> int:
    """Write :data:`~airflow_megatron.megatron.arguments.tables.TABLE_FILE` from the checkouts at ``paths``."""
    from airflow_megatron.megatron.arguments.checkout import dump_checkout

    if not paths:
        print("usage: python -m airflow_megatron.megatron.arguments.table_writer CHECKOUT …", file=sys.stderr)
        return 2
    write_table(make_table([dump_checkout(Path(path), Path(path).name) for path in paths]), TABLE_FILE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
