"""Commands on specs and plans: lint, plan, diff, render, build, import.

Imports ``console`` and the layers below.
``cli.runs`` uses ``spec_options``.
"""
