"""``--set key=value``: its effect, and the positions in messages."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.yaml_document import load_yaml_text
from airflow_megatron.spec.model.schema import SweepSpecSection, validate
from airflow_megatron.spec.native.overrides import overridden
from airflow_megatron.spec.native.sweep import NativeSweep
from airflow_megatron.spec.spec_files import load_sweep

TEXT = """\
name: small
point: "lr{{ lr }}"
megatron: &common {lr: 1e-3, train_iters: 100}
params: *common
sweep:
  lr: [1e-3, 2e-3]
  pretrain.seed: [1]
stages:
  pretrain: {kind: train}
"""


def changed(*settings: str, text: str = TEXT) -> Any:
    return overridden(load_yaml_text(text, "s.yaml"), settings).data


def message(*settings: str) -> str:
    with pytest.raises(SpecError) as caught:
        validate(SweepSpecSection, overridden(load_yaml_text(TEXT, "s.yaml"), settings))
    return str(caught.value)


def test_a_spec_that_only_libyaml_reads() -> None:
    text = f"{TEXT}description: a spec\nextra: [https://a/b?c]\n"
    assert changed("name=other", text=text)["extra"] == ["https://a/b?c"]


def test_two_anchors_of_one_name() -> None:
    text = f"{TEXT}description: &common text\n"
    assert load_yaml_text(text, "s.yaml").data["description"] == "text"
    with pytest.raises(SpecError) as caught:
        changed("name=other", text=text)
    assert str(caught.value).startswith("s.yaml:10:14: --set cannot change this YAML: found duplicate anchor")
    assert "\n" not in str(caught.value)
    with pytest.raises(SpecError, match="give each anchor another name"):
        changed("params.x=[&a 1, &a 2]")


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("name=other", ["name"], "other"),
        ("megatron.lr=1e-4", ["megatron", "lr"], 1e-4),
        ("megatron.lr={{ 2 * x }}", ["megatron", "lr"], None),
        ('megatron.lr="{{ 2 * x }}"', ["megatron", "lr"], "{{ 2 * x }}"),
        ("megatron.new=on", ["megatron", "new"], "on"),
        ("sweep.lr=[1, 2, 3]", ["sweep", "lr"], [1, 2, 3]),
        ("sweep.lr.1=5", ["sweep", "lr"], [1e-3, 5]),
        ("sweep.pretrain.seed=[7]", ["sweep", "pretrain.seed"], [7]),
        ("stages.pretrain.slurm.nodes=2", ["stages", "pretrain", "slurm", "nodes"], 2),
        ("description=", ["description"], ""),
        ("params.urls=[https://a/b?c]", ["params", "urls"], ["https://a/b?c"]),
        ("megatron.path=a=b", ["megatron", "path"], "a=b"),
    ],
)
def test_values(setting: str, path: list[str], value: object) -> None:
    if value is None:
        with pytest.raises(SpecError, match="YAML value"):
            changed(setting)
        return
    node = changed(setting)
    for step in path:
        node = node[step]
    assert node == value


def test_keys_of_a_spec_are_added_whatever_is_there_already() -> None:
    text = TEXT.replace("params: *common", "trainer: megatron_core")
    data = changed("container.image=x", "params.size=3", "stages.pretrain.params.size=4", text=text)
    assert (data["container"], data["params"]) == ({"image": "x"}, {"size": 3})
    text = TEXT.replace("{kind: train}", "{kind: train, parent: x}")
    assert changed("stages.pretrain.params.x=1", text=text)["stages"]["pretrain"]["params"] == {"x": 1}
    with pytest.raises(SpecError, match="there is no 'megatorn' in the spec"):
        changed("megatorn.lr=1")


def test_null_removes_a_key() -> None:
    assert "lr" not in changed("megatron.lr=null")["megatron"]


def test_later_ones_win_and_nothing_else_changes() -> None:
    before = load_yaml_text(TEXT, "s.yaml")
    document = overridden(before, ["megatron.lr=1", "megatron.lr=2"])
    assert document.data["megatron"]["lr"] == 2
    assert document.data["params"]["lr"] == before.data["megatron"]["lr"] == 1e-3
    assert list(document.data) == list(before.data)


def test_the_text_keeps_scalars_as_written() -> None:
    settings = ["megatron.lr=5", "sweep.lr.0=010", "stages.pretrain.slurm.nodes=2", "params.train_iters=null"]
    document = overridden(load_yaml_text(TEXT, "s.yaml"), settings)
    assert load_yaml_text(document.text, "s.yaml").data == document.data
    assert "2e-3" in document.text
    assert "010" in document.text


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("lr", "--set lr: not of the form key=value (write --set megatron.lr=1e-4)"),
        ("=1", "--set =1: not of the form key=value"),
        ("stages.pretrian.kind=train", "there is no 'pretrian' in stages (did you mean 'pretrain'?)"),
        (
            "megatorn.lr=1",
            "--set megatorn.lr=1: there is no 'megatorn' in the spec (did you mean 'megatron'?)",
        ),
        ("poll=1", "--set poll=1: unknown key 'poll' ("),
        ("sweep.lr.2=1", "'2' is not an item of sweep.lr (it has 2 items, counted from 0)"),
        ("name.first=1", "name is 'small', which holds no keys (set it as a whole)"),
        (
            "stages.pretrain.kind=trian",
            "--set stages.pretrain.kind=trian: stages.pretrain.kind is 'trian' (did you mean 'train'? expected",
        ),
        ("megatron.lr=[", "--set megatron.lr=[: not valid YAML"),
        ("extends=other.yaml", "a spec is extended before values are set (write extends into the file"),
        (
            "stages.other.scope=sweep",
            "--set stages.other.scope=sweep: 'kind' is missing (add kind: …, with 'train'",
        ),
    ],
)
def test_what_is_refused(setting: str, text: str) -> None:
    assert text in message(setting)


@pytest.mark.parametrize("key", ["lr.0", "lr", "pretrain.seed", "pretrain.seed.0"])
def test_values_of_params_have_it_in_their_key(key: str) -> None:
    text = TEXT.replace(
        "  lr: [1e-3, 2e-3]\n  pretrain.seed: [1]", "  params: {lr: [1e-3], pretrain.seed: [1]}"
    )
    with pytest.raises(SpecError, match=rf"there is no {key} in sweep \(write sweep.params.{key}\)"):
        changed(f"sweep.{key}=5", text=text)
    assert changed("sweep.params.lr.0=5", text=text)["sweep"]["params"]["lr"] == [5]
    assert changed("sweep.bs=[5]", text=text)["sweep"]["bs"] == [5]


def test_an_override_reaches_the_sweep(tmp_path: Any) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"{TEXT}\n")
    (tmp_path / "child.yaml").write_text("extends: s.yaml\nname: child\n")
    for file in (path, tmp_path / "child.yaml"):
        sweep = load_sweep(file, ["sweep.lr=[3, 4, 5]"])
        assert isinstance(sweep, NativeSweep)
        assert [point.name for point in sweep.points] == ["lr3", "lr4", "lr5"]


def test_a_value_that_the_sweep_replaces(tmp_path: Any) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    sweep = load_sweep(path, ["megatron.lr=5", "megatron.train_iters=9", "params.train_iters=9"])
    (problem,) = sweep.warnings()
    assert str(problem) == (
        "--set megatron.lr=5: the sweep gives lr at every point, so this value is not used (choose points with"
        " --select, or set the swept values: --set sweep.lr=[…])"
    )
    some = TEXT.replace("lr: [1e-3, 2e-3]", "configs: [{lr: 2e-3}, {train_iters: 5}]")
    some = some.replace("  pretrain.seed: [1]\n", "")
    path.write_text(some.replace("lr{{ lr }}", "{{ lr }}_{{ train_iters }}"))
    assert load_sweep(path, ["megatron.lr=5"]).warnings() == []
