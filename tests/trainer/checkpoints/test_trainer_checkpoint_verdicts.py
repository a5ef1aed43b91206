"""Verdicts on real checkpoints, whole and damaged, against what really loads."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_harness import TIMEOUT_S

from airflow_megatron.megatron.checkpoints.folder import read_checkpoints

if TYPE_CHECKING:
    from trainer_harness import Outcome, Trainer

VARIANTS = Path(__file__).with_name("checkpoint_variants.py")
WHOLE = {"torch_dist of the trainer", "torch_dist saved asynchronously", "torch_dcp", "torch"}


def test_complete_checkpoints_load(trainer: Trainer, reference: tuple[Outcome, Path], tmp_path: Path) -> None:
    """Every file of every format absent, cut off at four places, and never written (a node that lost power)."""
    words = [str(trainer.python), str(VARIANTS), str(reference[1] / "iter_0000012"), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    loads: dict[str, bool] = json.loads(done.stdout)
    assert {name for name, loadable in loads.items() if loadable} == {f"{name}: whole" for name in WHOLE}
    assert len(loads) > 80
    verdicts = {}
    for name in loads:
        (checkpoint,) = read_checkpoints(tmp_path / name)
        verdicts[name] = checkpoint.verdict
    wrong = {name: verdict for name, verdict in verdicts.items() if verdict.is_complete != loads[name]}
    assert wrong == {}
    assert {verdict.verdict for verdict in verdicts.values()} == {"complete", "incomplete"}
    for name, verdict in verdicts.items():
        # if only a damaged description is left, the two distributed formats look the same
        assert verdict.format == name.split()[0].rstrip(":") or ".metadata" in name
