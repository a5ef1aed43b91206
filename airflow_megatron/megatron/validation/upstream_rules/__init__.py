"""The checks of upstream's ``validate_args`` as rules, by subject.

Imports ``megatron.rules`` and ``megatron.arguments``.
Only ``megatron.validation`` uses it.
"""
