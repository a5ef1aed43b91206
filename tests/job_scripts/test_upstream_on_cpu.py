"""Error messages of the starter of upstream's trainer; other tests run trainings with it on the cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STARTER = Path(__file__).parents[2] / "Megatron-LM" / "upstream_on_cpu.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "named"), [([], "'.'"), (["/no/pretrain_gpt.py"], "'/no/pretrain_gpt.py'")]
)
def test_a_checkout_that_is_not_there(words: list[str], named: str) -> None:
    done = subprocess.run([sys.executable, STARTER, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"upstream_on_cpu.py: error: {named} is not a file; name CHECKOUT/pretrain_gpt.py\n"
