"""Templates of the stage kinds that other packages register."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jinja2

from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS, TEMPLATES_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable


class OtherPackagesTemplates(jinja2.BaseLoader):
    """Loads the templates in ``templates/`` beside other packages' stage kinds, in the order of the kinds' names.

    The metadata of installed packages is read only when a template is found nowhere else.
    """

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        """Return a template's text, its path, and a function that returns whether the file is unchanged.

        :raises jinja2.TemplateNotFound: if no package has the template
        """
        return self._folders().get_source(environment, template)

    def list_templates(self) -> list[str]:
        """Return the names of all templates."""
        return self._folders().list_templates()

    @staticmethod
    def _folders() -> jinja2.FileSystemLoader:
        return jinja2.FileSystemLoader(STAGE_KINDS.folders_beside(TEMPLATES_FOLDER))
