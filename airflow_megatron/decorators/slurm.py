"""``@task.slurm``: a function as a Slurm job."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.bases.decorator import DecoratedOperator, determine_kwargs, task_decorator_factory
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.decorators.function_source import function_source
from airflow_megatron.operators.slurm_job import SlurmJobOperator
from airflow_megatron.operators.slurm_submit import job_attempts
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.spec.trust.json_records import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_megatron.spec.model.jobs import Job

LARGEST_RESULT: Final = 1 << 20
"""Maximum size of a function's result as JSON in bytes, because it becomes an XCom."""
_SET_BY_FUNCTION: Final = "(what the function returns)"
_RUNNER: Final = Path(__file__).with_name("run_function.py")


class SlurmDecoratedOperator(DecoratedOperator, SlurmJobOperator):
    """Run a Python function on the cluster, or the shell command that it returns.

    A Python function runs there in ``python``, whose environment must have the modules that it imports. As with
    ``@task.virtualenv``, it cannot use other parts of the DAG file. Arguments and result are transferred as JSON.

    :param python_callable: the function
    :param shell: whether the function runs in Airflow's worker, and returns the command of the job
    :param python: Python on the cluster, a path or a name on the nodes' PATH (templated as ``command``)
    :param op_args: positional arguments (templated)
    :param op_kwargs: keyword arguments (templated)
    :param kwargs: the job, see :class:`~airflow_megatron.operators.slurm_job.SlurmJobOperator`
    """

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *SlurmJobOperator.template_fields,
    )
    template_fields_renderers = {  # noqa: RUF012
        **DecoratedOperator.template_fields_renderers,
        **SlurmJobOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.slurm"
    overwrite_rtif_after_execution = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        shell: bool = False,
        python: str = "python3",
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if {"command", "script"} & kwargs.keys():
            raise TypeError("@task.slurm runs a function; command and script are for SlurmJobOperator")
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            command=_SET_BY_FUNCTION if shell else [python],
            **kwargs,
        )
        self.shell = shell
        self.python = python
        self.job_template = None if shell else "function.sbatch.j2"

    def described_job(self, context: Context, *, template: str | None = None) -> Job:
        """Return the job, whose shell command the function returns.

        A task that waited before it submitted describes its job in another process.
        """
        if self.shell:
            command = self.python_callable(*self.op_args, **self._keywords(context))
            if inspect.iscoroutine(command):
                command = asyncio.run(command)
            if not isinstance(command, str) or not command.strip():
                raise AirflowFailException("a function of @task.slurm(shell=True) returns a shell command")
            # the other arguments are rendered already, and may contain data that looks like a template
            self.command = self.render_template(command, context)
        return super().described_job(context, template=template)

    def job_files(self, context: Context) -> dict[str, str]:
        """Return the files with the function, its arguments, and the program that calls it."""
        if self.shell:
            return {}
        name = self.python_callable.__name__
        call = {"function": name, "args": list(self.op_args), "kwargs": self._sent_keywords(context)}
        try:
            arguments = json.dumps(call)
        except (TypeError, ValueError) as error:
            raise AirflowFailException(
                f"the arguments of {name} are not JSON ({error}): pass plain values"
            ) from None
        return {
            "run_function.py": _RUNNER.read_text(encoding="utf-8"),
            # annotations may use names that only the DAG file imports
            "function.py": f"from __future__ import annotations\n\n{function_source(self.python_callable)}",
            "arguments.json": arguments,
        }

    def result(self, context: Context, job: Job, ended: Mapping[str, Any]) -> Any:
        """Return the result of the function; the data of the job are the XCom ``job``."""
        facts = super().result(context, job, ended)
        context["ti"].xcom_push(key="job", value=facts)
        return facts if self.shell else self._returned(job, int(ended["attempt"]))

    def _keywords(self, context: Context) -> Mapping[str, Any]:
        """Return the keyword arguments, including those for parts of the context."""
        return determine_kwargs(self.python_callable, self.op_args, {**context, **self.op_kwargs})

    def _sent_keywords(self, context: Context) -> dict[str, Any]:
        """Return the keyword arguments for the cluster; ``**`` gets the plain values of the context.

        :raises AirflowFailException: if the function names a part of the context that is not JSON
        """
        keywords = dict(self._keywords(context))
        named = inspect.signature(self.python_callable).parameters
        for name in keywords.keys() - self.op_kwargs.keys():
            if _is_json(keywords[name]):
                continue
            if name in named:
                raise AirflowFailException(
                    f"{self.python_callable.__name__} has the parameter {name}, a part of Airflow's context that is "
                    "not JSON: use ds, ts, run_id or params, or pass a template such as '{{ ti.try_number }}'"
                )
            del keywords[name]
        return keywords

    def _returned(self, job: Job, attempt: int) -> Any:
        path = f"{attempt_of(job, attempt).directory}/result.json"
        script = framed(f"head -c {LARGEST_RESULT + 1} {quote_path(path)}")
        (text, *_) = [*job_attempts(job, self.log).answered(script, unframed), ""]
        if len(text) > LARGEST_RESULT:
            raise AirflowFailException(
                f"the result of {job.name} has more than {LARGEST_RESULT >> 20} MiB: write a file, and return its path"
            )
        result = read_json(f"[{text}]")
        if result == []:
            raise AirflowFailException(
                f"{self.python_callable.__name__} ended its process (sys.exit, os._exit) instead of returning"
            )
        if not isinstance(result, list) or len(result) != 1:
            raise AirflowFailException(f"{path} holds no result")
        return result[0]


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def slurm_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Create a task from a function that runs as a Slurm job.

    :param python_callable: the function
    :param kwargs: see :class:`SlurmDecoratedOperator`
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=SlurmDecoratedOperator, **kwargs
    )
