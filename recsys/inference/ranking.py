"""Exact ranks and best items in the entire catalogue, in bounded memory.

Users are processed in batches: no [users x catalogue] tensor is ever held. Scores are compared in
float32 whatever the precision of training: with eight bits of mantissa the top of the list ties,
and ties inflate the metrics.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recsys.data.histories import PAD, Bools, Histories, Int32s, Int64s
from recsys.errors import InputError
from recsys.inference.scorer import MOST_CANDIDATES, Scored, Scorer, Seen, TopItems, user_batches

NEVER = np.iinfo(np.int32).max
"""The rank of a target that can never be recommended: no metric credits it, whatever its k."""
_GROUP = 64
"""Neighbouring scores of which only the largest is looked at first: `torch.topk` of whole rows
took several times as long."""


class NotANumberError(InputError):
    """A score is not a number."""


@torch.inference_mode()
def rank_targets(
    scorer: Scorer,
    histories: Histories,
    targets: Int32s,
    seen: Seen,
    candidates: Histories | None = None,
    rows: Int64s | None = None,
) -> Int64s:
    """Compute the exact rank [Q] of each target, 1 = best, among all items of the catalogue.

    The rank is the number of items that score at least as high as the target, itself included, so
    a constant scorer ranks every target last. It is `NEVER` where a target cannot be recommended:
    with a score of -inf, outside its candidates, or filtered because it is in the history.

    Args:
        scorer: scores the catalogue of I items.
        histories: H complete histories before the targets; each is scored once.
        targets: item tokens [Q], 1 to I.
        seen: whether items of the history are excluded.
        candidates: the item tokens that each target is ranked among, the target included, in any
            order; if None, the entire catalogue.
        rows: the row of each target's history [Q], ascending; if None, H = Q and it is its own.
    """
    rows = np.arange(len(histories)) if rows is None else rows
    ranks = np.empty(len(targets), dtype=np.int64)
    for batch in user_batches(len(histories), scorer.num_items):
        scores = _scores(scorer, histories[batch])
        check_numbers(scorer, scores)
        first, last = np.searchsorted(rows, [batch.start, batch.stop])
        for start in range(first, last, len(scores)):  # no more rows at a time than were scored
            chunk = slice(start, min(last, start + len(scores)))
            own = rows[chunk] - batch.start
            one_each = np.array_equal(own, np.arange(len(scores)))
            ranks[chunk] = _ranks(
                scores if one_each else scores[torch.from_numpy(own).to(scores.device)],
                targets[chunk],
                histories.take(rows[chunk]),
                None if candidates is None else candidates[chunk],
                seen,
            )
    return ranks


def _ranks(
    scores: Tensor, targets: Int32s, histories: Histories, candidates: Histories | None, seen: Seen
) -> Int64s:
    """`rank_targets`, each target having its row of scores, of histories and of candidates."""
    if candidates is not None:
        # All items were scored: a score is the same number under every protocol.
        ranked = torch.zeros(scores.shape, dtype=torch.bool)
        ranked[torch.from_numpy(candidates.users), torch.from_numpy(candidates.items).long()] = True
        scores = scores.where(ranked.to(scores.device), -math.inf)
    target = torch.from_numpy(targets.astype(np.int64)).to(scores.device)
    target_score = scores.gather(1, target[:, None])
    if scores.device.type == "cpu":  # in a tenth of the time of torch's comparison and sum
        rank = torch.from_numpy(np.count_nonzero(scores.numpy() >= target_score.numpy(), axis=1))
    else:
        rank = (scores >= target_score).sum(1)
    # Subtract excluded items afterwards: faster than a copy of the scores without them.
    rows, tokens = excluded_items(histories, seen, scores.device)
    ahead = scores[rows, tokens] >= target_score[rows, 0]
    rank -= torch.bincount(rows[ahead], minlength=len(rank))
    rank[target_score[:, 0] == -math.inf] = NEVER
    rank[rows[tokens == target[rows]]] = NEVER
    return rank.cpu().numpy()


def excluded_items(histories: Histories, seen: Seen, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the rows and the item tokens of scores that do not count, none twice.

    They are PAD of every history and, if seen items are filtered, each of its items.
    """
    users = len(histories)
    rows, tokens = np.arange(users), np.zeros(users, dtype=np.int64)
    if seen == "filter":
        pairs = np.unique(histories.items.astype(np.int64) * users + histories.users)
        rows, tokens = np.append(rows, pairs % users), np.append(tokens, pairs // users)
    return torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device)


@torch.inference_mode()
def top_k(scorer: Scorer, histories: Histories, k: int, seen: Seen) -> TopItems:
    """Find the k best items of each user, best first; equal scores by ascending item token.

    Where a user has fewer than k items to recommend, PAD with score -inf fills the end. An
    InputError if k is not between 1 and the size of the catalogue.
    """
    if not 1 <= k <= scorer.num_items:
        raise InputError(f"k={k}: must be from 1 to {scorer.num_items}, the size of the catalogue")
    if (find := getattr(scorer, "top_k", None)) is not None:  # an index does not score all items
        return find(histories, k, seen)
    items, values = no_items(len(histories), k)
    for users in user_batches(len(histories), scorer.num_items):
        some = histories[users]
        scores = _scores(scorer, some)
        excluded = excluded_items(some, seen, scores.device)
        original = scores[excluded]  # the scores are the scorer's: a copy of all takes longer
        scores[excluded] = -math.inf
        items[users], values[users] = _best(scorer, scores, k)
        scores[excluded] = original
    return items, values


