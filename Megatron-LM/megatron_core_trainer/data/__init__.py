"""Training data: a corpus, its tokens, and the batches of a training.

May import ``console``, ``arguments`` and ``atomic_output``. The training uses ``datasets``, ``tokenizer`` and
``batch_sizes``; ``each_checkpoint.py`` uses ``work_claims``, ``upstream_index_cache.py`` uses ``index_cache``, and
``prepare_data.py`` and ``convert_to_hf.py`` use the other modules.
"""
