"""Evaluations over the checkpoints of a sweep's trainings, as a chart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.results.plots.charts import Chart, Panel, Series
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.ui.live.recorded import EvaluationFigure

MOST_SERIES = 60


def evaluation_answer(figures: Sequence[EvaluationFigure], name: str) -> dict[str, Any]:
    """Return the data of the page: ``names`` of all metrics, the ``name`` of the shown one, and its ``chart``.

    A line joins the checkpoints of a training; a dotted line shows the score of random guessing, if it is known.

    :param name: task and metric; if there is none of that name, an existing one is shown
    """
    names = sorted({figure.name for figure in figures})
    if not names:
        return {"names": [], "name": "", "chart": None, "left_out": 0}
    if name not in names:
        name = names[0]
    chosen = [figure for figure in figures if figure.name == name]
    trainings: dict[tuple[str, str, str], list[EvaluationFigure]] = {}
    for figure in chosen:
        trainings.setdefault((figure.point, figure.stage, figure.model), []).append(figure)
    points = list(dict.fromkeys(point for point, _, _ in trainings))
    stages = list(dict.fromkeys(stage for _, stage, _ in trainings))
    series = [
        _series(" ".join(filter(None, key)), points.index(key[0]), stages.index(key[1]), of_training)
        for key, of_training in list(trainings.items())[:MOST_SERIES]
    ]
    chance = next((figure.chance for figure in chosen if figure.chance is not None), None)
    if chance is not None:
        ends = {min(figure.iteration for figure in chosen), max(figure.iteration for figure in chosen)}
        guessed = tuple((float(end), chance) for end in sorted(ends))
        series.append(Series("chance", guessed, line=True, dash=2, marks=len(ends) == 1))
    panel = Panel("", "iteration of the checkpoint", shown(name), tuple(series), log_x=False)
    chart = Chart("evaluations", "Evaluations", "", (panel,))
    left_out = max(len(trainings) - MOST_SERIES, 0)
    return {"names": names, "name": name, "chart": chart.to_json(), "left_out": left_out}


def _series(name: str, colour: int, dash: int, figures: Sequence[EvaluationFigure]) -> Series:
    errors = [figure.stderr or 0.0 for figure in figures]
    return Series(
        name,
        tuple((float(figure.iteration), figure.value) for figure in figures),
        colour,
        line=len(figures) > 1,
        dash=dash,
        y_ranges=tuple(
            (figure.value - error, figure.value + error)
            for figure, error in zip(figures, errors, strict=True)
        )
        if any(errors)
        else (),
    )
