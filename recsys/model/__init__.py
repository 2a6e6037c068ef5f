"""Pure torch: attention, encoder, heads. Knows no files, no Lightning, no MLflow."""
