"""The sides import libraries that only their own environments have."""

collect_ignore_glob = ["*_side.py", "plain_fastapi.py"]