def no_items(users: int, k: int) -> TopItems:
    """Return PAD [B, k] and scores of -inf."""
    return np.full((users, k), PAD, dtype=np.int32), np.full((users, k), -np.inf, dtype=np.float32)


def _best(scorer: Scorer, scores: Tensor, k: int) -> TopItems:
    """See `top_k`: the best of scores [B, I + 1], of which k groups of neighbours are looked at."""
    width = scores.shape[1]
    size = max(1, min(_GROUP, 1 << int(width // (4 * k)).bit_length() >> 1))
    whole = width - width % size
    highest = scores[:, :whole].unflatten(1, (-1, size)).amax(2)
    group = _first_best(highest, k).sort(dim=1).values
    tokens = (group[..., None] * size + torch.arange(size, device=scores.device)).flatten(1)
    rest = torch.arange(whole, width, device=scores.device).expand(len(scores), -1)
    tokens = torch.cat([tokens, rest], dim=1)  # ascending: of equal scores the first is better
    known = scores.gather(1, tokens)
    check_numbers(scorer, known)  # NaN is above all numbers
    order = _first_best(known, k)
    best, tokens = known.gather(1, order), tokens.gather(1, order)
    tokens[best == -math.inf] = PAD
    return tokens.cpu().numpy().astype(np.int32), best.cpu().numpy()


def _first_best(scores: Tensor, k: int) -> Tensor:
    """Return the columns of the k highest scores of each row, of equal ones the first."""
    values, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    level = (values[:, 1:] == values[:, :-1]).any(1)
    if level.any():  # `torch.topk` takes any of equal scores, and a stable sort takes much longer
        ordered = scores[level].sort(dim=1, descending=True, stable=True).indices
        columns[level] = ordered[:, : columns.shape[1]]
    return columns[:, :k]


def _scores(scorer: Scorer, histories: Histories) -> Tensor:
    scores, width = scorer.score(histories), scorer.num_items + 1
    if scores.shape[1] != width or scores.dtype != torch.float32:
        raise ValueError(f"{type(scorer).__name__}.score: not float32 [B, {width}]")
    return scores


def check_numbers(scorer: Scorer, scores: Tensor) -> None:
    """Refuse scores one of which is not a number."""
    if scores.numel() and scores.amax().isnan():  # the largest of numbers one of which is NaN
        raise NotANumberError(f"{type(scorer).__name__}.score gave NaN: did its training diverge?")


@dataclass(frozen=True, slots=True, eq=False)
class AllowedItems:
    """A `Scorer`: the scores of another one for the allowed items, -inf for all others."""

    scorer: Scorer
    allowed: Bools
    """Shape [I + 1]: whether each item token is allowed; PAD is not."""

    @property
    def num_items(self) -> int:
        return self.scorer.num_items

    def score(self, histories: Histories, candidates: Int32s | None = None) -> Tensor:
        """See `Scorer.score`. Where few items are allowed, only these are scored."""
        few = np.flatnonzero(self.allowed).astype(np.int32)
        if candidates is None and len(few) <= MOST_CANDIDATES * self.num_items:
            own = self.scorer.score(histories, np.tile(few, (len(histories), 1)))
            scores = own.new_full((len(histories), self.num_items + 1), -torch.inf)
            scores[:, torch.from_numpy(few).long().to(own.device)] = own
            return scores
        scores = self.scorer.score(histories, candidates)
        left_out = ~self.allowed if candidates is None else ~self.allowed[candidates]
        return scores.masked_fill(torch.from_numpy(left_out).to(scores.device), -torch.inf)


@dataclass(frozen=True, slots=True, eq=False)
class TwoStages:
    """A `Scorer`: the ranker's scores of each user's N best items of the retriever, else -inf.

    100,000 items took 2.4 ms a user in place of 30.7 ms with target attention (N = 500).
    """

    retriever: Scorer
    ranker: Scorer
    retrieve: int
    """N, at least 1; or all items, if they are fewer."""
    seen: Seen
    """With "filter", no item of the history is retrieved."""

    @property
    def num_items(self) -> int:
        return self.ranker.num_items

    def score(self, histories: Histories, candidates: Int32s | None = None) -> Tensor:
        count = min(self.retrieve, self.num_items)
        retrieved, _ = top_k(self.retriever, histories, count, self.seen)
        ranked = self.ranker.score(histories, retrieved)
        scores = ranked.new_full((len(histories), self.num_items + 1), -torch.inf)
        # Where fewer than N items are left to retrieve, PAD fills the end, and scores -inf.
        scores.scatter_(1, torch.from_numpy(retrieved).long().to(ranked.device), ranked)
        return Scored(scores).score(histories, candidates)
