"""The list of Megatron's arguments in a checkout of oellm-autoexp is read as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.foreign.megatron_metadata import ForkArgument, fork_arguments

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
MEGATRON_ARG_METADATA: Mapping[str, MegatronArgMetadata] = {
    "lr": MegatronArgMetadata(arg_type=float, default=None, choices=None, nargs=None, element_type=None),
    "wd_mult": MegatronArgMetadata(arg_type=float, default=0.5, choices=None, nargs=None, element_type=None),
    "router_spec": MegatronArgMetadata(arg_type=str, default=None, choices=("a", "b"), nargs=None),
    "steps": MegatronArgMetadata(arg_type=list, default=[], choices=None, nargs="*", element_type=int),
    "fused": MegatronArgMetadata(arg_type=bool, default=False, choices=None, nargs=0, element_type=None),
    "kept": MegatronArgMetadata(arg_type=bool, default=True, choices=None, nargs=0, element_type=None),
    "without_action": MegatronArgMetadata(arg_type=bool, default=True, choices=None, nargs=0),
}
MEGATRON_ACTION_SPECS = {
    "lr": MegatronActionSpec(option_strings=("--lr",), action_type="store", nargs=None, const=None, default=None),
    "wd_mult": MegatronActionSpec(option_strings=("--wd-mult",), action_type="store", nargs=None, default=0.5),
    "router_spec": MegatronActionSpec(option_strings=("--router",), action_type="store", nargs=None, default=None),
    "steps": MegatronActionSpec(option_strings=("--steps",), action_type="store", nargs="*", default=[]),
    "fused": MegatronActionSpec(option_strings=("--fused",), action_type="store_true", nargs=0, default=False),
    "kept": MegatronActionSpec(option_strings=("--no-kept",), action_type="store_false", nargs=0, default=True),
}
"""


def test_arguments_that_the_release_lacks_are_declared() -> None:
    arguments = fork_arguments(TEXT, "cli_metadata.py", lambda name: name == "lr")
    assert arguments.added == {
        "wd_mult": ForkArgument("wd_mult", {"type": "float"}, 0.5),
        "router_spec": ForkArgument(
            "router", {"type": "str", "choices": ["a", "b"], "dest": "router_spec"}, None
        ),
        "steps": ForkArgument("steps", {"type": "int", "nargs": "*"}, []),
        "fused": ForkArgument("fused", {"action": "StoreTrue"}, False),
        "kept": ForkArgument("no_kept", {"action": "StoreFalse", "dest": "kept"}, True),
    }
    assert arguments.passed == {"lr", "wd_mult", "router_spec", "steps", "fused", "kept"}


def test_an_argument_whose_flag_the_release_has_is_not_declared() -> None:
    arguments = fork_arguments(TEXT, "cli_metadata.py", lambda name: name == "router")
    assert "router_spec" not in arguments.added


def test_the_file_is_not_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    default = f"default=open({str(mark)!r}, 'w')"
    text = TEXT.replace("default=0.5", default) + f"\nopen({str(mark)!r}, 'w')\n"
    arguments = fork_arguments(text, "cli_metadata.py", lambda _: False)
    assert arguments.added["wd_mult"].default is None
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A = 1\n", "has no MEGATRON_ARG_METADATA"),
        (TEXT.partition("MEGATRON_ACTION_SPECS")[0], "has no MEGATRON_ACTION_SPECS"),
        (TEXT + "def\n", r"cli_metadata.py:18:\d+: is not Python"),
        ("A = " + "(" * 100_000, "is not Python"),
        ("A = " + "-" * 1_000_000 + "1", "cannot be read|is not Python"),
        ("A = 1\0", "cannot be read|is not Python"),
    ],
)
def test_a_file_that_is_no_such_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        fork_arguments(text, "cli_metadata.py", lambda _: False)


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("--lr"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(flag=LITERALS, kind=LITERALS, choices=LITERALS, count=LITERALS, default=LITERALS)
def test_any_literals_are_read(
    flag: object, kind: object, choices: object, count: object, default: object
) -> None:
    metadata = f"M(arg_type={kind!r}, element_type={kind!r}, choices={choices!r})"
    action = f"M(option_strings={flag!r}, action_type={kind!r}, nargs={count!r}, default={default!r})"
    text = f"MEGATRON_ARG_METADATA = {{'it': {metadata}}}\nMEGATRON_ACTION_SPECS = {{'it': {action}}}\n"
    arguments = fork_arguments(text, "cli_metadata.py", lambda _: False)
    assert arguments.passed == {"it"}
    assert set(arguments.added) == {"it"}
