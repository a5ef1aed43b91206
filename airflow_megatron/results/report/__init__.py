"""The report of a run: table files, plots, one HTML page, and the folders that contain it.

Imports ``plots``, ``fits``, ``tables`` and ``readings``.
``plan.run_results``, the operators and the command line use it.
"""
