"""Run one of the package's programs for a restricted key; copied to the cluster, and run there by sshd.

It uses the standard library of Python 3.6 only. The client names a program and sends values. This program has the texts
of the programs, checks each value, and quotes it. Text from the client is never evaluated.
"""

import hashlib
import json
import os
import re
import shlex
import string
import sys
from pathlib import Path
from typing import Any

PROTOCOL = "airflow-megatron-restricted"
REFUSED = 78
"""Exit status of a refusal."""
LONGEST_REQUEST = 64 * 1024 * 1024
"""Maximum size of a request, in bytes."""
KEPT_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL")
"""Variables of the session that are passed to the programs; all others come from the settings."""
NO_PATTERN = "("
"""Replacement for a pattern outside of the roots; it matches nothing."""
NOTHING = "/.outside/of/the/roots"
"""Replacement for a file outside of the roots; it does not exist."""
LEFT_OUT = PROTOCOL + ": left out: "
"""Start of the line that lists the files outside of the roots, before the answer of the program."""
NO_COMMAND = "echo 'not run: the key of this connection is restricted'; exit 126"
"""Replacement for a command of a condition."""

FORMS = {
    "int": r"[0-9]{1,19}",
    "number": r"(?:[0-9]{1,19})?",
    "ids": r"[0-9]+(?:_[0-9]+|\+[0-9]+)?",
    "name": r"[A-Za-z0-9][A-Za-z0-9._=+:@-]{0,199}",
    "prefix": r"[A-Za-z0-9][A-Za-z0-9._=+:@-]{0,199}",
    "token": r"[A-Za-z0-9_-]{1,100}",
    "variable": r"[A-Za-z_][A-Za-z0-9_]{0,199}",
    "base64": r"[A-Za-z0-9+/=]*",
    "job-name": r"--job-name=[A-Za-z0-9][A-Za-z0-9._=+:@-]{0,199}",
    "dependency": r"--dependency=singleton(?:,[a-z]+(?::[0-9_+*]+)*)*",
    "option": r"--[a-z][a-z-]*(?:=[^\x00-\x1f\x7f]*)?",
    "line": r"[^\x00-\x1f\x7f]*",
}
"""Kinds of words that are checked by one regular expression each."""
OPTIONS_REFUSED = frozenset(
    (
        "array",
        "chdir",
        "clusters",
        "get-user-env",
        "gid",
        "uid",
        "wait",
        "wrap",
        "export-file",
        "input",
        "bcast",
    )
)
EXACT_OPTIONS = frozenset(("export",))
"""Options of sbatch that are not abbreviations of a refused one."""
LINES = {
    "jobs": r"[0-9]+(?:_[0-9]+|\+[0-9]+)?\|[A-Za-z0-9][A-Za-z0-9._=+:@-]{0,199}",
    "limits": r"limit\|[0-9]+\|[A-Za-z0-9._=+:@-]*",
}
"""Kinds of documents of which each line is checked by one regular expression."""
_GLOB_WORD = re.compile(r"'([^']*)'|\"(')\"|([A-Za-z0-9@%+=:,./_-]+)|(\[[!^]?\]?[A-Za-z0-9_.!-]*\]|[*?])")
_NEWER = re.compile(
    r"""for am_file in (.+); do \[ -z "\$\(find "\$am_file" -maxdepth 0 -cnewer """
    r"""((?:'[^']*'|"'"|[A-Za-z0-9@%+=:,./_-])+) 2>/dev/null\)" \] \|\| exit 0; done; exit 1\Z""",
    re.DOTALL,
)
"""The command of ``file`` conditions after a job's first attempt."""
_PARTITION = re.compile(r" -h -N(?: -p [A-Za-z0-9_][A-Za-z0-9_.,-]*)? -o '%P %N %T'\Z")
"""The command that lists the nodes of a partition."""


class Refusal(Exception):
    """A request that the key does not permit."""


