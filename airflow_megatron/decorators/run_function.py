"""Run the function of a ``@task.slurm`` inside its job; this file is copied there, so it needs only Python."""

import asyncio
import inspect
import json
import sys
from pathlib import Path
from typing import Any


def main(directory: Path) -> None:
    """Call the function of ``function.py`` with ``arguments.json``, and write ``result.json``.

    :param directory: directory of the attempt
    """
    call = json.loads((directory / "arguments.json").read_text(encoding="utf-8"))
    path = directory / "function.py"
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    result = names[call["function"]](*call["args"], **call["kwargs"])
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    try:
        text = json.dumps(result, allow_nan=False)  # an XCom holds no NaN
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the result of {call['function']} is not JSON ({error}): return plain values, or write a file"
        ) from None
    draft = directory / "result.json.new"
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(directory / "result.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
