"""A shipped spec with one odd value passes all checks, or ends in errors that have a line; never in a traceback."""

from __future__ import annotations

import copy
import datetime
import json
import random
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from airflow_megatron.plan.sweep_cluster import sweep_clusters
from airflow_megatron.plan.sweep_plan import check_on_clusters
from airflow_megatron.requirements import job_programs
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import job_programs_dir, project_root
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

SPECS: Final = project_root() / "sweep_specs"
VALUES: Final[tuple[Any, ...]] = (
    *(None, [], {}, 0, -1, "-0", 10**400, -(10**400), 10**9, 2**63, 1e308, 0.5, True),
    *(float("inf"), float("nan"), "", " ", "%j", "9" * 400, [None], {"a": None}, [10**400]),
    *(datetime.date(2026, 1, 31), "{{ 10**300 }}", "{{ nope }}", "x" * 300),
)
CHANGES: Final = 60
"""Changes of each spec."""
BUILTIN: Final = """\
cmd: "sbatch {sbatch_script}"
template: builtin
NODES: 1
NUM_GPUS: 4
TIME: 60
NUM_LAYERS: 4
HIDDEN_SIZE: 64
NUM_ATTN_HEADS: 4
SEQ_LENGTH: 64
MAX_POSITION_EMBEDDINGS: 64
MICRO_BATCH_SIZE: 1
GLOBAL_BATCH_SIZE: 8
LR: [2e-3]
MIN_LR: 0.0
LR_DECAY_STYLE: WSD
LR_WSD_DECAY_STYLE: linear
LR_WSD_DECAY_ITERS: 10
LR_DECAY_ITERS: 100
TRAIN_ITERS: 100
SAVE_INTERVAL: 10
EVAL_ITERS: 1
TP: 1
PP: 1
DATA_PATH: /data/c4
TOKENIZER_MODEL: /data/tok
TOKENIZER_TYPE: HuggingFaceTokenizer
check_interval_secs: 600
PHASE:
  - PRETRAIN:
      MODE: [TRAIN: {X: 1}, CONVERT_EVAL: {X: 2}]
  - COOLDOWN:
      TRAIN_ITERS: 60
      ITER: 40
      start_condition_cmd: "./cooldown_helper.sh x {EXP} {ITER} 10k"
      MODE: [TRAIN: {X: 1}, CONVERT_EVAL: {X: 2}]
EXP: "lr{LR}"
output_file: "logs/{name}.out"
sbatch_script: "sb/{name}.sbatch"
name: "{EXP}_{PHASE}_{MODE}"
"""


@pytest.fixture(autouse=True)
def programs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the check programs without starting a process for each change."""
    monkeypatch.syspath_prepend(str(job_programs_dir()))
    import check_arguments
    import check_conversions

    asked_functions = {
        "check_arguments.py": check_arguments.problems,
        "check_conversions.py": check_conversions.obstacle,
    }

    def answered(path: Path, asked: str, _: int) -> str:
        ask = asked_functions[path.name]
        return "".join(json.dumps(ask(**json.loads(line))) + "\n" for line in asked.splitlines())

    monkeypatch.setattr(job_programs, "_answered", answered)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(data: Any, path: tuple[Any, ...], value: Any) -> str:
    data = copy.deepcopy(data)
    node = data
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return yaml.safe_dump(data, sort_keys=False, width=sys.maxsize)


def lint(text: str, file: str) -> None:
    """Check a spec as ``lint`` does; every error has a line."""
    try:
        sweep = load_sweep_text(text, file)
        for plan in check_on_clusters(sweep, sweep_clusters(sweep)):
            assert plan.digest
    except SpecError as error:
        for problem in error.problems:
            assert problem.line >= 1, problem


@pytest.mark.parametrize(
    "name",
    [
        *("quickstart", "datasets", "mup_transfer", "optimizers", "large_batch_optimizers"),
        *("context_parallelism_gpt2_xl", "parallelism_gpt2_large", "gpt3_345m_one_gpu"),
        "builtin",
    ],
)
def test_one_odd_value(name: str) -> None:
    file = SPECS / f"{name}.yaml"
    data = yaml.safe_load(BUILTIN if name == "builtin" else file.read_text(encoding="utf-8"))
    cases = [(path, value) for path in places(data) for value in VALUES]
    for path, value in random.Random(name).sample(cases, min(CHANGES, len(cases))):
        try:
            lint(changed(data, path, value), str(file))
        except Exception as error:
            error.add_note(f"{'/'.join(map(str, path))}: {value!r}"[:200])
            raise
