"""Record which command lines a release of Megatron-LM accepts, and print those on which the rules differ.

    make record RELEASE=core_v0.18.0 CHECKOUT=DIRECTORY

Reads the checkout's parser into the table of arguments (``airflow_megatron/megatron/arguments/arguments.json``), checks
generated command lines with the checkout's own code, and writes them with the verdicts to
``tests/fixtures/megatron_commands/RELEASE.jsonl``, which a test compares with the rules. The exit status is 1 if a rule
differs; rules that depend on the release are in ``airflow_megatron/megatron/validation/upstream_rules``.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
from pathlib import Path
from typing import Any

from command_lines import judged, mutated
from upstream import release_of
from upstream_answers import upstream_answers

from airflow_megatron.megatron.arguments import tables
from airflow_megatron.megatron.arguments.checkout import CheckoutError, dump_checkout
from airflow_megatron.megatron.arguments.table_writer import table_text, with_release

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "megatron_commands"
LINES = 300
SEED = 16


def record_arguments(release: str, checkout: Path, table_file: Path) -> str:
    """Read a checkout's parser into the table of arguments.

    :returns: how many arguments it has, and how many of them no release had before
    """
    table = json.loads(table_file.read_text(encoding="utf-8"))
    dump = dump_checkout(checkout, release)
    for note in dump["notes"]:
        print(f"note: {note}")
    merged = with_release(table, dump)
    table_file.write_text(table_text(merged), encoding="utf-8")
    new = len(merged["arguments"]) - len(table["arguments"])
    return f"{len(dump['arguments'])} arguments, {new} that no table had"


def record_verdicts(release: str, checkout: Path, recordings: Path) -> list[dict[str, Any]]:
    """Check generated command lines with a checkout, and write its verdicts.

    :returns: the lines with their verdicts
    """
    chance = random.Random(SEED)
    lines = [mutated(chance, release) for _ in range(LINES)]
    answers = upstream_answers(lines, checkout, release)
    recorded = [{**line, **answer} for line, answer in zip(lines, answers, strict=True)]
    text = "".join(json.dumps(line) + "\n" for line in recorded)
    (recordings / f"{release}.jsonl").write_text(text, encoding="utf-8")
    return recorded


def differences(release: str, recorded: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the lines on which the rules differ from upstream, grouped by the two messages."""
    found: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for line in recorded:
        problems = judged(line, release)
        if bool(problems) is not line["ok"]:
            continue
        if problems:
            found[f"only the rules refuse it: {problems[0].rule}: {problems[0].message}"].append(line)
        else:
            found[f"only upstream refuses it: {line['message']} ({line['source']})"].append(line)
    return found


def main() -> int:
    """Record a release; return 1 if the rules differ, 2 if it cannot be recorded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("release", help="its tag: core_v0.18.0")
    parser.add_argument("checkout", type=Path, help="folder of the release")
    given = parser.parse_args()
    release, checkout = given.release, given.checkout.resolve()
    found = release_of(checkout)
    if found != release:
        print(f"{checkout} holds {found or 'no Megatron-LM'}, not {release}", file=sys.stderr)
        return 2
    try:
        print(f"{release}: {record_arguments(release, checkout, tables.TABLE_FILE)}")
        recorded = record_verdicts(release, checkout, RECORDINGS)
    except (CheckoutError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    taken = sum(line["ok"] for line in recorded)
    print(f"{release}: upstream accepts {taken} of {len(recorded)} command lines")
    different = differences(release, recorded)
    for text, lines in different.items():
        print(f"  {len(lines)} × {text}\n    {' '.join(lines[0]['argv'])}")
    count = sum(map(len, different.values()))
    print(f"{release}: the rules differ on {count} of {len(recorded)} command lines")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
