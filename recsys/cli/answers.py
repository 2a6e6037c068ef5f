"""Commands that use a trained model: recommend, score, generate, explain, similar, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import polars as pl
from typer import Argument, Option

from recsys.cli.options import Bundle, BundleData, Data, Index, Out, OutFile, Retrieve, command
from recsys.console import AS_JSON, show_frame, show_rows, write_frames
from recsys.errors import InputError
from recsys.loading import load
from recsys.progress import stage

if TYPE_CHECKING:
    from recsys.data.prepared import PreparedDataset
    from recsys.serving.recommender import Recommender

_ROWS, _USERS = 1 << 20, 1 << 14
"""Rows of an answer, and users of a dataset, that are in the memory at once."""
Histories = Annotated[
    Path | None,
    Argument(help="Log of the users' histories, with the columns of the features the model reads."),
]
At = Annotated[
    str | None,
    Option(help="Request time, for model.times=request: a date, or a number on the log's scale."),
]
NewItems = Annotated[
    Path | None,
    Option(help="Table of items newer than the model: item_id and columns of its item features."),
]
Probabilities = Annotated[
    bool, Option("--probabilities", help="Add the calibrated probability of each item.")
]
Seen = Annotated[
    Literal["filter", "allow"] | None,
    Option(help="Whether items of the history are left out. Default: as in training."),
]
Users = Annotated[list[str] | None, Option("--user", help="A user of --data; repeatable.")]


def show_answer(answer: pl.DataFrame, recommender: Recommender, out: Path | None = None) -> None:
    """Print an answer, on a terminal with the names of the items; or write it to a file."""
    names = recommender.bundle.name_columns
    if names and out is None and not AS_JSON.get():
        table, position = recommender.bundle.item_table, answer.columns.index("item_id") + 1
        named = answer.join(table, on="item_id", how="left", maintain_order="left")
        for column, name in enumerate(names, position):
            answer.insert_column(column, named[name].fill_null(""))
    show_frame(answer, out)


def open_recommender(
    bundle: Path, data: Path | None = None, new_items: Path | None = None
) -> Recommender:
    """Open a recommender, on the GPU if there is one."""
    recommender = load(bundle, data)
    recommender.bundle.use_gpu()
    return recommender if new_items is None else recommender.with_new_items(new_items)


@command("recommend", "Recommend and explain")
def recommend_items(
    bundle: Bundle,
    histories: Histories = None,
    user: Users = None,
    data: Data = None,
    k: Annotated[int | None, Option("-k")] = None,
    seen: Seen = None,
    where: str | None = None,
    allow: Path | None = None,
    deny: Path | None = None,
    diversity: Annotated[float | None, Option(min=0.0, max=1.0)] = None,
    at_most: list[str] | None = None,
    new_items: NewItems = None,
    at: At = None,
    retrieve: Retrieve = None,
    index: Index = None,
    probabilities: Probabilities = False,
    out: Out = None,
) -> None:
    """Recommend the k best items for each history, or for users of a prepared dataset.

    With --data and neither --user nor histories, all users of the dataset are answered; with --out
    some thousands at a time, so that a dataset may be larger than the memory.

    Options:
        k: Items per user; default: 10, or all if there are fewer.
        where: Condition in SQL over the item table: "category == 'boots' and price < 80".
        allow: Table of item_id: the only items to recommend.
        deny: Table of item_id: items that are not recommended.
        diversity: Weight of dissimilarity to the items chosen before (maximal marginal relevance).
        at_most: At most so many items of a list with the same value in a column of the item table:
            category=2; repeatable.
    """
    recommender = open_recommender(bundle, data, new_items)
    dataset = recommender.dataset
    if index is not None:
        recommender = recommender.with_index(index)
    k = recommender.bundle.usual_k if k is None else k
    recommend = partial(
        recommender.recommend,
        k=k,
        seen=seen,
        where=where,
        allow=allow,
        deny=deny,
        diversity=diversity,
        at_most=_caps(at_most or ()),
        at=at,
        retrieve=retrieve,
        probabilities=probabilities,
    )
    if out is None or dataset is None or histories is not None:
        with stage("recommending"):
            answer = recommend(histories, users=user)
        show_answer(answer, recommender, out)
        return
    rows = _write_answers(dataset, user, recommend, k, out)
    show_rows([{"file": str(out), "rows": rows}])


def _write_answers(
    dataset: PreparedDataset,
    users: Sequence[Any] | None,
    answer: Callable[..., pl.DataFrame],
    rows_per_user: int,
    out: Path,
) -> int:
    """Write the answers for users of a dataset, all if None, to a file; return their rows.

    The users are read some at a time. ``answer`` makes the rows of some users, so many for each of
    them at most.
    """
    known = dataset.user_ids if users is None else list(dict.fromkeys(users))
    size = min(_USERS, max(1, _ROWS // max(1, rows_per_user)))

    def frames() -> Iterator[pl.DataFrame]:
        with stage("recommending", total=max(1, ceil(len(known) / size))) as line:
            for start in range(0, max(1, len(known)), size):
                yield answer(users=known[start : start + size])
                line.advance()

    return write_frames(frames(), out)


def _caps(texts: Sequence[str]) -> dict[str, int]:
    caps = {}
    for text in texts:
        column, _, most = text.rpartition("=")
        if not column or not most.isdecimal():
            raise InputError(f"--at-most {text}: give a column and a whole number: category=2")
        caps[column] = int(most)
    return caps


@command("score", "Recommend and explain")
def score_items(
    bundle: Bundle,
    files: Annotated[list[Path] | None, Argument(metavar="[HISTORIES] [CANDIDATES]")] = None,
    user: Users = None,
    data: Data = None,
    item: list[str] | None = None,
    new_items: NewItems = None,
    at: At = None,
    strict: bool = False,
    probabilities: Probabilities = False,
    out: Out = None,
) -> None:
    """Score given items for given users; other items are not scored.

    The column source says which scores are the model's, and which are counts of interactions
    (popularity), for users without a history. With --data and no --user, the users are those of
    the candidates.

    Options:
        files: Log of the users' histories, as for recommend (not with --data); and table of the
            candidates: user_id and item_id, or item_id alone for all users (not with --item).
        item: A candidate for all users; repeatable.
        strict: Refuse unknown candidates. Default: leave them out, and say so.
    """
    paths = files or []
    needed = (["HISTORIES"] if data is None else []) + (["CANDIDATES"] if not item else [])
    if len(paths) != len(needed):
        wanted = " and ".join(needed) or "no file"
        raise InputError(f"score: give {wanted} here, not {len(paths)} files (see score --help)")
    recommender = open_recommender(bundle, data, new_items)
    candidates: Any = item or paths[-1]
    with stage("scoring"):
        answer = recommender.score(
            paths[0] if data is None else None,
            candidates,
            users=user,
            at=at,
            strict=strict,
            probabilities=probabilities,
        )
    show_answer(answer, recommender, out)


@command("generate", "Recommend and explain")
def generate_items(
    bundle: Bundle,
    histories: Histories = None,
    user: Users = None,
    data: Data = None,
    n: Annotated[int, Option("-n")] = 5,
    beam: int | None = None,
    sample: bool = False,
    temperature: float = 1.0,
    top_p: float | None = None,
    seed: Annotated[int, Option(min=0, max=2**63 - 1)] = 0,
    candidates: Path | None = None,
    repeats: bool = False,
    seen: Seen = None,
    out: Out = None,
) -> None:
    """Generate the next n purchases of each user, in order.

    The model must be of kind sequence_to_sequence.

    Options:
        n: Purchases per user, up to model.max_generated.
        beam: Beam search: keep so many lists at each step. Default: the most probable item at each
            step.
        sample: Draw each item at random from the model's probabilities.
        temperature: With --sample: below 1 favours probable items, above 1 the others.
        top_p: With --sample: draw only from the fewest items with this total probability.
        seed: With --sample: seed of the draws.
        candidates: Table of item_id: only these items may be generated.
        repeats: Allow an item more than once in a list.
    """
    import torch

    from recsys.model.sequence_to_sequence import Beam, Greedy, Sampling, Strategy

    if sample and beam is not None:
        raise InputError("give --beam or --sample, not both")
    if not sample and (temperature, top_p) != (1.0, None):
        raise InputError("--temperature and --top-p need --sample")
    strategy: Strategy = Greedy() if beam is None else Beam(beam)
    if sample:
        strategy = Sampling(torch.Generator().manual_seed(seed), temperature, top_p)
    recommender = open_recommender(bundle, data)
    with stage("generating"):
        answer = recommender.generate(
            histories,
            users=user,
            n=n,
            strategy=strategy,
            candidates=candidates,
            seen=seen,
            repeats=repeats,
        )
    show_answer(answer, recommender, out)


@command("explain", "Recommend and explain")
def explain_item(
    bundle: Bundle, user: str, item: str, data: BundleData, at: At = None, out: Out = None
) -> None:
    """Show what each purchase of a user adds to the score of an item, the largest part first.

    Options:
        user: A user of the dataset.
        item: The item whose score to explain.
    """
    recommender = open_recommender(bundle, data)
    show_frame(recommender.explain(user=user, item=item, at=at), out)


@command("similar", "Recommend and explain")
def show_similar_items(
    bundle: Bundle,
    item: Annotated[str, Argument(help="The id of an item.")],
    k: Annotated[int, Option("-k", help="Items to show.")] = 10,
    out: Out = None,
) -> None:
    """Show the items whose embeddings are the most similar to an item's, by cosine."""
    show_frame(open_recommender(bundle).similar_items(item, k), out)


@command("embeddings", "Recommend and explain")
def write_embeddings(
    bundle: Bundle, out: OutFile, histories: Histories = None, at: At = None
) -> None:
    """Write the embeddings of all items, or of histories if a log of histories is given.

    Options:
        out: File to write: .parquet, or .csv with a column for each dimension.
    """
    recommender = open_recommender(bundle)
    with stage("embedding"):
        table = recommender.embeddings("items" if histories is None else histories, at=at)
    if out.suffix == ".csv":
        (width,) = table.schema["embedding"].shape  # type: ignore[attr-defined]
        names = [f"e{dimension}" for dimension in range(width)]
        table = table.with_columns(pl.col("embedding").arr.to_struct(names)).unnest("embedding")
    show_frame(table, out)
