"""Export a bundle to ONNX: a graph that encodes histories, one that scores candidates, and ids."""

from __future__ import annotations

import copy
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

from recsys.data.histories import PAD, Float32s, Histories, Int32s
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.tables import evaluate
from recsys.folders import FolderManifest, new_folder
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.scorer import batches_of_similar_length
from recsys.model.embeddings import ItemEmbeddings
from recsys.model.encoder import TimesRead
from recsys.model.heads import Head, LastRepresentation
from recsys.model.models import AveragedModel, Model, ModelInputs
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.serving.bundle import ModelBundle, for_evaluation

ENCODER, HEAD = "encoder.onnx", "head.onnx"
_ELEMENTS, _TOKENS = 1 << 22, 1 << 12
"""The elements that the head holds, and the tokens that the encoder reads, at once, about."""
_TOLERANCE = 1e-4
_LARGEST_FILE = 1 << 30
"""Bytes of weights above which they are files of their own: one of a graph may not exceed 2 GiB."""


class ExportManifest(FolderManifest):
    """The manifest of an export."""

    noun: ClassVar[str] = "an ONNX export"
    remedy: ClassVar[str] = "export the bundle again"

    format: Literal["recsys.onnx"] = "recsys.onnx"
    format_version: int = 1
    bundle: str
    """The digest of the manifest of the bundle that was exported."""
    num_items: int
    """Entry i of items.json, counted from 0, is item token i + 1."""
    max_sequence_length: int
    """The most items of a history, the latest ones, that the encoder takes."""
    times: TimesRead
    """The times that the encoder takes: of a row's items and, right after them, of its request."""
    seen: Literal["filter", "allow"]
    int8: bool
    largest_difference: float
    """The largest difference of a score from torch's, before weights were rounded to 8 bits."""
    ndcg_at_10: dict[str, float]
    """NDCG@10 on the test targets of the given dataset: float32, and int8 if that was made."""


def export_onnx(
    bundle: ModelBundle,
    out: str | os.PathLike[str],
    *,
    int8: bool = False,
    model_alone: bool = False,
    dataset: PreparedDataset | None = None,
) -> ExportManifest:
    """Write a bundle as two ONNX graphs, checked against torch; an earlier export is replaced.

    With ``int8`` the weights are rounded to 8 bits, with ``model_alone`` the count ensemble is left
    out. With a dataset, NDCG@10 on its test targets is measured.

    Raises:
        InputError: the model has no ONNX graph, the graphs differ from torch by more than 1e-4, the
            dataset does not fit the model, or the folder cannot be written.
    """
    out = Path(out)
    ExportManifest.previous(out)
    if model_alone:
        bundle = replace(bundle, count_ensemble=None)
    model = _exportable(bundle)
    longest = bundle.experiment.model.max_sequence_length
    evaluated = None if dataset is None else for_evaluation(bundle, dataset, "test")
    with new_folder(out) as folder, _quiet():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            graphs = Path(scratch) if int8 else folder
            _write_graphs(model, longest, graphs)
            scorer = OnnxScorer(graphs, bundle.num_items, longest)
            difference = _check(model, scorer, longest)
            ndcg = {} if evaluated is None else {"float32": _ndcg(scorer, bundle, evaluated)}
            if int8:
                for name in (ENCODER, HEAD):
                    quantize_dynamic(graphs / name, folder / name, weight_type=QuantType.QInt8)
                rounded = OnnxScorer(folder, bundle.num_items, longest)
                if evaluated is not None:
                    ndcg["int8"] = _ndcg(rounded, bundle, evaluated)
        for name, column in (("items.json", "item_id"), ("popularity.json", "count")):
            values = json.dumps(bundle.item_table[column].to_list(), ensure_ascii=False)
            (folder / name).write_text(values, encoding="utf-8")
        manifest = ExportManifest(
            bundle=bundle.manifest.digest,
            num_items=bundle.num_items,
            max_sequence_length=longest,
            times=bundle.times,
            seen=bundle.experiment.evaluation.seen,
            int8=int8,
            largest_difference=difference,
            ndcg_at_10=ndcg,
        )
        manifest.write(folder)
    return manifest


