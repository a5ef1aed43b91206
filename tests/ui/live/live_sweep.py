"""DAGs and runs of a sweep in Airflow's database."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from airflow.models.dag import DagModel, DagTag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

RUN: Final = "manual__1"


def add_dags(session: Session, **kinds: str) -> None:
    """Add DAGs with the tags of this package, unless they are known.

    :param kinds: id of the DAG → ``sweep`` or ``point``
    """
    session.merge(DagBundleModel(name="dags-folder"))
    session.flush()
    for dag_id, kind in kinds.items():
        tags = [DagTag(name=name, dag_id=dag_id) for name in ("megatron", kind)]
        if session.get(DagModel, dag_id) is None:
            session.add(DagModel(dag_id=dag_id, bundle_name="dags-folder", tags=tags, is_paused=False))
    session.commit()


def add_run(
    session: Session, dag_id: str, run_id: str, state: str, tasks: Mapping[str, str], **conf: Any
) -> None:
    session.add(
        DagRun(
            dag_id=dag_id,
            run_id=run_id,
            run_type=DagRunType.MANUAL,
            state=DagRunState(state),
            conf=conf,
            triggered_by=DagRunTriggeredByType.TEST,
        )
    )
    session.flush()
    for task_id, task_state in tasks.items():
        values = {"id": uuid.uuid4(), "dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": -1}
        values |= {"state": task_state, "max_tries": 0, "pool": "default_pool", "span_status": "not_started"}
        session.execute(TaskInstance.__table__.insert().values(**values))
    session.commit()
