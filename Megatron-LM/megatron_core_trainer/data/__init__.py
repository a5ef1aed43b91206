"""Training data: a corpus, its tokens, and the batches that are read from them.

May import ``console``, ``arguments`` and ``atomic_output``. The training uses ``datasets``, ``tokenizer`` and
``batch_sizes``; ``prepare_data.py`` and ``convert_to_hf.py`` use the rest, ``each_checkpoint.py`` ``work_claims``,
``upstream_index_cache.py`` ``index_cache``.
"""