def _exportable(bundle: ModelBundle) -> Model:
    """Return a copy of the model, whose items are one table (of each member of a mean too)."""
    reason = None
    if bundle.trained is None:
        reason = f"the baseline {bundle.experiment.baseline} counts, and has no graph"
    elif bundle.count_ensemble is not None:
        reason = "its count ensemble has no graph: --model-alone leaves it out"
    elif isinstance(bundle.model, SequenceToSequence):
        reason = "a sequence_to_sequence model generates step by step, which is no graph"
    elif bundle.encoders.input_columns:
        columns = ", ".join(bundle.encoders.input_columns)
        reason = f"the model reads features of interactions or users ({columns})"
    if reason is not None:
        raise InputError(f"{bundle.path}: cannot be exported to ONNX: {reason}")
    model = copy.deepcopy(bundle.model).to("cpu").eval()
    for part in [part for part in model.modules() if isinstance(part, Model)]:
        if part.items.features is not None or isinstance(part, AveragedModel):
            with torch.no_grad():
                table = part.items.table()
            part.items = ItemEmbeddings(len(table) - 1, table.shape[1])
            part.items.weight = nn.Parameter(table, requires_grad=False)
    return model


class EncoderGraph(nn.Module):
    """Item tokens [B, L], lengths [B] and perhaps times [B, L + 1] to what scores need of them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, items: Tensor, lengths: Tensor, times: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The state [B, D]; of target attention also keys and values [B, H, L, d]."""
        last = self.model.encode_last(ModelInputs(items, lengths, times))
        return last[:3] if self.model.head.attends else last[:1]


class HeadGraph(nn.Module):
    """Candidates [B, C] and what the encoder made of histories to scores [B, C]."""

    def __init__(self, items: ItemEmbeddings, head: Head) -> None:
        super().__init__()
        self.items = items
        self.head = head

    def forward(self, candidates: Tensor, lengths: Tensor, last: tuple[Tensor, ...]) -> Tensor:
        """The scores of item tokens; that of 0 (PAD) has no meaning."""
        state, *attended = last
        keys, values = attended if self.head.attends else (state, state)
        represented = self.head.represent_candidates(self.items(candidates))
        return self.head.score_last(LastRepresentation(state, keys, values, lengths), represented)


def _draw(
    model: Model, lengths: list[int], candidates: int, seed: int = 0
) -> tuple[Histories, Int32s]:
    """Draw histories of some lengths, with times, and candidates of each."""
    drawn, offsets = np.random.default_rng(seed), np.cumsum([0, *lengths])
    count, end = len(lengths), offsets[-1]
    times = drawn.integers(0, 10**6, end + count).cumsum()
    items = drawn.integers(1, model.num_items + 1, end, dtype=np.int32)
    given = drawn.integers(1, model.num_items + 1, (count, candidates), dtype=np.int32)
    return Histories(items, offsets, times[:end], times[end:]), given


