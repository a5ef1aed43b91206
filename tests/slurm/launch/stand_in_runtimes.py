"""Stand-ins for container runtimes, which cannot run here: they run the command on the host.

Each passes to the command the environment that the documentation of the runtime describes. The variables :data:`IMAGE`
represent those of an image, and ``CONTAINED_BY`` contains the name of the runtime. Options are parsed as by the
runtime: unknown options are errors.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

IMAGE: Final = {
    "FROM_IMAGE": "image",
    "NCCL_DEBUG": "image",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
PROGRAMS: Final = ("apptainer", "singularity", "shifter", "docker", "podman-hpc", "srun")

_PROGRAM: Final = '''\
#!{python} -IS
import fnmatch, os, shutil, subprocess, sys

IMAGE = {image!r}
name, words, host = os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ)


def fail(text):
    sys.exit(f"{{name}}: {{text}}")


def taken(options, flags):
    """Take the options from the words: option → values."""
    found = {{}}
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        if option in flags and not equals:
            value = ""
        elif option in options:
            value = value if equals else words.pop(0)
        else:
            fail(f"unknown option {{option}}")
        found.setdefault(option, []).append(value)
    return found


def run(environment):
    os.execvpe(words[0], words, {{**environment, "CONTAINED_BY": name}})


def evaluated(prefix, before):
    """Return what a shell makes of the values, within double quotes, of the variables with a prefix."""
    given = {{key.removeprefix(prefix): value for key, value in host.items() if key.startswith(prefix)}}
    lines = ["export " + key + '="' + value.replace('"', '\\\\"') + '"\\n' for key, value in given.items()]
    shell = ["sh", "-c", "".join(lines) + 'exec "$0" -0', shutil.which("env")]
    shown = subprocess.run(shell, env=before, capture_output=True, text=True, check=True).stdout
    found = dict(line.split("=", 1) for line in shown.split("\\0") if line)
    return {{key: found[key] for key in given}}


if name in ("apptainer", "singularity"):
    assert words.pop(0) == "exec", "not exec"
    given = taken(("--bind",), ("--nv", "--rocm", "--no-eval", "--writable-tmpfs"))
    words.pop(0)
    prefix = name.upper() + "ENV_"
    inside = {{**host, **IMAGE}}
    if "--no-eval" in given:
        own = {{key.removeprefix(prefix): value for key, value in host.items() if key.startswith(prefix)}}
    else:
        own = evaluated(prefix, inside)
    run({{**inside, **own}})
elif name == "shifter":
    given = taken(("--image", "--volume", "--module"), ())
    if not given.get("--image"):
        fail("no image")
    run({{**{{key: value for key, value in host.items() if not key.startswith("LD_")}}, **IMAGE}})
elif name in ("docker", "podman-hpc"):
    command = words.pop(0)
    assert command == "run" or (name == "podman-hpc" and command == "shared-run"), command
    options = ("--env", "--volume", "--network", "--ipc", "--entrypoint", "--workdir", "--device", "--pid", "--user")
    options += ("--group-add", "--label", "--gpus", "--ulimit", "--shm-size")
    flags = ("--rm", "--init") + (("--gpu", "--nccl") if name == "podman-hpc" else ())
    given = taken(options, flags)
    if name == "docker" and given.get("--user") != [f"{{os.getuid()}}:{{os.getgid()}}"]:
        fail(f"as another user: {{given.get('--user')}}")
    words.pop(0)
    inside = dict(IMAGE)
    for text in given.get("--env", []):
        key, equals, value = text.partition("=")
        if equals:
            fail(f"the value of {{key}} is in the list of processes")
        inside.update({{one: host[one] for one in host if fnmatch.fnmatchcase(one, key)}})
    os.chdir(given["--workdir"][0])
    run(inside)
else:  # srun with the plugins pyxis and Container Engine: the same program starts each task
    if words[:1] == ["--stand-in"]:
        kept, words = words[1].split(","), words[2:]
        run({{**host, **IMAGE, **{{key: host[key] for key in kept if key in host}}}})
    real = next(
        path for folder in os.environ["PATH"].split(":")
        if not os.path.samefile(path := shutil.which("srun", path=folder) or "/", sys.argv[0]) and path != "/"
    )
    passed, plugin, kept = [], "", ""
    while words[0].startswith("-"):
        option, _, value = words[0].partition("=")
        if option in ("--container-image", "--environment"):
            plugin = value
        elif option == "--container-env":
            kept = value
        elif option != "--container-mounts":
            passed.append(words[0])
        words.pop(0)
    task = [sys.argv[0], "--stand-in", kept] if plugin else []
    os.execv(real, [real, *passed, *task, *words])
'''


def write_stand_ins(folder: Path) -> Path:
    """Write the programs into a new folder, for the front of ``PATH``."""
    folder.mkdir()
    for name in PROGRAMS:
        program = folder / name
        program.write_text(_PROGRAM.format(python=sys.executable, image=IMAGE))
        program.chmod(0o755)
    return folder
