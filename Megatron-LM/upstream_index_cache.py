#!/usr/bin/env python3
"""Run upstream's unchanged training script with an index cache that it shares with other trainings.

    python upstream_index_cache.py CHECKOUT/pretrain_gpt.py --data-cache-path DIR ARGUMENT…

One of the trainings that use ``DIR`` builds each index of the data; the others wait for it and load it
(``megatron_core_trainer/data/index_cache.py``). ``upstream_lr_finder.py`` can precede the checkout's script. Without a
GPU, ``upstream_on_cpu.py`` precedes this program.
"""

from __future__ import annotations

import argparse
import runpy
import sys

from megatron_core_trainer.data import index_cache
from megatron_core_trainer.upstream_script import upstream_script

_NAME = "upstream_index_cache.py"


def main(words: list[str]) -> None:
    """Run the script of the first argument with the other arguments.

    :param words: the arguments, without this program's name.
    """
    script = upstream_script(words)
    if not script.is_file():
        sys.exit(f"{_NAME}: error: {str(script)!r} is not a file; name CHECKOUT/pretrain_gpt.py")
    parser = argparse.ArgumentParser(prog=_NAME, add_help=False, allow_abbrev=False)
    parser.add_argument("--data-cache-path")
    cache = parser.parse_known_args(words[1:])[0].data_cache_path
    if not cache:
        sys.exit(f"{_NAME}: error: there is no --data-cache-path to share")
    sys.argv = words
    sys.path[0] = str(script.parent)
    index_cache.share(cache)
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
