"""A param that a stage's command needs: reported where it is misspelt, or at the stage that lacks it."""

from __future__ import annotations

import pytest
from checked_chain import TRUNK, errors_of, line_of

FETCH = """\
  f:
    kind: prefetch
    scope: sweep
    params: {model: [gpt2]}
"""
CONVERT = """\
  to_hf:
    kind: convert
    parent: pretrain
    params: {tokenzier: /x}
"""
EVALUATE = """\
  score:
    kind: evaluate
    parent: convert
    params: {task: [hellaswag]}
"""
TRAININGS = TRUNK[: TRUNK.index("  convert:")].replace("  lr: [1e-3, 4e-3]", "  params: {lr: [1e-3, 4e-3]}")
TRAININGS = TRAININGS.replace("params: {tokenizer: /data/tokenizer}\n", "")
CONVERTED = "  convert: {kind: convert, parent: pretrain, params: {tokenizer: /t}}\n"


@pytest.mark.parametrize(
    ("stage", "part", "message", "hint"),
    [
        (FETCH, "params: {model", "stage f: prefetch does not read model", "did you mean 'models'?"),
        (
            FETCH.replace("    params: {model: [gpt2]}\n", ""),
            "  f:",
            "stage f fetches nothing; add params: {models: [gpt2]}",
            "",
        ),
        (
            FETCH.replace("{model: [gpt2]}", "{where: login}"),
            "params: {where",
            "stage f fetches nothing; add params: {models: [gpt2]}",
            "",
        ),
        (
            CONVERT,
            "params: {tokenz",
            "to_hf: convert does not read tokenzier",
            "did you mean 'tokenizer'?",
        ),
        (EVALUATE, "params: {task", "evaluate does not read task", "did you mean 'tasks'?"),
    ],
)
def test_a_missing_param(stage: str, part: str, message: str, hint: str) -> None:
    text = TRAININGS + stage if stage is CONVERT else TRAININGS + CONVERTED + stage
    (problem,) = errors_of(text)
    assert message in problem.message
    assert (problem.line, problem.hint) == (line_of(text, part), hint)
