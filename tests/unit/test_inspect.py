"""Attention maps: the right weights under the right names, on a page that needs nothing else."""

from __future__ import annotations

import json
import math
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from recsys.cli import main
from recsys.config import Experiment, FactorisationMachineConfig, SequenceToSequenceConfig
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.model.attention import MultiHeadAttention
from recsys.model.heads import TargetAttentionHead
from recsys.model.recommender import SequenceRecommender, build_model
from recsys.report.attention import attention_page, write_attention_report
from recsys.report.heat_map import draw_heat_map
from recsys.scoring.bundle import ModelBundle
from recsys.scoring.inspect import AttentionMap, inspect, record_attention
from recsys.scoring.recommender import Recommender

ITEMS = ["boots", "gloves", "hat", "jacket", "socks"]


@pytest.fixture(scope="module")
def writing_bundle(
    tiny_dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> ModelBundle:
    """An encoder of one block, a decoder of two; it reads four items and writes five."""
    config = SequenceToSequenceConfig(
        kind="sequence_to_sequence",
        embedding_dim=8,
        feed_forward_dim=16,
        num_encoder_blocks=1,
        num_decoder_blocks=2,
        max_sequence_length=4,
        max_generated=5,
    )
    return write_bundle(tmp_path_factory.mktemp("bundle") / "s2s", tiny_dataset, config)


def write_bundle(
    path: Path,
    dataset: PreparedDataset,
    config: SequenceToSequenceConfig | FactorisationMachineConfig,
) -> ModelBundle:
    torch.manual_seed(4)
    model = build_model(config, dataset.num_items)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    with torch.no_grad():
        model.items.weight[0] = 0
    return ModelBundle.write(path, model, Experiment(model=config), dataset, "train")


def softmax(scores: Tensor) -> Tensor:
    """Of one row, by the book."""
    return scores.exp() / scores.exp().sum()


def make_map(rows: list[str], columns: list[str]) -> AttentionMap:
    weights = np.zeros((1, len(rows), len(columns)), dtype=np.float32)
    weights[..., 0] = 0.75
    weights[..., -1] += 0.25
    return AttentionMap("target", weights, rows, columns, ["head 1"])


class Page(HTMLParser):
    """What a browser would find in the tables, and the tags and attributes of it all."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.cells: list[str] = []
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")
        self._inside = tag
        if tag in {"td", "th"}:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside in {"td", "th"}:
            self.cells[-1] += data


# --- Weights -------------------------------------------------------------------------------------


def test_an_encoder_map_is_the_formula(tiny_bundle: ModelBundle) -> None:
    model = tiny_bundle.model
    assert isinstance(model, SequenceRecommender)
    attention, _ = inspect(tiny_bundle, ["hat", "boots", "hat"])
    assert (attention.name, attention.causal) == ("encoder-block-1", True)
    assert attention.rows == attention.columns == ["1 Top hat", "2 Snow boots", "3 Top hat"]

    block = model.encoder.blocks[0]
    layer = block.attention
    assert isinstance(layer, MultiHeadAttention)
    with torch.inference_mode():
        places = model.encoder.positions(torch.tensor([2, 1, 0]))
        x = model.items.weight[[3, 1, 3]] * 8**0.5 + places
        norm = block.attention_norm
        assert isinstance(norm, nn.LayerNorm)
        x = nn.functional.layer_norm(x, [8], norm.weight, norm.bias)
        projected = x @ layer.query_key_value.weight.T + layer.query_key_value.bias
    for head in range(2):
        query = projected[:, 4 * head : 4 * head + 4]
        key = projected[:, 8 + 4 * head : 12 + 4 * head]
        for row in range(3):
            expected = softmax(key[: row + 1] @ query[row] / math.sqrt(4))
            found = attention.weights[head, row]
            assert found[: row + 1] == pytest.approx(expected.numpy(), abs=1e-5)
            assert not found[row + 1 :].any(), "nothing later is seen"


def test_the_map_of_target_attention_is_the_formula(tiny_bundle: ModelBundle) -> None:
    model = tiny_bundle.model
    head = model.head
    assert isinstance(head, TargetAttentionHead)
    _, attention = inspect(tiny_bundle, ["hat", "boots", "socks"], items=["jacket", "hat"])
    assert attention.name == "target"
    assert attention.rows == ["1 jacket", "2 Top hat"]
    assert attention.columns == ["1 Top hat", "2 Snow boots", "3 socks"]
    assert attention.heads == [
        "head 1, half-life 2 purchases",
        "head 2, half-life 50 purchases",
    ]
    with torch.inference_mode():
        keys = head.key(head.memory_norm(model.items.weight[[3, 1, 5]] * 8**0.5))
        queries = head.query(model.items.weight[[4, 3]])
        temperature = head.log_temperature.exp().clamp(max=10)
    for h, half_life in enumerate([2, 50]):
        part = slice(4 * h, 4 * h + 4)
        for row in range(2):
            cosine = torch.cosine_similarity(queries[row, part], keys[:, part], dim=-1)
            age = torch.tensor([2.0, 1.0, 0.0])
            expected = softmax(temperature[h] * cosine - math.log(2) / half_life * age)
            assert attention.weights[h, row] == pytest.approx(expected.numpy(), abs=1e-5)


def test_weights_are_those_that_contributions_are_made_with() -> None:
    torch.manual_seed(0)
    head = TargetAttentionHead(8, 4, [2.0, 9.0], from_states=False, dropout=0.0).double()
    nn.init.normal_(head.use.weight)
    memory, lengths = torch.randn(3, 5, 8, dtype=torch.float64), torch.tensor([5, 1, 3])
    history = head.history_side(memory, memory)
    candidates = head.candidate_side(torch.randn(6, 8, dtype=torch.float64))
    weights = head.weights(history, candidates, lengths)
    assert weights.shape == (3, 2, 5, 6)
    assert torch.allclose(weights.sum(dim=2), torch.ones(3, 2, 6).double())
    assert not weights[1, :, 1:].any()
    assert not weights[2, :, 3:].any()
    evidence = history[2] @ candidates[2].mT  # [B, H, L, C]
    expected = (weights * evidence).sum(dim=1)
    assert torch.allclose(head.contributions(history, candidates, lengths), expected)


@given(history=st.lists(st.sampled_from([*ITEMS, "unheard of"]), max_size=7), n=st.integers(1, 5))
def test_a_writer_looks_at_what_it_wrote_and_at_what_it_read(
    writing_bundle: ModelBundle, history: list[str], n: int
) -> None:
    places = [place for place, item in enumerate(history, 1) if item != "unheard of"][-4:]
    left = len(set(ITEMS) - set(history))
    if not places or not left:
        return
    maps = inspect(writing_bundle, history, n=n)
    assert [one.name for one in maps] == [
        "encoder-block-1",
        "decoder-block-1",
        "cross-block-1",
        "decoder-block-2",
        "cross-block-2",
    ]
    names = {"boots": "Snow boots", "hat": "Top hat"}
    read = [f"{place} {names.get(history[place - 1], history[place - 1])}" for place in places]
    written = Recommender(writing_bundle).generate([history], n=n)["item_id"]
    steps = [f"+{step} {names.get(item, item)}" for step, item in enumerate(written, 1)]
    assert len(steps) == min(n, left)
    for one in maps:
        expected = {
            "encoder": (read, read),
            "decoder": (steps, ["begin", *steps[:-1]]),
            "cross": (steps, read),
        }
        assert (one.rows, one.columns) == expected[one.kind]
        assert one.weights.shape == (2, len(one.rows), len(one.columns))
        assert one.weights.sum(axis=-1) == pytest.approx(1, abs=1e-5)
        assert one.causal == (one.kind == "decoder")
        assert one.causal <= (np.triu(one.weights, 1) == 0).all()
    encoder = maps[0].weights
    assert encoder.all(), "the encoder sees what comes later, too"


def test_the_ten_best_are_the_candidates_unless_others_are_given(tiny_bundle: ModelBundle) -> None:
    history = ["hat", "boots"]
    attention = inspect(tiny_bundle, history)[-1]
    best = Recommender(tiny_bundle).recommend([history], k=5)["item_id"]  # the catalogue is of 5
    assert attention.rows == [f"{rank} {item}" for rank, item in enumerate(best, 1)]


def test_the_dot_product_has_the_maps_of_its_encoder(tiny_dot_bundle: ModelBundle) -> None:
    (attention,) = inspect(tiny_dot_bundle, ["unheard of", "socks"])
    assert attention.rows == ["2 socks"], "places count what was skipped"
    assert (attention.weights == 1).all()


def test_a_recording_ends_with_its_block(tiny_bundle: ModelBundle) -> None:
    model, batch = tiny_bundle.model, (torch.tensor([[1, 2]]), torch.tensor([2]))
    with torch.inference_mode():
        with record_attention(model) as recorded:
            model(*batch)
        assert list(recorded) == ["encoder.blocks.0.attention"]
        recorded.clear()
        model(*batch)
    assert not recorded


@given(count=st.integers(1, 6))
def test_older_purchases_are_summed_up(count: int) -> None:
    labels = [f"{place} x" for place in range(1, 6)]
    weights = np.tril(np.random.default_rng(0).random((2, 5, 5)).astype(np.float32))
    weights /= weights.sum(axis=-1, keepdims=True)
    encoder = AttentionMap("encoder", weights, labels, labels, ["head 1", "head 2"], 1, causal=True)
    short = encoder.newest(count)
    if count >= 5:
        assert short is encoder
        return
    assert short.rows == labels[-count:]
    assert short.columns == [f"the {5 - count} before", *labels[-count:]]
    assert short.weights[..., 1:].tolist() == weights[:, -count:, -count:].tolist()
    assert short.weights.sum(axis=-1) == pytest.approx(1, abs=1e-6)
    cross = AttentionMap("cross", weights, labels, labels, ["head 1", "head 2"], 1)
    assert cross.newest(count).rows == labels, "what was written is all kept"
    decoder = AttentionMap("decoder", weights, labels, labels, ["head 1", "head 2"], 1)
    assert decoder.newest(count) is decoder


def test_what_cannot_be_looked_at_is_refused(
    tiny_bundle: ModelBundle,
    tiny_dot_bundle: ModelBundle,
    writing_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
) -> None:
    machine = write_bundle(
        tmp_path / "fm", tiny_dataset, FactorisationMachineConfig(kind="factorisation_machine")
    )
    with pytest.raises(InputError, match="fm: its model has no attention to look at"):
        inspect(machine, ["hat"])
    with pytest.raises(InputError, match="dot: has no target attention that items"):
        inspect(tiny_dot_bundle, ["hat"], items=["boots"])
    with pytest.raises(InputError, match="ta: has no decoder that could write n=3 purchases"):
        inspect(tiny_bundle, ["hat"], n=3)
    with pytest.raises(InputError, match="n=6: this model writes 1 to 5 purchases"):
        inspect(writing_bundle, ["hat"], n=6)
    with pytest.raises(InputError, match="item 'boot' is not in the catalogue; .* 'boots'"):
        inspect(tiny_bundle, ["hat"], items=["boot"])
    with pytest.raises(InputError, match="none of its items is in the catalogue"):
        inspect(tiny_bundle, ["unheard of"])
    with pytest.raises(InputError, match="nothing is left to recommend"):
        inspect(tiny_bundle, ITEMS)
    with pytest.raises(InputError, match="nothing is left to write"):
        inspect(writing_bundle, ITEMS)


# --- Pictures and the page -----------------------------------------------------------------------

EVIL = '<script>alert("&")</script>'


def test_the_page_holds_the_weights_and_needs_nothing_else() -> None:
    attention = make_map(["1 jacket"], ["1 boots", "2 hat", "3 gloves"])
    html = attention_page([attention], {"user": "ann", "recsys": "1.2.3"})
    page = Page(html)
    table = " ".join(page.cells)
    assert "1 boots 2 hat 3 gloves 1 jacket .75  .25" in table
    assert ">ann<" in html
    assert ">1.2.3<" in html
    assert all(link == "#target" for link in page.attributes["href"])
    assert 'id="target"' in html
    assert "src" not in page.attributes
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    for outside in ("http:", "https:", "//", "@import", "url("):
        assert outside not in html


def test_what_users_named_does_no_harm(tmp_path: Path) -> None:
    names = [EVIL, "$x_$ \\frac{", "雪靴 👢", "x" * 500]
    page = write_attention_report(tmp_path / "maps", [make_map(names, names)], {"user": EVIL})
    html = page.read_text(encoding="utf-8")
    assert "script" not in Page(html).tags
    assert html.count("&lt;script&gt;alert(") == 3, "row, column and user"
    assert {EVIL, "雪靴 👢", "$x_$ \\frac{"} <= set(Page(html).cells)
    assert (tmp_path / "maps" / "target-head-1.png").stat().st_size > 5_000


def test_a_heat_map_shows_each_weight_in_its_place() -> None:
    figure = draw_heat_map(
        np.array([[0.25, 0.75, 0], [1, 0, 0]]), ["a", "b"], ["c", "d", "e"], title="t"
    )
    axes, scale = figure.axes
    numbers = {text.get_position(): text.get_text() for text in axes.texts if text.get_text()}
    assert numbers == {(0, 0): ".25", (1, 0): ".75", (0, 1): "1"}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["c", "d", "e"]
    image = axes.images[0]
    assert image.get_clim() == (0, 1), "one scale for all maps"
    assert scale.get_ylabel() == "weight"


def test_a_folder_is_replaced_by_its_own_kind_alone(tmp_path: Path) -> None:
    maps = [make_map(["1 a"], ["1 b", "2 c"]), make_map(["1 a"], ["1 b"])]
    out = tmp_path / "maps"
    write_attention_report(out, maps[:1], {})
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert set(before) == {"attention.html", "manifest.json", "target-head-1.png"}
    write_attention_report(out, maps[:1], {})
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    (out / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="mine.txt is not part of a folder of attention maps"):
        write_attention_report(out, maps[1:], {})
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is left alone"):
        write_attention_report(other, maps, {})
    assert sorted(tmp_path.iterdir()) == [out, other]


# --- The command ---------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["recsys", "inspect", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_command_writes_maps_of_every_head(
    tiny_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ["--data", str(tiny_dataset.path), "--out", str(tmp_path / "maps")]
    words = [str(tiny_bundle.path), "--user", "ann", *place, "--newest", "2", "--json"]
    assert run(monkeypatch, *words, "--item", "hat", "--item", "socks") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"page": str(tmp_path / "maps/attention.html"), "pictures": 4}
    assert {file.name for file in (tmp_path / "maps").iterdir()} == {
        "attention.html",
        "manifest.json",
        "encoder-block-1-head-1.png",
        "encoder-block-1-head-2.png",
        "target-head-1.png",
        "target-head-2.png",
    }
    html = Path(row["page"]).read_text(encoding="utf-8")
    assert "4 purchases, the newest 3 read, 2 shown (the first column sums up those before)" in html
    assert {"the 1 before", "3 Top hat", "4 jacket", "2 socks"} <= set(Page(html).cells)
    for fact in (str(tiny_bundle.path), "next_item with target_attention", "ann"):
        assert f"<dd>{fact}</dd>" in html


def test_the_command_names_the_unknown(
    writing_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ["--data", str(tiny_dataset.path), "--out", str(tmp_path / "maps")]
    assert run(monkeypatch, str(writing_bundle.path), "--user", "anne", *place) == 2
    assert "error: user 'anne' is not in the dataset" in capsys.readouterr().err
    assert not (tmp_path / "maps").exists()
    assert run(monkeypatch, str(writing_bundle.path), "--user", "dan", *place, "-n", "2") == 0
    assert len(list((tmp_path / "maps").glob("*.png"))) == 10
