"""The converter's checks of trainings, without PyTorch and before a checkpoint exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_check_arguments import GOOD

from airflow_megatron.checks.trainings.architectures import GROUPS_OF_THE_RUN
from airflow_megatron.megatron.arguments.tables import argument_table, known_releases, read_table
from airflow_megatron.megatron.trainers.trainer_table import TRAINERS_DIR

sys.path.insert(0, str(Path(__file__).parents[2] / "Megatron-LM"))

from check_arguments import complete
from megatron_core_trainer.conversion.architecture import load_architecture, shipped_architectures
from megatron_core_trainer.conversion.model_settings import PLAIN
from megatron_core_trainer.optimization.parametrization import DEFAULTS

PROGRAM = Path(__file__).parents[2] / "Megatron-LM" / "check_conversions.py"


@pytest.mark.slow
def test_an_answer_for_each_line() -> None:
    odd = {"argv": [*GOOD, "--rotary-interleaved"], "world_size": 1}
    requests = [
        {"argv": GOOD, "world_size": 1},
        odd,
        {"argv": [*GOOD, "--use-mup", "--mup-output-mult", "3"], "world_size": 1},
        {**odd, "converter": "/ours.py"},
        {**odd, "converter": "mbridge", "hf_config": "/there"},
        {**odd, "converter": "mbridge"},
        {**odd, "converter": "/ours.py", "architecture": "qwen2"},
        {"argv": ["--no-such-flag"], "world_size": 1},
        {"saved": {**vars(complete(GOOD, 1)), "multi_latent_attention": True, "exit_signal": None}},
        {"argv": [*GOOD, f"--num-layers={10**400}"], "world_size": 1},
        {"argv": [*GOOD, "--swiglu", f"--hidden-size={4 * 10**400}"], "world_size": 1},
    ]
    lines = "".join(json.dumps(question) + "\n" for question in requests)
    done = subprocess.run([sys.executable, PROGRAM], input=lines, capture_output=True, text=True, check=True)
    good, refused, folded, script, described, library, named, wrong, saved, deep, wide = map(
        json.loads, done.stdout.splitlines()
    )
    assert good is folded is script is described is wrong is wide is None
    assert deep == {"settings": ["num_layers"], "problem": "it has more than 100000 layers"}
    assert refused == library
    assert refused["settings"] == ["rotary_interleaved"]
    assert refused["problem"].startswith(
        "GPT2LMHeadModel cannot express this model: rotary_interleaved is True,"
    )
    assert "normalization" in named["settings"]
    assert "nor can" not in named["problem"]
    assert "multi_latent_attention is True, not False" in saved["problem"]


@pytest.mark.slow
def test_ignored_arguments_decide_nothing() -> None:
    required = [load_architecture(name).requires for name in shipped_architectures()]
    words = set(re.findall(r"\w+", json.dumps(required))) | {"moe_layer_freq"}
    looked_at = {*PLAIN, *DEFAULTS, *words}
    tables = [argument_table(release) for release in known_releases()]
    for table in [*tables, read_table(TRAINERS_DIR / "megatron_core" / "arguments.json")]:
        of_the_run = {argument.dest for argument in table if argument.group in GROUPS_OF_THE_RUN}
        assert {"lr", "save"} <= of_the_run
        assert not of_the_run & looked_at
