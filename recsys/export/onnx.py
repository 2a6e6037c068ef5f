"""Export a bundle to ONNX: two graphs, the ids of the items, and what made them."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.tables import evaluate
from recsys.export.graphs import (
    BATCH,
    CANDIDATES,
    LENGTH,
    TIMES,
    EncoderGraph,
    HeadGraph,
    Inputs,
    plain_items,
)
from recsys.export.manifest import ExportManifest
from recsys.export.runtime import ENCODER, HEAD, OnnxScorer, session
from recsys.folders.atomic import new_folder
from recsys.folders.digests import folder_sha256
from recsys.inference.model_scorer import evaluating
from recsys.model.averaged import AveragedModel
from recsys.model.models import Model, ModelInputs
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.serving.bundle import ModelBundle
from recsys.serving.calibration import for_evaluation

_TOLERANCE = 1e-4
_ITEMS, _POPULARITY = "items.json", "popularity.json"
_LARGEST_FILE = 1 << 30
"""Bytes of weights above which they are files of their own: one of a graph may not exceed 2 GiB."""


def export_onnx(
    bundle: ModelBundle,
    out: str | os.PathLike[str],
    *,
    int8: bool = False,
    dataset: PreparedDataset | None = None,
) -> ExportManifest:
    """Write a bundle as two ONNX graphs, and check them against torch.

    The folder appears with all of its files or not at all; an earlier export there is replaced.

    Args:
        bundle: the bundle.
        out: the folder.
        int8: round the weights to 8 bits.
        dataset: the dataset whose test targets NDCG@10 is measured on; not measured if None.

    Returns:
        The manifest that was written.

    Raises:
        InputError: the model has no ONNX graph, the graphs differ from torch by more than 1e-4, the
            dataset does not fit the model, or the folder cannot be written.
    """
    out = Path(out)
    ExportManifest.previous(out)
    model = _exportable(bundle).to("cpu")
    longest = bundle.experiment.model.max_sequence_length
    evaluated = None if dataset is None else for_evaluation(bundle, dataset, "test")
    with new_folder(out) as folder, plain_items(model), evaluating(model), _quiet():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            graphs = Path(scratch) if int8 else folder
            _write_graphs(model, longest, graphs)
            scorer = OnnxScorer(graphs, bundle.num_items, longest)
            difference = _check(model, scorer, longest)
            ndcg = {} if evaluated is None else {"float32": _ndcg(scorer, bundle, evaluated)}
            encoder, head = session(graphs / ENCODER), session(graphs / HEAD)
            if int8:
                _round(graphs, folder)
                rounded = OnnxScorer(folder, bundle.num_items, longest)
                if evaluated is not None:
                    ndcg["int8"] = _ndcg(rounded, bundle, evaluated)
        items = json.dumps(bundle.vocabulary.ids.to_list(), ensure_ascii=False)
        (folder / _ITEMS).write_text(items, encoding="utf-8")
        counts = bundle.item_table["count"].to_list()
        (folder / _POPULARITY).write_text(json.dumps(counts), encoding="utf-8")
        manifest = ExportManifest(
            bundle=bundle.manifest.digest,
            experiment=bundle.experiment.name,
            model=bundle.experiment.family,
            git_commit=bundle.manifest.git_commit,
            num_items=bundle.num_items,
            max_sequence_length=longest,
            times=bundle.times,
            seen=bundle.manifest.protocol.seen,
            encoder_inputs=[one.name for one in encoder.get_inputs()],
            encoder_outputs=[one.name for one in encoder.get_outputs()],
            head_inputs=[one.name for one in head.get_inputs()],
            int8=int8,
            largest_difference=difference,
            ndcg_at_10=ndcg,
            files=folder_sha256(folder),
        )
        manifest.write(folder)
    return manifest


def _exportable(bundle: ModelBundle) -> Model:
    """Return the model of a bundle that ONNX graphs can replace.

    Raises:
        InputError: they cannot.
    """
    reason = None
    if bundle.trained is None:
        reason = f"the baseline {bundle.experiment.baseline} counts, and has no graph"
    elif bundle.count_ensemble is not None:
        reason = "its count ensemble has no graph: train without count_ensemble"
    elif isinstance(bundle.model, SequenceToSequence):
        reason = "a sequence_to_sequence model generates step by step, which is no graph"
    elif isinstance(bundle.model, AveragedModel):
        reason = "it is a mean of models: export one that is trained by itself"
    elif bundle.encoders.reads_inputs:
        columns = ", ".join(bundle.encoders.input_columns)
        reason = f"the model reads features of interactions or users ({columns})"
    if reason is not None:
        raise InputError(f"{bundle.path}: cannot be exported to ONNX: {reason}")
    return bundle.model


def _write_graphs(model: Model, longest: int, folder: Path) -> None:
    # Dimensions of 1 would be taken for constants.
    lengths = [min(longest, 7), max(1, min(longest, 7) - 3)]
    inputs = Inputs.draw(lengths, 5, model.num_items, timed=model.times != "none")
    encoder = EncoderGraph(model).eval()
    head = HeadGraph(model.items, model.head).eval()
    with torch.no_grad():
        last = encoder(**inputs.encoder)
    shapes = {
        "items": {0: BATCH, 1: LENGTH},
        "lengths": {0: BATCH},
        "times": {0: BATCH, 1: TIMES},
    }
    names = ["state", "keys", "values"][: len(last)]
    _write_graph(
        encoder,
        tuple(inputs.encoder.values()),
        tuple(shapes[name] for name in inputs.encoder),
        [*inputs.encoder],
        names,
        folder / ENCODER,
    )
    of_last = tuple({0: BATCH, 2: LENGTH} if part.dim() == 4 else {0: BATCH} for part in last)
    _write_graph(
        head,
        (inputs.candidates, inputs.lengths, last),
        ({0: BATCH, 1: CANDIDATES}, {0: BATCH}, of_last),
        ["candidates", "lengths", *names],
        ["scores"],
        folder / HEAD,
    )


def _write_graph(
    graph: nn.Module,
    inputs: tuple[Any, ...],
    shapes: tuple[Any, ...],
    names: Sequence[str],
    outputs: Sequence[str],
    path: Path,
) -> None:
    with torch.no_grad():
        program = torch.onnx.export(
            graph,
            inputs,
            input_names=names,
            output_names=outputs,
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # noqa: S101 - without a file name, it is returned
    weights = sum(weight.numel() * 4 for weight in graph.state_dict().values())
    program.save(str(path), external_data=weights > _LARGEST_FILE)


def _check(model: Model, scorer: OnnxScorer, longest: int) -> float:
    """Return the largest difference between scores of the graphs and of torch.

    Raises:
        InputError: it is above the tolerance.
    """
    largest = 0.0
    for number, length in enumerate(sorted({1, min(7, longest), longest})):
        shorter = max(1, length // 2)
        for lengths in ([length], [length, shorter, 1]):  # in the second batch, rows are padded
            timed = model.times != "none"
            inputs = Inputs.draw(lengths, 1 + number, model.num_items, timed=timed, seed=number)
            expected = _torch_scores(model, inputs).numpy()
            last = scorer.encode({name: part.numpy() for name, part in inputs.encoder.items()})
            found = scorer.score_encoded(inputs.candidates.numpy(), inputs.lengths.numpy(), last)
            largest = max(largest, float(abs(found - expected).max()))
    if not largest <= _TOLERANCE:  # NaN too
        raise InputError(f"export: scores of ONNX and torch differ by {largest:.1e}")
    return largest


@torch.no_grad()
def _torch_scores(model: Model, inputs: Inputs) -> Tensor:
    """Score as `ModelScorer` does."""
    last = model.encode_last(ModelInputs(inputs.items, inputs.lengths, inputs.times))
    candidates = model.head.represent_candidates(model.items(inputs.candidates))
    return model.head.score_last(last, candidates)


def _round(graphs: Path, folder: Path) -> None:
    """Round the weights of both graphs to 8 bits."""
    for name in (ENCODER, HEAD):
        quantize_dynamic(graphs / name, folder / name, weight_type=QuantType.QInt8)


def _ndcg(scorer: OnnxScorer, bundle: ModelBundle, dataset: PreparedDataset) -> float:
    """Return NDCG@10 on the test targets, ranked among all items."""
    config = bundle.experiment.evaluation
    holdout = find_holdout(dataset, "test", config.request_time)
    ranks = evaluate(scorer, holdout, "test", config.seen)
    return ranks.summary(["ndcg_at_10"])["ndcg_at_10"].mean


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the notes of the exporter and of the quantiser, which a user cannot act on."""
    names = ("torch.onnx", "onnxscript", "onnx_ir", "root")
    loggers = [logging.getLogger(None if name == "root" else name) for name in names]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
