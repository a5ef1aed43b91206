"""Names of environment variables that hold secrets: ``HF_TOKEN``, ``WANDB_API_KEY``, ``AWS_SECRET_ACCESS_KEY``; and
values that are secrets under any name: tokens of known forms, addresses with a password in them.

A name is split at ``_``, so that ``TOKENIZERS_PARALLELISM``, ``MONKEY`` and ``NUM_TOKENS`` are not secrets; neither
are a tokenizer's ``PAD_TOKEN``, a limit ``MAX_TOKEN`` and the place of a secret, ``HF_TOKEN_PATH``.
"""

from __future__ import annotations

import functools
import re
from typing import Final

_ALWAYS: Final = frozenset(
    {
        *("SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASSCODE", "CREDENTIAL"),
        *("CREDENTIALS", "APIKEY", "APITOKEN", "AUTHTOKEN", "ACCESSKEY", "SECRETKEY", "PRIVATEKEY"),
    }
)
_LAST: Final = frozenset({"TOKEN", "KEY", "PASS", "PWD", "PAT"})
"""Words that indicate a secret at the end of a name, or before a number."""
_HARMLESS_BEFORE: Final[dict[str, frozenset[str]]] = {
    "TOKEN": frozenset(
        [
            "PAD",
            "EOS",
            "BOS",
            "EOD",
            "UNK",
            "SEP",
            "CLS",
            "MASK",
            "SPECIAL",
            "IMAGE",
            "AUDIO",
            "VIDEO",
            "START",
            "END",
            "STOP",
            "MAX",
            "MIN",
            "NUM",
            "PER",
            "FIRST",
            "LAST",
            "NEXT",
            "BEGIN",
            "PREFIX",
            "SUFFIX",
            "CLASS",
            "DUMMY",
            "EXTRA",
            "NEW",
            "PRE",
            "POST",
            "BY",
            "EACH",
            "SINGLE",
        ]
    ),
    "KEY": frozenset(
        [
            "PUBLIC",
            "PRIMARY",
            "FOREIGN",
            "SORT",
            "CACHE",
            "PARTITION",
            "GROUP",
            "INDEX",
            "JSON",
            "TEXT",
            "IMAGE",
            "LABEL",
            "DICT",
            "HOT",
            "LOOKUP",
            "MAX",
            "NUM",
            "STATE",
            "MODEL",
            "DATA",
            "FEATURE",
            "INPUT",
            "OUTPUT",
            "TARGET",
            "SHARD",
            "HOST",
            "PER",
            "QUERY",
            "VALUE",
            "HEAD",
        ]
    ),
    "PASS": frozenset(
        [
            "FORWARD",
            "BACKWARD",
            "SINGLE",
            "FIRST",
            "SECOND",
            "MULTI",
            "ONE",
            "TWO",
            "NUM",
            "PER",
            "LAST",
            "MAX",
            "EACH",
        ]
    ),
    "PWD": frozenset({"OLD", ""}),
    "PAT": frozenset({""}),
}
_HARMLESS_END: Final = frozenset(
    [
        "ID",
        "IDS",
        "PATH",
        "PATHS",
        "FILE",
        "FILES",
        "DIR",
        "DIRS",
        "DIRECTORY",
        "FOLDER",
        "LENGTH",
        "LEN",
        "COUNT",
        "SIZE",
        "LIMIT",
        "TYPE",
        "NAME",
        "NAMES",
        "TTL",
        "BUDGET",
        "RING",
        "CHAIN",
        "POLICY",
        "MANAGER",
        "COMMAND",
        "CMD",
        "HELPER",
        "PROVIDER",
        "TIMEOUT",
        "EXPIRY",
        "EXPIRATION",
        "ENABLED",
        "REQUIRED",
        "PREFIX",
        "URL",
        "URI",
        "ENDPOINT",
        "HOST",
        "PORT",
        "REGION",
        "VERSION",
        "LOCATION",
        "SERVER",
    ]
)
_KNOWN_FORMS: Final = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|sk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,}|xox[abeprs]-[A-Za-z0-9-]{20,}|nvapi-[A-Za-z0-9_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"
    r")(?![A-Za-z0-9_-])"
    r"|-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"
    # a variable of the job is not a password
    r"|[a-z][a-z0-9+.-]{1,20}://[^/\s:@]{0,100}:[^/\s@$]{1,200}@"
)
_SWITCH: Final = re.compile(r"(?i)|true|false|yes|no|on|off|none|null|[0-9]{1,6}(?:\.[0-9]+)?\Z")


@functools.lru_cache(maxsize=4096)  # thousands of jobs have the same few names
def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name contains a secret."""
    words = [word for word in name.upper().split("_") if word]
    while words and words[-1].isdigit():
        words.pop()
    if not words or words[-1] in _HARMLESS_END:
        return False
    if any(word in _ALWAYS for word in words) or words[-1].endswith(("PASSWORD", "PASSWD", "APIKEY")):
        return True
    last = words[-1]
    before = words[-2] if len(words) > 1 else ""
    return last in _LAST and before not in _HARMLESS_BEFORE.get(last, frozenset())


def is_known_secret(text: str) -> bool:
    """Return whether a text contains a secret of a known form: a token, a private key, a password in an address."""
    return _KNOWN_FORMS.search(text) is not None


def holds_secret(name: str, value: str) -> bool:
    """Return whether a variable and its value are a secret in plain text: no switch, no number, no path to one."""
    if is_known_secret(value):
        return True
    if not is_secret_name(name) or _SWITCH.fullmatch(value):
        return False
    is_path = re.fullmatch(r"(?:~|/|\./|\$\{?\w+\}?/)[\w.@~$/{}+-]*", value) is not None
    # keys may contain slashes: it counts as a path if the name is about keys or credentials and it has two parts
    last = name.upper().rsplit("_", 1)[-1]
    return not (is_path and value.count("/") > 1 and last in ("KEY", "CREDENTIALS", "CREDENTIAL"))
