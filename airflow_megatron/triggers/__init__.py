"""Airflow triggers; they only observe, so a trigger may run twice."""
