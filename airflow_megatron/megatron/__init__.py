"""Knowledge about Megatron for each trainer and release. Imports ``spec`` only.

Its packages, lowest first: ``arguments``, ``rules``, ``validation``, ``estimates``; on ``arguments`` and ``rules`` also
``trainers``, ``commands`` and ``stages``; ``logs`` and ``health``; ``checkpoints``.
"""
