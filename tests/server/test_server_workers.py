"""Several workers at one port: reloads, killed workers, the end, and their metrics."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from recsys.data.prepared import PreparedDataset
from recsys.machine import usable_processors
from recsys.serving.bundle import ModelBundle
from tests.helpers.server_process import ASKED, Process, process, wait_for, write_other

pytestmark = [
    pytest.mark.slow,  # three processes start
    pytest.mark.skipif(usable_processors() < 2, reason="two workers need two cores"),
]


def test_two_workers_answer_reload_survive_and_end(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    bundle = shutil.copytree(tiny_bundle.path, tmp_path / "bundle")
    with process(bundle, "--workers", 2) as server:
        first = json.loads(server.log[0])
        assert (first["event"], first["workers"], first["items"]) == ("serving", 2, 5)
        # A new model under load: no request is dropped, and both workers change.
        statuses = under_load(server, lambda: replace(bundle, tiny_bundle, tiny_dataset))
        assert set(statuses) == {200}
        # The metrics are those of both.
        name = 'recsys_requests_total{path="/v1/recommend",status="200"}'
        wait_for(lambda: metrics(server)[name] == len(statuses))
        known = metrics(server)
        hits, misses = (
            known[f'recsys_state_cache_histories_total{{result="{result}"}}']
            for result in ("hit", "miss")
        )
        assert hits > misses > 0
        # A worker that is killed is replaced, and the other one answers meanwhile.
        children = workers_of(server)
        os.kill(children[0], signal.SIGKILL)
        wait_for(lambda: count(server, f"[{children[0]}] died") == 1)
        assert server.ask("/v1/recommend", ASKED) == 200
        wait_for(lambda: len(workers_of(server)) == 2 and children[0] not in workers_of(server))
        # SIGHUP replaces one after the other.
        children = workers_of(server)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: not {*children} & {*workers_of(server)})
        assert server.ask("/v1/recommend", ASKED) == 200
        # The end answers what it has.
        children = workers_of(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert json.loads(server.log[-1])["event"] == "ended"
    for child in children:
        assert not Path(f"/proc/{child}").exists()


def test_workers_end_with_the_process_that_watches_over_them(tiny_bundle: ModelBundle) -> None:
    with process(tiny_bundle.path, "--workers", 2) as server:
        wait_for(lambda: len(workers_of(server)) == 2)
        children = workers_of(server)
        server.process.kill()
        wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def test_workers_that_cannot_start_end_in_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="not a model bundle"),
        process(tmp_path, "--workers", 2),
    ):
        pass


def replace(bundle: Path, like: ModelBundle, dataset: PreparedDataset) -> None:
    write_other(bundle, like, dataset, 0.5)


def under_load(server: Process, change: Any) -> list[int]:
    """Ask while something changes, until only new answers come; return the statuses."""
    stop, answers = threading.Event(), list[tuple[int, float]]()

    def ask() -> None:
        while not stop.is_set():
            status, answer = server.answer("/v1/recommend", ASKED)
            answers.append((status, answer["items"][0]["score"]))

    def changed(latest: int) -> bool:
        """Whether the latest answers are others than the first, beyond rounding."""
        new = [abs(score - answers[0][1]) > 0.01 for _, score in answers[-latest:]]
        return len(new) == latest and all(new)

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        wait_for(lambda: len(answers) > 20)
        change()
        # Each request has a connection of its own, which goes to either worker.
        wait_for(lambda: changed(latest=40))
    finally:
        stop.set()
        for client in clients:
            client.join()
    return [status for status, _ in answers]


def count(server: Process, event: str) -> int:
    return sum(event in line for line in server.log)


def workers_of(server: Process) -> list[int]:
    """The processes that the command started, without the one that tracks their resources."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_text()
        except OSError:
            continue  # it has ended
        if parent == server.process.pid and "spawn_main" in words:
            found.append(int(folder.name))
    return found


def metrics(server: Process) -> dict[str, float]:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    client.request("GET", "/metrics")
    text = client.getresponse().read().decode()
    client.close()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}
