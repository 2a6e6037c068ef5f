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
ids = json.loads((folder / "items.json").read_text())
encoder = onnxruntime.InferenceSession(folder / "encoder.onnx")
head = onnxruntime.InferenceSession(folder / "head.onnx")

token = {str(item): number for number, item in enumerate(ids, 1)}
known = [token[item] for item in history if item in token][-about["max_sequence_length"] :]
inputs = {"items": np.array([known]), "lengths": np.array([len(known)])}
last = dict(
    zip(about["encoder_outputs"], encoder.run(None, inputs), strict=True)
)  # once per history
candidates = np.arange(1, len(ids) + 1)[None]  # or any other item tokens, [batch, candidates]
given = {"candidates": candidates, "lengths": inputs["lengths"], **last}
(scores,) = head.run(None, {name: given[name] for name in about["head_inputs"]})
if about["seen"] == "filter":
    scores[0, np.array(known) - 1] = -np.inf
for column in np.argsort(-scores[0], kind="stable")[:10]:
    print(ids[column], scores[0, column])
