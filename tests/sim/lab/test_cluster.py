# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A sweep on a Dask cluster of this machine (`pip install -e '.[cluster]'`), and what is said where
there is none."""

import json
import threading

import pytest
from trace_files import contents, save
from typer.testing import CliRunner

from kelp_cli.main import build_app
from kelp_cli.output import UserError
from kelp_sim.lab import sweep as sweeping
from kelp_sim.lab.cells import cells, row


@pytest.fixture
def trace(tmp_path):
    return save(tmp_path / "a.npz", contents(seed=1, with_kv=False))


@pytest.fixture(scope="module")
def address():
    """A scheduler and two workers in this process."""
    distributed = pytest.importorskip("distributed", reason="pip install -e '.[cluster]'")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        dashboard_address=None,
        protocol="tcp",
        host="127.0.0.1",
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.filterwarnings("default")  # of the cluster's own making
def test_a_cluster_agrees_with_this_process(trace, tmp_path, address):
    wanted = cells([trace], [0.5, 0.75], ["fifo", "kelp"])
    here = sweeping.sweep(wanted)
    heard = []
    there = sweeping.sweep(
        wanted,
        cluster=address,
        store=tmp_path / "rows.jsonl",
        progress=lambda cell, stored: heard.append(stored),
    )
    assert [{**r, "seconds": 0} for r in here] == [{**r, "seconds": 0} for r in there]
    assert heard == [False] * len(wanted) and len(
        (tmp_path / "rows.jsonl").read_text().splitlines()
    ) == len(wanted)


HEARD, IN_TIME = threading.Event(), []


def held_back(cell):
    """In a worker: Belady's row is not finished before another one was heard of (the workers are
    threads of this process)."""
    if cell.policy == "belady":
        IN_TIME.append(HEARD.wait(20))
    return cell, row(cell)


@pytest.mark.filterwarnings("default")
def test_a_row_is_kept_as_soon_as_it_is_finished(trace, address, monkeypatch):
    monkeypatch.setattr(sweeping, "_pair", held_back)
    rows = sweeping.sweep(
        cells([trace], [0.5], ["fifo"]), cluster=address, progress=lambda cell, stored: HEARD.set()
    )
    assert len(rows) == 5 and IN_TIME == [True]


@pytest.mark.filterwarnings("default")
def test_a_sweep_that_was_killed_on_a_cluster_goes_on(trace, tmp_path, address):
    wanted = cells(
        [trace], [0.5, 0.75], ["ema", "speckv"], settings={"alpha": [26, 64], "window": [1, 2]}
    )
    heard = []

    def killed(cell, stored):
        heard.append(stored)
        if len(heard) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweeping.sweep(wanted, cluster=address, store=tmp_path / "rows.jsonl", progress=killed)
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3
    again = []
    rows = sweeping.sweep(
        wanted,
        cluster=address,
        store=tmp_path / "rows.jsonl",
        progress=lambda cell, stored: again.append(stored),
    )
    assert again.count(True) == 3 and len(again) == len(wanted)
    assert [{**r, "seconds": 0} for r in rows] == [
        {**r, "seconds": 0} for r in sweeping.sweep(wanted)
    ]


@pytest.mark.filterwarnings("default")
def test_the_command_takes_a_cluster(trace, tmp_path, address):
    found = CliRunner().invoke(
        build_app(),
        [
            "lab",
            str(trace),
            "--residency",
            "0.5",
            "--policy",
            "lru",
            "--fresh",
            "--cluster",
            address,
            "--json",
            str(tmp_path / "o.json"),
        ],
    )
    assert found.exit_code == 0, found.output
    assert {r["policy"] for r in json.loads((tmp_path / "o.json").read_text())["rows"]} == {
        "lru",
        "belady",
    }


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("where", ["tcp://127.0.0.1:1", "nowhere"])
def test_no_cluster_is_one_line(trace, where):
    pytest.importorskip("distributed", reason="pip install -e '.[cluster]'")
    found = CliRunner().invoke(build_app(), ["lab", str(trace), "--fresh", "--cluster", where])
    assert (
        isinstance(found.exception, UserError)
        and f"no Dask scheduler answers at {where}" in str(found.exception)
        and "\n" not in str(found.exception)
    )