class Checks:
    """The checks of the values of one request.

    :param roots: folders below which paths may lie
    :param sinfo: the cluster's sinfo command, as a shell word
    :param layout: names of a run directory: ``hidden`` (folders that the package makes), ``attempts`` (those of them
        that hold attempts), ``secrets`` and ``withdrawn``
    """

    def __init__(self, roots: "list[str]", sinfo: str, layout: "dict[str, Any]") -> None:
        self.sinfo = sinfo
        self.layout = layout
        self.attempts = "/(?:{})/".format("|".join(re.escape(name) for name in layout["attempts"]))
        self.roots = [root.rstrip("/") for root in roots]
        self.real_roots = [os.path.realpath(root) for root in self.roots]
        self.before = ""
        self.left_out: list[str] = []
        self.real_folders: dict[str, str] = {}

    def word(self, kind: str, value: Any) -> str:
        """Return a value as a checked shell word."""
        checked = self.checked(kind, value)
        return "" if kind == "path-or-none" and not checked else shlex.quote(checked)

    def checked(self, kind: str, value: Any) -> str:
        """Return a value or its replacement.

        :raises Refusal: if the value is not of the kind
        """
        if not isinstance(value, str) or "\0" in value:
            raise Refusal("a value is not text without NUL")
        if kind in FORMS:
            if not re.match(f"(?:{FORMS[kind]})\\Z", value):
                raise Refusal(f"{value[:200]!r} is not a valid {kind}")
            if kind == "option":
                name = value[2:].partition("=")[0]
                if name not in EXACT_OPTIONS and any(one.startswith(name) for one in OPTIONS_REFUSED):
                    raise Refusal(f"sbatch option --{name} is not permitted")
            return value
        return str(getattr(self, "check_" + kind.replace("-", "_"))(value))

    def check_path(self, value: str) -> str:
        """Return an absolute path below a root."""
        if re.search("[\x00-\x1f\x7f]", value):
            raise Refusal(f"path {value!r} holds a control character")
        parts = value.split("/")
        hidden = [part for part in parts if part.startswith(".") and part not in self.layout["hidden"]]
        root = next((one for one in self.roots if (value.rstrip("/") + "/").startswith(one + "/")), None)
        secrets = "/" + self.layout["secrets"]
        if re.search(self.attempts + f".*{secrets}(?:/|\\Z)", value) and not value.endswith(secrets):
            raise Refusal(f"path {value!r} is a secret")
        if root is None or ".." in parts:
            raise Refusal("path {!r} is not below {}".format(value, " or ".join(self.roots)))
        if [part for part in hidden if part not in root.split("/")]:
            raise Refusal(f"path {value!r} has a hidden folder or file that is not the package's")
        folder, _, name = value.rstrip("/").rpartition("/")
        if folder not in self.real_folders:
            self.real_folders[folder] = os.path.realpath(folder or "/")
        real = os.path.realpath(f"{self.real_folders[folder]}/{name}")
        if not any((real + "/").startswith(one + "/") for one in self.real_roots):
            raise Refusal("path {!r} leads out of {} by a link".format(value, " or ".join(self.roots)))
        return value

    def check_path_or_none(self, value: str) -> str:
        """Return a path below a root, or no text."""
        return self.check_path(value) if value else value

    def check_start(self, value: str) -> str:
        """Keep the common start of the following paths; each whole path is checked."""
        if value and (not value.startswith("/") or re.search("[\x00-\x1f\x7f]", value)):
            raise Refusal(f"{value!r} is not the start of a path")
        self.before = value
        return value

    def check_rest(self, value: str) -> str:
        """Return the rest of a path below a root."""
        self.check_path(self.before + value)
        return value

    def check_rest_or_nothing(self, value: str) -> str:
        """Return the rest of a path; of a missing file if it is not below a root.

        A request is about many jobs, any of which may make such a link.
        """
        try:
            return self.check_rest(value)
        except Refusal:
            self.left_out.append(self.before + value)
            return NOTHING

    def check_relative(self, value: str) -> str:
        """Return a path relative to the folder before it."""
        if value.startswith("/") or not value:
            raise Refusal(f"{value!r} is not a relative path")
        self.check_path(self.before + "/" + value)
        return value

    def check_folder(self, value: str) -> str:
        """Return a path to which the following relative paths belong."""
        self.before = self.check_path(value).rstrip("/")
        return value

    def check_attempt(self, value: str) -> str:
        """Return the directory of an attempt or array."""
        if not re.search(self.attempts + r"[^/]+/(?:[^/]+/)?[0-9]+\Z", value):
            raise Refusal(f"{value!r} is not the directory of an attempt")
        return self.check_path(value)

    def check_of_attempts(self, value: str) -> str:
        """Return a path in the records of attempts."""
        if not re.search(self.attempts, value):
            raise Refusal(f"{value!r} is not in the records of attempts")
        return self.check_path(value)

    def check_mark(self, value: str) -> str:
        """Return the path of the mark of a withdrawn attempt."""
        if not value.endswith("/" + self.layout["withdrawn"]):
            raise Refusal(f"{value!r} is not the mark of a withdrawal")
        return self.check_of_attempts(value)

    def check_record_file(self, value: str) -> str:
        """Return the path of a JSON record of an attempt or stage."""
        if not value.endswith(".json"):
            raise Refusal(f"{value!r} is not a record")
        return self.check_of_attempts(value)

    def check_secrets_folder(self, value: str) -> str:
        """Return the folder of the secrets of an attempt."""
        if not value.endswith("/" + self.layout["secrets"]):
            raise Refusal(f"{value!r} is not a folder of secrets")
        return self.check_of_attempts(value)

    def check_pattern(self, value: str) -> str:
        """Return a pattern of paths that stays below a root, as one text with its own quotes."""
        end, plain = 0, ""
        for part in _GLOB_WORD.finditer(value):
            if part.start() != end:
                break
            end = part.end()
            plain += (
                "\x01" if part.group(4) else next(text for text in part.group(1, 2, 3) if text is not None)
            )
        if end != len(value):
            raise Refusal(f"{value[:200]!r} is not a quoted pattern")
        fixed = plain.partition("\x01")[0].rpartition("/")[0] if "\x01" in plain else plain
        try:
            self.check_path(fixed)
            if [
                part
                for part in plain.split("/")
                if part.startswith(".") and part not in self.layout["hidden"]
            ]:
                raise Refusal("a pattern of hidden files")
        except Refusal:
            return NO_PATTERN
        return value

    def check_command(self, value: str) -> str:
        """Return a command that the package generates; for any other, a command that fails."""
        newer = _NEWER.match(value)
        if value.startswith(self.sinfo + " ") and _PARTITION.match(value[len(self.sinfo) :]):
            return value
        if newer and self.check_pattern(newer.group(1)) != NO_PATTERN:
            self.check_path("".join(shlex.split(newer.group(2))))
            return value
        return NO_COMMAND

    def check_json(self, value: str) -> str:
        """Return a JSON object."""
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Refusal("a record is not a JSON object")
        return value

    def check_script(self, value: str) -> str:
        """Return a job script."""
        if not value.startswith("#!"):
            raise Refusal("a job script does not begin with #!")
        return value

    def document(self, kind: str, value: Any) -> str:
        """Return a checked text as a here-document."""
        if not isinstance(value, str) or "\0" in value:
            raise Refusal("a text is not text without NUL")
        lines = value.split("\n")[: -1 if value.endswith("\n") else None]
        if kind in LINES:
            for line in lines:
                if line and not re.match(f"(?:{LINES[kind]})\\Z", line):
                    raise Refusal(f"{line[:200]!r} is not a line of {kind}")
        elif kind == "logs":
            parted = [line.partition("\t")[::2] for line in lines]
            value = "\n".join(
                "{}\t{}".format(self.checked("number", offset), self.check_rest_or_nothing(rest))
                for offset, rest in parted
            )
        else:
            self.checked(kind, value)
        return here_document(value)


