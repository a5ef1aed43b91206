"""The store of what runs execute: content under its digest, which run uses it, and its removal afterwards.

Imports ``spec`` only.
``plan.pinned`` reads and writes it; the DAG factory asks it for runs under way.
"""
