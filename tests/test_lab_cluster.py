# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A sweep on a Dask cluster of this machine (`pip install -e '.[cluster]'`), and what is said where there is none."""

import json

import pytest
from typer.testing import CliRunner

from kelp_cli.main import build_app
from kelp_cli.output import UserError
from kelp_sim.lab import sweep as sweeping
from kelp_sim.lab.cells import cells
from trace_files import contents, save


@pytest.fixture
def trace(tmp_path):
    return save(tmp_path / "a.npz", contents(seed=1, with_kv=False))


@pytest.fixture(scope="module")
def address():
    """A scheduler and two workers in this process."""
    distributed = pytest.importorskip("distributed", reason="pip install -e '.[cluster]'")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp", host="127.0.0.1") as cluster:
        yield cluster.scheduler_address


@pytest.mark.filterwarnings("default")    # of the cluster's own making
def test_a_cluster_agrees_with_this_process(trace, tmp_path, address):
    wanted = cells([trace], [0.5, 0.75], ["fifo", "kelp"])
    here = sweeping.sweep(wanted)
    heard = []
    there = sweeping.sweep(wanted, cluster=address, store=tmp_path / "rows.jsonl", progress=lambda cell, stored: heard.append(stored))
    assert [{**r, "seconds": 0} for r in here] == [{**r, "seconds": 0} for r in there]
    assert heard == [False] * len(wanted) and len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(wanted)


@pytest.mark.filterwarnings("default")
def test_the_command_takes_a_cluster(trace, tmp_path, address):
    found = CliRunner().invoke(build_app(), [
        "lab", str(trace), "--residency", "0.5", "--policy", "lru", "--fresh", "--cluster", address, "--json", str(tmp_path / "o.json"),
    ])
    assert found.exit_code == 0, found.output
    assert {r["policy"] for r in json.loads((tmp_path / "o.json").read_text())["rows"]} == {"lru", "belady"}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("where", ["tcp://127.0.0.1:1", "nowhere"])
def test_no_cluster_is_one_line(trace, where):
    pytest.importorskip("distributed", reason="pip install -e '.[cluster]'")
    found = CliRunner().invoke(build_app(), ["lab", str(trace), "--fresh", "--cluster", where])
    assert isinstance(found.exception, UserError) and f"no Dask scheduler answers at {where}" in str(found.exception) and "\n" not in str(found.exception)
