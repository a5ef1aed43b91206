"""The example DAGs pass paths with blanks to their jobs."""

from __future__ import annotations

from airflow_megatron.example_dags import example_after_sweep, example_checkpoint

FOLDER = "/home/Zoë M/run"


def test_a_listed_checkpoint_is_one_word() -> None:
    command = example_checkpoint.evaluate.command
    assert isinstance(command, list), "a text is read by a shell, which splits the path"
    assert command == ["ls", "-lR", "{{ ti.xcom_pull('saved') }}"]


def test_the_folder_of_a_point_is_quoted() -> None:
    assert example_after_sweep.size.function(FOLDER) == f"du -sh '{FOLDER}'/checkpoints"
