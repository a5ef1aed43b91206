from __future__ import annotations

import pytest

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["slurm.nodes=3"], "refuses it on 12 GPUs: "),
        (["megatron.tensor_model_parallel_size=3"], "refuses it on 4 GPUs: "),
    ],
)
def test_what_upstream_would_refuse_is_refused_here(settings: list[str], told: str) -> None:
    sweep = load_sweep(sweep_specs_dir() / "decays.yaml", settings)
    assert sweep.settings.cluster == "example-slurm"
    with pytest.raises(SpecError) as caught:
        check_sweep(sweep, load_cluster("example-slurm"))
    assert told in str(caught.value)
    assert "more points" in str(caught.value)


def test_a_blend_in_one_text_is_one_data_set() -> None:
    """Upstream's rules see one word, which may be a data set's name; written in a spec it was meant for a list."""
    sweep = load_sweep(sweep_specs_dir() / "decays.yaml", ['megatron.data_path="0.6 /a 0.4 /b"'])
    with pytest.raises(SpecError, match=r"data_path '0\.6 /a 0\.4 /b' is one text"):
        check_sweep(sweep, load_cluster("example-slurm"))
