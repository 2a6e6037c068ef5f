"""Commands that use a trained bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from recsys.cli.answers import (
    At,
    Histories,
    NewItems,
    Probabilities,
    Users,
    open_recommender,
    request_time,
    show_answer,
    write_answer,
)
from recsys.cli.options import Bundle, Data, Json, Out, app
from recsys.console import ids_like, show_frame
from recsys.errors import InputError
from recsys.progress import stage

if TYPE_CHECKING:
    from recsys.serving.large_answers import LargeAnswer


@app.command("score")
def score_items(
    bundle: Bundle,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[HISTORIES] [CANDIDATES]",
            help="Log of the users' histories, as for recommend (not with --data); and table of "
            "the candidates: user_id and item_id, or item_id alone for all users (not with "
            "--item). Columns may have their names in the training log.",
        ),
    ] = None,
    user: Users = None,
    data: Data = None,
    item: Annotated[
        list[str] | None,
        typer.Option("--item", help="A candidate for all users; repeatable."),
    ] = None,
    new_items: NewItems = None,
    at: At = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse unknown candidates. Default: leave them out, and say so."
        ),
    ] = False,
    probabilities: Probabilities = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Score given items for given users; other items are not scored.

    The column source says which scores are the model's, and which are counts of interactions
    (popularity), for users without a history: the two are on other scales.

    With --data and no --user, the users are those of the candidates. With --out histories and
    candidates may be larger than the memory, and an interrupted run resumes when it is repeated.
    """
    from recsys.serving.large_scores import LargeScores

    recommender, users = open_recommender(bundle, data, user)
    recommender.bundle.use_gpu()
    needed = (["HISTORIES"] if data is None else []) + (["CANDIDATES"] if not item else [])
    given = files or []
    if len(given) != len(needed):
        wanted = " and ".join(needed) or "no file"
        raise InputError(f"score: give {wanted} here, not {len(given)} files (see score --help)")
    histories = given[0] if data is None else None
    candidates: Any = ids_like(item, recommender.bundle.vocabulary.ids) if item else given[-1]
    if new_items is not None:
        recommender = recommender.with_new_items(new_items)
    time = request_time(at)
    if out is None:
        with stage("scoring"):
            answer = recommender.score(
                histories,
                candidates,
                users=users,
                at=time,
                strict=strict,
                probabilities=probabilities,
            )
        show_answer(answer, recommender, as_json)
        return

    def write(large: LargeAnswer) -> int:
        scores = LargeScores(large, time, strict, probabilities)
        return scores.of_items(candidates) if item else scores.of_table(candidates)

    write_answer(
        recommender,
        out,
        as_json,
        write,
        request={
            "candidates": candidates,
            "at": at,
            "strict": strict,
            "new_items": new_items,
            "probabilities": probabilities,
        },
        histories=histories,
        users=users,
    )


@app.command("generate")
def generate_items(
    bundle: Bundle,
    histories: Histories = None,
    user: Users = None,
    data: Data = None,
    n: Annotated[
        int, typer.Option("-n", help="Purchases per user, up to model.max_generated.")
    ] = 5,
    beam: Annotated[
        int | None,
        typer.Option(
            help="Beam search: keep so many lists at each step. Default: the most probable item "
            "at each step."
        ),
    ] = None,
    sample: Annotated[
        bool,
        typer.Option("--sample", help="Draw each item at random from the model's probabilities."),
    ] = False,
    temperature: Annotated[
        float,
        typer.Option(help="With --sample: below 1 favours probable items, above 1 the others."),
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(help="With --sample: draw only from the k most probable items.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="With --sample: draw only from the fewest items with this total probability."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="With --sample: seed of the draws.")
    ] = 0,
    candidates: Annotated[
        Path | None, typer.Option(help="Table of item_id: only these items may be generated.")
    ] = None,
    repeats: Annotated[
        bool, typer.Option("--repeats", help="Allow an item more than once in a list.")
    ] = False,
    seen: Annotated[
        Literal["filter", "allow"] | None,
        typer.Option(help="Whether to filter items of the history. Default: as in training."),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Generate the next n purchases of each user, in order.

    The model must be of kind sequence_to_sequence.
    """
    import torch

    from recsys.data.tables import read_table
    from recsys.model.generation import Beam, Greedy, Sampling, Strategy

    if sample and beam is not None:
        raise InputError("give --beam or --sample, not both")
    strategy: Strategy = Greedy()
    if beam is not None:
        strategy = Beam(beam)
    if sample:
        strategy = Sampling(torch.Generator().manual_seed(seed), temperature, top_k, top_p)
    elif (temperature, top_k, top_p) != (1.0, None, None):
        raise InputError("--temperature, --top-k and --top-p need --sample")
    allowed = None
    if candidates is not None:
        allowed = read_table(candidates, ["item_id"], str(candidates))["item_id"].to_list()
    recommender, users = open_recommender(bundle, data, user)
    recommender.bundle.use_gpu()
    with stage("generating"):
        answer = recommender.generate(
            histories,
            users=users,
            n=n,
            strategy=strategy,
            candidates=allowed,
            seen=seen,
            repeats=repeats,
        )
    show_answer(answer, recommender, as_json, out)


@app.command("explain")
def explain_item(
    bundle: Bundle,
    user: Annotated[str, typer.Option(help="A user of the dataset.")],
    item: Annotated[str, typer.Option(help="The item whose score to explain.")],
    data: Annotated[Path, typer.Option(help="The prepared dataset.")],
    at: At = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show what each purchase of a user adds to the score of an item, the largest part first."""
    recommender, users = open_recommender(bundle, data, [user])
    (item_id,) = ids_like([item], recommender.bundle.vocabulary.ids)
    (user_id,) = users or [user]
    show_frame(recommender.explain(user=user_id, item=item_id, at=request_time(at)), out, as_json)