def here_document(text: str) -> str:
    """Return a here-document as ``framing.here_document`` does; see there."""
    body = text if text.endswith("\n") else text + "\n"
    hazards = set(re.findall(r"^([A-Za-z])[A-Za-z0-9_]*[^\x00-\x7f]", body, re.MULTILINE))
    letters = [letter for letter in string.ascii_uppercase + string.ascii_lowercase if letter not in hazards]
    if not letters:
        raise Refusal("a text cannot be sent as a here-document")
    delimiter = f"{letters[0]}M_{hashlib.sha256(body.encode()).hexdigest()[:16]}"
    if delimiter in body.split("\n"):
        raise Refusal("a text holds its own delimiter")
    return f"<<'{delimiter}'\n{body}{delimiter}\n"


def composed(nodes: "list[Any]", values: Any, checks: Checks) -> str:
    """Return the text of a program or of a part of it.

    :param nodes: texts, ``{"word": KIND}``, ``{"document": KIND}``, and ``{"times": "*" or "?", "nodes": […]}``
    :param values: one for each node that is no text; of a repeated part, a list of such lists
    """
    if not isinstance(values, list):
        raise Refusal("the values are not a list")
    left = list(values)
    pieces: list[str] = []
    for node in nodes:
        if isinstance(node, str):
            pieces.append(node)
            continue
        if not left:
            raise Refusal("a value is missing")
        value = left.pop(0)
        if "word" in node:
            pieces.append(checks.word(node["word"], value))
        elif "document" in node:
            pieces.append(checks.document(node["document"], value))
        else:
            if not isinstance(value, list) or (node["times"] == "?" and len(value) > 1):
                raise Refusal("a repeated part is not a list")
            pieces += [composed(node["nodes"], one, checks) for one in value]
    if left:
        raise Refusal("there are more values than the program has")
    return "".join(pieces)


