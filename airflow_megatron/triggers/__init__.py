"""Airflow triggers; they only observe, and may run twice without harm."""
