"""The report of a run: table files, plots, one HTML page, and the folders that keep it.

Imports the other rooms of ``results``.
``plan.run_results`` and the web page use it.
"""