def installed(command: str, folder: Path) -> "dict[str, Any]":
    """Return the file of programs that a command line names: ``layout`` and ``programs``.

    :param command: ``SSH_ORIGINAL_COMMAND``
    """
    words = re.match(rf"{PROTOCOL} 1 ([0-9a-f]{{64}})\Z", command)
    if not words:
        raise Refusal("this key runs only the programs of airflow-megatron")
    try:
        content = (folder / (f"programs-{words.group(1)}.json")).read_bytes()
    except OSError:
        content = b""
    if hashlib.sha256(content).hexdigest() != words.group(1):
        raise Refusal(
            "the cluster does not have the programs of this version of airflow-megatron with these settings; run "
            "'airflow-megatron cluster restrict' again"
        )
    return dict(json.loads(content.decode()))


def script_of(request: bytes, file: "dict[str, Any]", roots: "list[str]", read_only: bool = False) -> str:
    """Return the script of a request.

    :param file: ``layout`` and ``programs``
    :raises Refusal: if it is not permitted
    """
    programs = {name: one for name, one in file["programs"].items() if one["reads"] or not read_only}
    try:
        asked = json.loads(request.decode())
        name, values = asked["program"], asked["values"]
    except (ValueError, KeyError, TypeError):
        raise Refusal("this key runs only the programs of airflow-megatron") from None
    if not isinstance(name, str) or name not in programs:
        raise Refusal(f"program {name!r} is not one that this key may run")
    sinfo = programs["version"]["nodes"][0].rpartition(" --version")[0]
    checks = Checks(roots, sinfo, file["layout"])
    script = composed(programs[name]["nodes"], values, checks)
    if not checks.left_out:
        return script
    return f"echo {shlex.quote(LEFT_OUT + json.dumps(checks.left_out))}\n{script}"


def settings_of(words: "list[str]", folder: Path) -> "dict[str, Any]":
    """Return the settings of a key: ``roots``, ``environment`` and ``shell``.

    :param words: those of the key's line in ``authorized_keys``, which names the key; earlier lines name none
    :raises Refusal: if they are not installed
    """
    keys = [f"-{word}" for word in words if re.match(r"[0-9a-f]{16}\Z", word)]
    try:
        return dict(
            json.loads((folder / "settings{}.json".format("".join(keys[:1]))).read_text(encoding="utf-8"))
        )
    except (OSError, ValueError):
        raise Refusal(
            "the cluster does not have the settings of this key; run 'airflow-megatron cluster restrict' again"
        ) from None


def environment(settings: "dict[str, Any]") -> "dict[str, str]":
    """Return the variables of a program: some of the session, and those of the settings."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    for name in ("LANG", "LC_ALL"):
        if not re.match(r"[A-Za-z0-9_.@-]*\Z", kept.get(name, "")):
            del kept[name]
    kept.update(settings["environment"])
    return kept


def main(words: "list[str]") -> int:
    """Run the program that the session requests."""
    folder = Path(__file__).resolve().parent
    try:
        file = installed(os.environ.get("SSH_ORIGINAL_COMMAND", ""), folder)
        settings = settings_of(words, folder)
        request = sys.stdin.buffer.read(LONGEST_REQUEST + 1)
        if len(request) > LONGEST_REQUEST:
            raise Refusal(f"the request is longer than {LONGEST_REQUEST} bytes")
        script = script_of(request, file, settings["roots"], "--read-only" in words).encode()
    except (Refusal, RecursionError, UnicodeError) as refusal:
        text = str(refusal).encode("ascii", "backslashreplace").decode()
        sys.stderr.write(f"{PROTOCOL}: refused: {text}\n")
        return REFUSED
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(script)
        os._exit(0)
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)
    shell = settings["shell"]
    os.execve(shell[0], shell, environment(settings))
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
