"""From interaction logs to prepared datasets and batches."""
