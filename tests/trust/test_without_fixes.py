"""The table of protections refers to existing source code and tests."""

from __future__ import annotations

import pytest
from without_fixes import FIXES, PACKAGE, ROOT, Fix, edited

CLASSES = {
    *(f"C{number}" for number in range(1, 5)),
    *(f"H{number}" for number in range(1, 9)),
    *(f"M{number}" for number in range(1, 8)),
    "L",
}


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: f"{fix.kind} {fix.what}")
def test_it_can_be_taken_out(fix: Fix) -> None:
    text = (ROOT / PACKAGE / fix.file).read_text(encoding="utf-8")
    without = edited(fix, text)
    assert without != text
    if fix.file.endswith(".py"):
        compile(without, fix.file, "exec")
    for test in fix.tests:
        file, _, name = test.partition("::")
        assert f" {name.rpartition('::')[2]}" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_every_class_has_one() -> None:
    assert {fix.kind for fix in FIXES} == CLASSES
