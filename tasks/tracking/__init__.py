"""Everything that speaks MLflow, and what the console prints."""

from tasks.tracking import mlflow_store  # noqa: F401  first, because it sets what MLflow reads when it is imported
