"""Links from Airflow tasks to other pages.

Imports Airflow and ``spec``.
Operators show them as extra links of their tasks.
"""
