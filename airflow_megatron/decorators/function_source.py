"""The source text of a function, without the decorators that make it a task."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_DECORATORS = ("slurm", "slurm_task")


def function_source(function: Callable[..., Any]) -> str:
    """Return statements that define a function, without ``@task.slurm`` and the decorators above it.

    Airflow's own reader deletes the lines of a text that begin with ``#``, and refuses nested functions that contain a
    text with lines at the margin.
    """
    source = inspect.getsource(function)
    if source[:1].isspace():
        source = f"if True:\n{source}"
    definition = next(
        (
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function.__name__
        ),
        None,
    )
    above = definition.decorator_list if definition is not None else []
    ours = [index for index, decorator in enumerate(above) if _name(decorator) in _DECORATORS]
    if not ours:
        return source
    lines = source.split("\n")
    del lines[above[0].lineno - 1 : above[ours[-1]].end_lineno]
    return "\n".join(lines)


def _name(decorator: ast.expr) -> str:
    """Return the last name of a decorator: ``slurm`` for ``@sdk.task.slurm(…)``."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""
