"""Sources of secret variables: a private file on the cluster, or Airflow's connections and variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.expressions.resolution import evaluate_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.schema import SecretSection

DEFAULT_FIELD: Final = "password"
"""The default field of a connection."""


def secret_sources(sections: Mapping[str, SecretSection], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the two fields of a job with the sources of its secrets, with expressions evaluated.

    :param sections: variable → source
    :param names: names for expressions
    :return: ``secrets``: variable → path on the cluster; ``delivered``: variable → ``{"connection": ID, "field":
        NAME}`` or ``{"variable": NAME}``
    """
    files: dict[str, str] = {}
    delivered: dict[str, dict[str, str]] = {}
    for variable, section in sections.items():
        given = section.model_dump(exclude_none=True)
        source = {key: str(evaluate_tree(value, names)) for key, value in given.items()}
        if "file" in source:
            files[variable] = source["file"]
        elif "connection" in source:
            delivered[variable] = {"field": DEFAULT_FIELD, **source}
        else:
            delivered[variable] = source
    return {"secrets": files, "delivered": delivered}


def source_text(source: Mapping[str, str]) -> str:
    """Return the description of a source in Airflow for messages: ``password of the connection wandb``."""
    if "connection" in source:
        return f"{source['field']} of the connection {source['connection']!r}"
    return f"the variable {source['variable']!r}"
