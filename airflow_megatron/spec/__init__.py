"""Sweep specs: documents, expansion, expressions, and the Sweep/Point/Stage/Job model. Imports no Airflow."""
