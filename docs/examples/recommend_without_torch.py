"""Recommend items from an ONNX export, with numpy and onnxruntime alone.

    python recommend_without_torch.py EXPORT ITEM [ITEM ...]

The items are a history, the oldest first. Models that read times also take an array of times.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

folder, history = Path(sys.argv[1]), sys.argv[2:]
about = json.loads((folder / "manifest.json").read_text())
ids = json.loads((folder / "items.json").read_text(encoding="utf-8"))
if about["times"] != "none":
    sys.exit(f"{folder}: the model reads times, and this example has none")

token = {str(item): number for number, item in enumerate(ids, 1)}
known = [token[item] for item in history if item in token]
if known:
    encoder = onnxruntime.InferenceSession(folder / "encoder.onnx")
    head = onnxruntime.InferenceSession(folder / "head.onnx")
    window = known[-about["max_sequence_length"] :]
    inputs = {"items": np.array([window]), "lengths": np.array([len(window)])}
    names = [value.name for value in encoder.get_outputs()]
    last = dict(zip(names, encoder.run(None, inputs), strict=True))  # once per history
    candidates = np.arange(1, len(ids) + 1)[None]  # or any other item tokens, [batch, candidates]
    given = {"candidates": candidates, "lengths": inputs["lengths"], **last}
    (scores,) = head.run(None, {value.name: given[value.name] for value in head.get_inputs()})[0]
else:  # the encoder needs an item: recommend the most popular ones
    scores = np.array(json.loads((folder / "popularity.json").read_text()), dtype=np.float32)
if about["seen"] == "filter":
    scores[np.array(known, dtype=int) - 1] = -np.inf  # those before the window too
for column in np.argsort(-scores, kind="stable")[:10]:
    if scores[column] > -np.inf:
        print(ids[column], scores[column])