@torch.no_grad()
def _write_graphs(model: Model, longest: int, folder: Path) -> None:
    # Dimensions of 1 would be taken for constants.
    histories, drawn = _draw(model, [min(longest, 7), max(1, min(longest, 7) - 3)], 5)
    inputs = {name: torch.from_numpy(array) for name, array in _read(histories).items()}
    if model.times == "none":
        del inputs["times"]
    candidates = torch.from_numpy(drawn.astype(np.int64))
    encoder, head = EncoderGraph(model).eval(), HeadGraph(model.items, model.head).eval()
    last = encoder(**inputs)
    names = ["state", "keys", "values"][: len(last)]
    axes = {
        "items": {0: "batch", 1: "length"},
        "lengths": {0: "batch"},
        "times": {0: "batch", 1: "length_plus_one"},
    }
    of_last = [{0: "batch", 2: "length"} if tensor.dim() == 4 else {0: "batch"} for tensor in last]

    def save(
        name: str, graph: nn.Module, given: Sequence[object], inputs: list[str], *shapes: object
    ) -> None:
        program = torch.onnx.export(
            graph,
            tuple(given),
            input_names=inputs,
            output_names=names if graph is encoder else ["scores"],
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
        assert program is not None  # noqa: S101 - without a file name, it is returned
        weights = sum(weight.numel() * 4 for weight in graph.state_dict().values())
        program.save(str(folder / name), external_data=weights > _LARGEST_FILE)

    save(ENCODER, encoder, [*inputs.values()], [*inputs], *(axes[name] for name in inputs))
    given = candidates, inputs["lengths"], last
    shapes = {0: "batch", 1: "candidates"}, axes["lengths"], tuple(of_last)
    save(HEAD, head, given, ["candidates", "lengths", *names], *shapes)


def _check(model: Model, scorer: OnnxScorer, longest: int) -> float:
    """Return the largest difference of scores from torch's; refuse one above the tolerance."""
    exact, differences = ModelScorer(model, longest), list[Tensor]()
    for number, length in enumerate(sorted({1, min(7, longest), longest})):
        shorter = max(1, length // 2)
        for lengths in ([length], [length, shorter, 1]):  # in the second batch, rows are padded
            drawn = _draw(model, lengths, 1 + number, seed=number)
            differences.append((scorer.score(*drawn) - exact.score(*drawn)).abs().max())
    largest = float(torch.stack(differences).max())
    if not largest <= _TOLERANCE:  # NaN too
        raise InputError(f"export: scores of ONNX and torch differ by {largest:.1e}")
    return largest


def _ndcg(scorer: OnnxScorer, bundle: ModelBundle, dataset: PreparedDataset) -> float:
    config = bundle.experiment.evaluation
    holdout = find_holdout(dataset, "test", config.request_time)
    ranks = evaluate(scorer, holdout, "test", config.seen)
    return ranks.summary(["ndcg_at_10"])["ndcg_at_10"].mean


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


Arrays = Sequence[NDArray[np.generic]]
_OF_HEAD = ("candidates", "lengths", "state", "keys", "values")


class OnnxScorer:
    """Scores of the two graphs of an export, of I items and the latest items of a history."""

    def __init__(self, folder: Path, num_items: int, max_sequence_length: int) -> None:
        self._encoder, self._head = session(folder / ENCODER), session(folder / HEAD)
        self.num_items = num_items
        self._max_sequence_length = max_sequence_length

    def score(self, histories: Histories, candidates: Int32s | None = None) -> Tensor:
        recent = histories.latest(self._max_sequence_length)
        if candidates is None:
            everything = np.arange(self.num_items + 1, dtype=np.int32)
            candidates = np.broadcast_to(everything, (len(histories), len(everything)))
        scores: Float32s = np.empty(candidates.shape, dtype=np.float32)
        for rows in batches_of_similar_length(recent.lengths, _TOKENS, _TOKENS):
            batch = recent.take(rows)
            last = _run(self._encoder, _read(batch))
            step = max(1, _ELEMENTS // (len(rows) * sum(part[0].size for part in last)))
            for start in range(0, scores.shape[1], step):
                columns = slice(start, start + step)
                tokens = candidates[rows, columns].astype(np.int64)
                given = zip(_OF_HEAD, (tokens, batch.lengths, *last), strict=False)
                (found,) = _run(self._head, dict(given))
                scores[rows, columns] = np.where(tokens == PAD, -np.inf, found)
        return torch.from_numpy(scores)


def _read(histories: Histories) -> dict[str, NDArray[np.int64]]:
    """Return what an encoder may read of histories."""
    arrays = histories.padded().astype(np.int64), histories.lengths, histories.padded_times()
    inputs = dict(zip(("items", "lengths", "times"), arrays, strict=True))
    return {name: array for name, array in inputs.items() if array is not None}


def session(path: Path) -> onnxruntime.InferenceSession:
    """Open a graph, on the CPU."""
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def _run(graph: onnxruntime.InferenceSession, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
    names = [value.name for value in graph.get_inputs()]
    return graph.run(None, {name: np.ascontiguousarray(inputs[name]) for name in names})
