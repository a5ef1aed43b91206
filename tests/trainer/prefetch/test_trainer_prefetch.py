"""``prefetch.py`` with a server that imitates the hub and the real libraries, and offline jobs afterwards."""

from __future__ import annotations

import hashlib
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from trainer_harness import SCRIPTS, Trainer, clean_environment

if TYPE_CHECKING:
    from pathlib import Path


def questions(count: int) -> bytes:
    choices = {"text": ["yes", "no"], "label": ["A", "B"]}
    rows = [{"id": str(i), "question": f"{i}?", "choices": choices, "answerKey": "A"} for i in range(count)]
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


SPLITS = ("train", "validation", "test")
CARD = "---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n" + "".join(
    f"  - split: {split}\n    path: ARC-Easy/{split}.jsonl\n" for split in SPLITS
)
REPOSITORIES: dict[str, dict[str, bytes]] = {
    "models/our/tiny": {"config.json": b"{}", "model.safetensors": b"x" * 1000, "tokenizer.json": b"{}"},
    "datasets/our/lines": {"train.jsonl": b'{"text": "a"}\n{"text": "b"}\n'},
    "datasets/allenai/ai2_arc": {
        "README.md": f"{CARD}---\n".encode(),
        **{f"ARC-Easy/{split}.jsonl": questions(3) for split in SPLITS},
    },
}
WORDS = b"some words\n"
TOKENIZER = json.dumps(
    {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None},
        **{"pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None},
        "model": {"type": "WordLevel", "vocab": {"hello": 0, "world": 1}, "unk_token": "hello"},
    }
).encode()
TOKENIZER_CONFIG = b'{"tokenizer_class": "PreTrainedTokenizerFast"}'
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
USE = """
import sys
from datasets import load_dataset
from huggingface_hub import snapshot_download
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer
print(snapshot_download("our/tiny"))
print(load_dataset("our/lines")["train"]["text"][:])
print(TaskManager().load(["arc_easy"])["tasks"]["arc_easy"].dataset["test"].num_rows)
print(AutoTokenizer.from_pretrained("our/words").convert_tokens_to_ids("world"))
"""


def fetch(trainer: Trainer, home: Path, endpoint: str, *items: dict[str, Any]) -> tuple[int, list[str], str]:
    """Run the program as a job of a profile that is offline by default; return status, lines and errors."""
    environment = clean_environment({"HF_ENDPOINT": endpoint, **OFFLINE})
    done = subprocess.run(
        [trainer.python, SCRIPTS / "prefetch.py", "--home", home, *map(json.dumps, items)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_what_is_fetched_serves_jobs_offline(trainer: Trainer, tmp_path: Path) -> None:
    home = tmp_path / "home"
    words = {"tokenizer.json": TOKENIZER, "tokenizer_config.json": TOKENIZER_CONFIG}
    repositories = {**REPOSITORIES, "models/our/words": {"model.safetensors": b"x" * 1000, **words}}
    with HubServer(repositories, {"words.txt": WORDS}) as hub:
        url = {"url": f"{hub.address}/words.txt", "file": "lists/words.txt"}
        items: list[dict[str, Any]] = [
            {"key": "m", "name": "model our/tiny", "model": "our/tiny"},
            {"key": "d", "name": "dataset our/lines", "dataset": "our/lines"},
            {"key": "w", "name": "tokenizer our/words", "tokenizer": "our/words", "files": ["tokenizer*"]},
            {"key": "t", "name": "task arc_easy", "task": "arc_easy"},
            {"key": "u", "name": "file lists/words.txt", "sha256": hashlib.sha256(WORDS).hexdigest(), **url},
        ]
        absent = {"key": "n", "name": "model our/none", "model": "our/none"}
        status, lines, errors = fetch(trainer, home, hub.address, absent, *items)
        assert status == 1
        assert lines == [f"{item['name']}: fetched" for item in items]
        message = [line for line in errors.splitlines() if line.startswith("prefetch.py: ")]
        assert message[0].startswith("prefetch.py: error: model our/none: ")
        assert message[1:] == [f"prefetch.py: error: 1 of 6 items are missing in {home}"]
    assert (home / "files" / "lists" / "words.txt").read_bytes() == WORDS

    done = subprocess.run(
        [trainer.python, "-c", USE],
        capture_output=True,
        text=True,
        env=clean_environment({"HF_HOME": str(home), "HF_ENDPOINT": hub.address, **OFFLINE}),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    folder, texts, rows, number = done.stdout.splitlines()
    assert folder.startswith(f"{home}/hub/")
    assert (texts, rows, number) == ("['a', 'b']", "3", "1")
    assert not [file for file in home.rglob("models--our--words/snapshots/*/*") if "safetensors" in file.name]

    # without a server, complete items are skipped, but damaged ones are not
    weights = next((home / "hub").rglob("model.safetensors")).resolve()
    table = next((home / "datasets").rglob("lines-train.arrow"))
    for damaged in (weights, table):
        damaged.write_bytes(b"x")
    status, lines, errors = fetch(trainer, home, hub.address, *items)
    assert status == 1
    assert lines == [f"{item['name']}: in place" for item in items[2:]]
    assert "prefetch.py: error: model our/tiny: " in errors
    assert "prefetch.py: error: dataset our/lines: " in errors
    with HubServer(repositories) as again:
        status, lines, errors = fetch(trainer, home, again.address, *items)
    assert (status, lines[:2]) == (0, ["model our/tiny: fetched", "dataset our/lines: fetched"]), errors
    assert weights.stat().st_size == 1000
    assert table.stat().st_size > 100


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"url": "{address}/words.txt", "sha256": "0" * 64},
            f"its SHA-256 is {hashlib.sha256(WORDS).hexdigest()}",
        ),
        ({"url": "{address}/none.txt"}, "HTTP Error 404: Not Found"),
        ({"url": "file:///etc/hostname"}, "only http and https addresses are fetched"),
    ],
)
def test_a_file_that_cannot_be_fetched_is_reported(
    trainer: Trainer, tmp_path: Path, item: dict[str, str], message: str
) -> None:
    with HubServer({}, {"words.txt": WORDS}) as hub:
        one = {"key": "u", "name": "file x", "file": "x", **item}
        one["url"] = one["url"].format(address=hub.address)
        status, lines, errors = fetch(trainer, tmp_path, hub.address, one)
    assert (status, lines) == (1, [])
    assert f"prefetch.py: error: file x: {message}" in errors
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
