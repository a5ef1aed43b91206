"""Airflow notifiers, and what hands them the notices of a sweep."""
