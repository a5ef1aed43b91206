"""The name of numpy that releases of Megatron-LM before 0.16 call when they save checkpoints."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer_harness import Trainer


def test_the_environment_of_the_trainers_has_it(trainer: Trainer) -> None:
    words = [str(trainer.python), "-c", "import numpy; print(numpy.product([2, 3]))"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "6\n"
