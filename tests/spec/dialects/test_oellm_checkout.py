"""Every experiment of an oellm-autoexp checkout, imported and linted; the checkout is named by an environment variable.

``OELLM_AUTOEXP_CHECKOUT`` names a checkout of OpenEuroLLM/oellm-autoexp at c6d0cc0.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.model.schema import TrainerSection
from airflow_megatron.spec.oellm_import import import_oellm
from airflow_megatron.spec.spec_files import load_sweep_text

CHECKOUT: Final = os.environ.get("OELLM_AUTOEXP_CHECKOUT", "")
CONFIG: Final = Path(CHECKOUT) / "config"
ENVIRONMENT: Final = {
    name: f"/{name.lower()}"
    for name in (
        *(
            "OUTPUT_DIR",
            "DATA_DIR",
            "PROJECT_DIR",
            "HOME",
            "USER",
            "HF_HOME",
            "CONTAINER_CACHE_DIR",
            "WORK",
            "SCRATCH",
        ),
        *("OELLM_DATASETS_TOKENIZED_DIR", "OELLM_EVALS_DIR"),
    )
} | {
    "SLURM_ACCOUNT": "acc",
    "SLURM_PARTITION": "gpu",
    "SLURM_PARTITION_DEBUG": "debug",
    "SLURM_QOS": "normal",
}
NOT_COMPOSED: Final = {
    "korbi/megatron_moe_elastic_torchrun_leonardo": "Hydra cannot compose it",
    "korbi/megatron_niccolo_130M_smoke_juwels": "Hydra cannot compose it",
    "korbi/speed_tests/llama1_8b_jupiter_tp1_mbs6_fp8": "Hydra cannot compose it",
    "korbi/speed_tests/llama1_8b_jupiter_tp1_mbs6_nosp": "Hydra cannot compose it",
    "korbi/speed_tests/llama1_8b_jupiter_tp1_mbs6_nosp_cg": "Hydra cannot compose it",
    "korbi/megatron_moe_qwen30BA3_jupiter_speed_sweep": "takes a list of values",
    "korbi/open_sci_ref_leonardo": "unsupported operand",
    "korbi/oellm_eval_only_jupiter": "is not absolute",
}
"""Experiments that are not imported, and why: upstream cannot resolve them either, but for the last one."""
REFUSED: Final = {
    "base": "no train_iters",  # a base of other files, which upstream cannot resolve
    "korbi/megatron_moe_qwen30BA3_jupiter_speed_max": "--global-batch-size 4 is not divisible",
}
"""Experiments that Megatron-LM itself refuses."""


def experiments() -> list[str]:
    files = sorted((CONFIG / "experiments").glob("**/*.yaml")) if CHECKOUT else []
    names = [str(file.relative_to(CONFIG / "experiments").with_suffix("")) for file in files]
    return [name for name in names if not name.rpartition("/")[2].startswith("titan_")]


@pytest.fixture(scope="module")
def cluster() -> ClusterProfile:
    trainer = TrainerSection(checkout="/megatron", packages=["nvidia_resiliency_ext", "deep_ep"])
    return load_cluster("local").model_copy(
        update={
            "trainers": {"megatron_lm": trainer},
            "env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            "partitions": {},
        }
    )


@pytest.mark.skipif(not CHECKOUT, reason="OELLM_AUTOEXP_CHECKOUT names no checkout of oellm-autoexp")
@pytest.mark.filterwarnings("ignore:In 'experiments/base'")
def test_every_experiment_that_composes_lints_as_it_is_written(cluster: ClusterProfile) -> None:
    pytest.importorskip("hydra")
    wrong: dict[str, str] = {}
    for name in experiments():
        try:
            text = import_oellm(CONFIG, f"experiments/{name}", environment=ENVIRONMENT)
            check_sweep(load_sweep_text(text, f"{name.rpartition('/')[2]}.yaml"), cluster)
        except SpecError as error:
            if (NOT_COMPOSED | REFUSED).get(name, "\0") not in str(error):
                wrong[name] = str(error)
        else:
            if name in (NOT_COMPOSED | REFUSED):
                wrong[name] = "is taken"
    assert wrong == {}
    assert len(experiments()) == 67
