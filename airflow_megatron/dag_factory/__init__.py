"""From sweep specs to Airflow DAGs."""
