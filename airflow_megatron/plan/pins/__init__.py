"""The store of pinned plans: content by digest, the runs that use it, and the removal of unused content.

Imports ``spec`` only.
``plan.pinned`` reads and writes it; the DAG factory reads the runs in progress from it.
"""
