"""The typed settings of an experiment, with their documentation."""
