# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Mutants are where they are said to be, and a bench that looks notices them."""

import inspect
import json
import os
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from paths import ROOT

from kelp_hw.export.rtlil import to_rtlil
from kelp_hw.lib.skid import Skid
from kelp_hw.scores import table_scores, table_walk
from kelp_hw.scores.table_scores import TableScores
from kelp_verif.mutation import equivalence, netlist, source
from kelp_verif.mutation.benches import BENCHES, NO_STATE, Bench
from kelp_verif.mutation.equivalence import equivalent, equivalent_source
from kelp_verif.mutation.hunt import _figures, hunt, main, markdown, score
from kelp_verif.mutation.plugin import Hunt, Job, awake


class Redundant(wiring.Component):
    """`o` is a register; `a & b & c` adds nothing to `a & b`."""

    def __init__(self):
        super().__init__({"a": In(1), "b": In(1), "c": In(1), "o": Out(1)})

    def elaborate(self, platform):
        m = Module()
        more, held = Signal(), Signal()
        m.d.comb += [more.eq(self.a & self.b & self.c), self.o.eq(held)]
        m.d.sync += held.eq((self.a & self.b) | more)
        return m


class Idle(wiring.Component):
    """The upper bit of `held` is 0 from the beginning and stays so."""

    def __init__(self):
        super().__init__({"a": In(1), "o": Out(2)})

    def elaborate(self, platform):
        m = Module()
        held = Signal(2)
        m.d.sync += held.eq(Cat(self.a, held[1] & self.a))
        m.d.comb += self.o.eq(held)
        return m


class Thirds(wiring.Component):
    """`o` is 1 in one of three cycles, `late` once `a` has been 1 in twelve of them."""

    def __init__(self):
        super().__init__({"a": In(1), "o": Out(1), "late": Out(1)})

    def elaborate(self, platform):
        m = Module()
        third, seen = Signal(2), Signal(4)
        m.d.sync += third.eq(Mux(third == 2, 0, third + 1))
        with m.If(self.a & (third == 1) & (seen != 12)):
            m.d.sync += seen.eq(seen + 1)
        m.d.comb += [self.o.eq(third == 1), self.late.eq(seen >= 12)]
        return m


class Served(wiring.Component):
    """`o` is 1 while nothing waits and nothing is served; what is served waits until it is done."""

    def __init__(self):
        super().__init__({"a": In(1), "b": In(1), "o": Out(1)})

    def elaborate(self, platform):
        m = Module()
        waiting, serves = Signal(3), Signal()
        done = Signal()
        m.d.comb += done.eq(serves & self.b)
        m.d.sync += [
            waiting.eq(waiting + (self.a & (waiting != 7)) - done),
            serves.eq(Mux(serves, ~done, waiting != 0)),
        ]
        m.d.comb += self.o.eq(~serves & (waiting == 0))
        return m


class Table(wiring.Component):
    """`o` is the square of `a`."""

    def __init__(self):
        super().__init__({"a": In(2), "o": Out(4)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = Memory(shape=4, depth=4, init=[0, 1, 4, 9])
        port = rows.read_port(domain="comb")
        m.d.comb += [port.addr.eq(self.a), self.o.eq(port.data)]
        return m


class Counting(wiring.Component):
    """`o` counts where `a`, and begins anew where `b`."""

    def __init__(self):
        super().__init__({"a": In(1), "b": In(1), "o": Out(4)})

    def elaborate(self, platform):
        m = Module()
        with m.If(self.b):
            m.d.sync += self.o.eq(0)
        with m.Elif(self.a):
            m.d.sync += self.o.eq(self.o + 1)
        return m


class Both(wiring.Component):
    """Two blocks with processes; one is called as a port is, so that its module gets a number."""

    def __init__(self):
        super().__init__({"a": In(1), "b": In(1), "o": Out(8), "turns": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.sums, m.submodules.turns = sums, turns = Counting(), Counting()
        m.d.comb += [part.a.eq(self.a) for part in (sums, turns)]
        m.d.comb += [sums.b.eq(self.b), turns.b.eq(sums.o[1]), self.o.eq(Cat(sums.o, turns.o))]
        m.d.comb += self.turns.eq(turns.o.any())
        return m


class Deaf(wiring.Component):
    """Looks at bit 0 of `a` alone."""

    def __init__(self):
        super().__init__({"a": In(2), "o": Out(2)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.o.eq(Cat(self.a[0], self.o[0]))
        return m


class Teller(wiring.Component):
    """Tells a block below more than it looks at."""

    def __init__(self):
        super().__init__({"a": In(2), "b": In(2), "o": Out(2)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.deaf = deaf = Deaf()
        m.d.comb += [deaf.a.eq(self.a & self.b), self.o.eq(deaf.o)]
        return m


class Remembering(wiring.Component):
    """A row is read where `get`, and written where `put` and not `get`; one is by itself."""

    def __init__(self):
        ports = {"get": In(1), "put": In(1), "a": In(3), "b": In(3), "o": Out(4), "alone": Out(4)}
        super().__init__(ports)

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = Memory(shape=4, depth=8, init=[])
        m.submodules.row = row = Memory(shape=4, depth=1, init=[])
        read, write = rows.read_port(), rows.write_port()
        m.d.comb += [row.write_port().en.eq(self.put), self.alone.eq(row.read_port().data)]
        m.d.comb += [
            read.en.eq(self.get),
            read.addr.eq(Mux(self.get, self.a ^ self.b, self.a & self.b)),
            self.o.eq(read.data),
            write.en.eq(self.put & ~self.get),
            write.addr.eq(Mux(self.get, self.a + self.b, self.a)),
            write.data.eq(Mux(self.get, self.a - self.b, self.b)),
        ]
        return m


class Helped(wiring.Component):
    """`o` is a | b, as a property and a static method say."""

    def __init__(self):
        super().__init__({"a": In(1), "b": In(1), "o": Out(1)})

    @property
    def either(self):
        return self.a | self.b

    @staticmethod
    def _assigned(o, value):
        return o.eq(value)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self._assigned(self.o, self.either)
        return m


def _width():
    return 3 + 1


def _half(i):
    return i[1:] ^ 1


def _rounded(i):
    return _half(i + 1)


class Outside(wiring.Component):
    """`o` is half of `i`, rounded, and one bit of it is turned."""

    def __init__(self):
        super().__init__({"i": In(_width()), "o": Out(4)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(_rounded(self.i))
        return m


class Excess(wiring.Component):
    """`o` is a − b, or 0."""

    def __init__(self, *, config):
        super().__init__({"a": In(4), "b": In(4), "o": Out(4)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(Mux(self.a > self.b, self.a - self.b, 0))
        return m


def test_every_block_has_a_bench():
    named = {block for bench in BENCHES for block in bench.classes}
    there = {}
    for path in sorted((ROOT / "hw/kelp_hw").rglob("*.py")):
        place = path.relative_to(ROOT / "hw").with_suffix("")
        module = import_module(".".join(place.parts).removesuffix(".__init__"))
        for name, block in vars(module).items():
            if inspect.isclass(block) and issubclass(block, wiring.Component):
                if block.__module__ == module.__name__:
                    there[name] = module.__name__
    exported = {name for name, module in there.items() if ".export." in module}
    assert set(there) - exported == named | set(NO_STATE)
    for bench in BENCHES:
        assert all(there[block] == module for block, module in bench.classes.items()), bench.name
        assert all((ROOT / test.split("::")[0]).is_file() for test in bench.tests), bench.name


def test_what_changes_nothing_is_proved_and_nothing_else_is():
    text = to_rtlil(Redundant(), name="top")
    mutants = netlist.listed(text, {"Redundant": ["top"]}, count=100, seed=1)
    assert len({m.command for m in mutants}) == len(mutants) > 10
    proved = equivalent(text, mutants)
    print(*(f"{m.number in proved} {m.site}" for m in mutants), sep="\n")
    assert proved < {m.number for m in mutants}
    assert not any("held" in m.site for m in mutants if m.number in proved)


def test_a_bit_that_never_changes_is_no_state():
    text = to_rtlil(Idle(), name="top")
    mutants = netlist.listed(text, {"Idle": ["top"]}, count=100, seed=1)
    stuck = [m for m in mutants if m.site.startswith("const0") and "D[1]" in m.site]
    assert stuck and equivalent(text, stuck) == {m.number for m in stuck}
    assert not equivalent(text, [m for m in mutants if re.match(r"(inv|const).*D\[0\]", m.site)])


def test_what_only_a_state_shows_that_is_never_reached_changes_nothing():
    """`third` is never 3 and `seen` never 14, so a bit may be left out where they are compared with
    1 and 12; what shows late does show."""
    found = at_lines_of(Thirds)
    never, late = found("const0", "A[1]", "seen != 12"), found("const.", "A[3]", "seen >= 12")
    assert len(never) == 2 and late
    assert equivalent(found.text, never + late) == {m.number for m in never}


def test_what_the_states_that_are_reached_hide_changes_nothing():
    """What is served waits, so it is enough to ask whether something waits, and not whether
    something is served."""
    found = at_lines_of(Served)
    serves, waits = sorted(found("const1", "Y[0]", "self.o.eq"), key=lambda m: m.site)
    assert equivalent(found.text, [serves, waits]) == {serves.number}


def at_lines_of(block):
    """`block` as `text`; called, its mutants of a mode, at a bit of a port, in the line that has
    some words."""
    text = to_rtlil(block(), name="top", sources=True)
    mutants = netlist.listed(text, {block.__name__: ["top"]}, count=200, seed=1)
    lines, first = inspect.getsourcelines(block)

    def found(mode, bit, words):
        line = first + next(n for n, line in enumerate(lines) if words in line)
        site = rf"{mode} at top \S+{re.escape(bit)}, test_mutation.py:{line}$"
        return [m for m in mutants if re.match(site, m.site)]

    found.text = text
    return found


def test_what_a_block_below_does_not_look_at_changes_nothing():
    text = to_rtlil(Teller(), name="top")
    mutants = netlist.listed(text, {"Teller": ["top"]}, count=100, seed=1)
    proved = equivalent(text, mutants)
    unheard = [m for m in mutants if re.match(r"(inv|const.) .*(deaf.a|[ABY])\[1\]", m.site)]
    heard = [m for m in mutants if re.match(r"(inv|const.) .*(deaf.a|[ABY])\[0\]", m.site)]
    assert unheard and proved >= {m.number for m in unheard}
    assert heard and not proved & {m.number for m in heard}


def test_where_and_what_a_port_that_is_off_says_changes_nothing(monkeypatch):
    """Also where a memory is too large to be cut open."""
    monkeypatch.setattr(equivalence, "_source_compared", lambda *_: set())
    mutants = source.sites(Remembering, count=100, seed=1)
    proved = equivalent_source(Remembering, mutants)
    found = {m.site.rpartition(": ")[2] for m in mutants if m.number in proved}
    assert found == {"self.a & self.b", "self.a + self.b", "self.a - self.b"}
    assert {"self.a ^ self.b", "self.put & ~self.get"} < {
        m.site.rpartition(": ")[2] for m in mutants
    }


def test_what_leaves_the_netlist_as_it_is_changes_nothing(monkeypatch):
    """However large the block: nothing is compared."""

    class Wide(wiring.Component):
        def __init__(self):
            super().__init__({"a": In(4), "o": Out(8)})

        def elaborate(self, platform):
            m = Module()
            square = Signal(range(200 + 1))
            m.d.comb += [square.eq(self.a * self.a), self.o.eq(square)]
            return m

    def ran(*_):
        raise AssertionError("yosys is asked")

    monkeypatch.setattr(equivalence, "_ran", ran)
    (mutant,) = [m for m in source.sites(Wide, count=9, seed=1) if "200 + 1" in m.site]
    assert equivalent_source(Wide, [mutant]) == {mutant.number}


def test_a_mutant_of_the_source_that_changes_nothing_is_proved():
    mutants = source.sites(Excess, count=100, seed=1)
    proved = equivalent_source(Excess, mutants)
    assert [m.site for m in mutants if m.number in proved] == [
        m.site for m in mutants if m.what == "comparison"
    ]
    assert {m.what for m in mutants} > {"comparison", "operator"}
    mutants = source.sites(Redundant, count=9, seed=1)
    proved = equivalent_source(Redundant, mutants)
    left_out = [m.number for m in mutants if m.what == "assignment" and "more.eq" in m.site]
    assert proved == set(left_out) and len(left_out) == 1 and len(mutants) > 5


def test_what_is_asserted_is_no_site():
    sites = [m.site for m in source.sites(Skid, count=1000, seed=1)]
    assert len(sites) > 20 and not any("Assert(" in site for site in sites)
    assert not any("puts == gets ^" in site for site in sites)


def test_mutants_of_several_blocks_are_in_one_design():
    """Processes of one become cells when another's do; each of them is found again."""
    found = {"Turns": ["top.turns"], "Sums": ["top.sums"]}
    text = netlist.prepared(to_rtlil(Both(), name="top"), found)
    mutants = netlist.listed(text, found, count=20, seed=1)
    assert "module \\top.turns$" in text and {m.block for m in mutants} == set(found)
    assert any("procmux" in m.command for m in mutants if m.block == "Turns")
    assert netlist.SELECT in netlist.mutated(text, mutants)


def test_the_same_seed_draws_the_same_sites():
    text = to_rtlil(Redundant(), name="top")
    drawn = [
        [m.command for m in netlist.listed(text, {"Redundant": ["top"]}, count=5, seed=seed)]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    drawn = [[m.site for m in source.sites(Redundant, count=4, seed=seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_mutant_of_the_source_changes_one_place(monkeypatch):
    monkeypatch.setattr(Redundant, "elaborate", Redundant.elaborate)  # put back afterwards
    sites = source.sites(Redundant, count=100, seed=1)
    assert {m.what for m in sites} == {"operator", "assignment"}
    change = next(m for m in sites if "held.eq" in m.site)
    before = to_rtlil(Redundant(), name="top")
    source.apply(Redundant, change)
    assert to_rtlil(Redundant(), name="top") != before


def test_a_mutant_may_be_in_a_property_or_a_static_method():
    before = to_rtlil(Helped(), name="top")
    mutants = source.sites(Helped, count=100, seed=1)
    assert sorted(m.what for m in mutants) == ["assignment", "operator"]
    for mutant in mutants:
        with source.mutated(Helped, mutant):
            assert to_rtlil(Helped(), name="top") != before
        assert to_rtlil(Helped(), name="top") == before


def test_a_mutant_may_be_in_a_function_beside_the_block():
    """One that a function below its methods calls; not one that its constructor alone calls."""
    before = to_rtlil(Outside(), name="top")
    mutants = source.sites(Outside, count=100, seed=1)
    assert {m.site.rpartition(": ")[2] for m in mutants} == {
        "self.o.eq(_rounded(self.i))",
        "i + 1",
        "i[1:] ^ 1",
    }
    for mutant in mutants:
        with source.mutated(Outside, mutant):
            assert to_rtlil(Outside(), name="top") != before
        assert to_rtlil(Outside(), name="top") == before


def test_a_mutant_may_be_in_a_function_of_another_file_of_the_room():
    """`TableScores` imports its walks; it is another one wherever it was imported to, for a
    while."""
    mutants = source.sites(TableScores, count=1000, seed=1)
    files = {m.site.partition(" at ")[2].partition(":")[0] for m in mutants}
    assert files == {"table_scores.py", "table_walk.py", "table_values.py"}  # `later`, `side`
    before = table_walk.turn
    change = next(m for m in mutants if "now.fast.eq(page2.fast)" in m.site)
    with source.mutated(TableScores, change):
        assert table_walk.turn is not before and table_scores.turn is table_walk.turn
    assert table_walk.turn is before and table_scores.turn is before


def test_a_site_of_the_netlist_is_asleep_until_it_is_chosen():
    text = to_rtlil(Redundant(), name="top")
    mutants = netlist.listed(text, {"Redundant": ["top"]}, count=3, seed=1)
    verilog = """module top(a, kelp_mutant, o);
  input a;
  input [13:0] kelp_mutant;
  wire [13:0] kelp_mutant;
  inner first (
    .a(a),
    .kelp_mutant(kelp_mutant),
    .o(o)
  );
  inner last (
    .a(a),
    .kelp_mutant(kelp_mutant)
  );
endmodule
"""
    assert netlist.SELECT in netlist.mutated(text, mutants)
    chosen = netlist.selected(verilog, "abc")
    assert "module top(a, o);" in chosen and "input [13:0]" not in chosen
    assert (
        'initial kelp_mutant = $c32("kelp_mutant()")' in chosen
        and netlist.design_of(chosen) == "abc"
    )
    assert netlist.design_of(verilog) is None
    assert ".kelp_mutant" not in chosen
    assert chosen.count("(\n    .a(a),\n    .o(o)\n  )") == chosen.count("(\n    .a(a)\n  )") == 1


def test_what_a_memory_holds_at_first_is_no_site():
    text = to_rtlil(Table(), name="top")
    assert "$meminit" in text
    sites = [m.command for m in netlist.listed(text, {"Table": ["top"]}, count=500, seed=1)]
    cells = re.findall(r"cell \$meminit\S* (\S+)", text)
    assert sites and not any(f"-cell {cell} " in site for cell in cells for site in sites)


@pytest.mark.timeout(200)
def test_a_hunt_counts_what_the_bench_notices():
    skid = Bench("skid", {"lib/skid": ("Skid",)}, ("tests/hw/lib/test_skid.py",), "source")
    figures = hunt(skid, count=3, seed=2, jobs=1)["Skid"]
    counted = figures["killed"] + figures["equivalent"] + figures["undecided"]
    assert 1 <= figures["mutants"] == counted <= 3
    assert len(figures["alive"]) == figures["undecided"] and score(figures) > 0.5


#: A component of a test's own, and two tests of it: the first sees what the second does.
INCREMENT = Bench(
    "increment",
    {"none": ("Increment",)},
    tuple(
        f"tests/verif/harness/test_runner.py::{name}"
        for name in ("test_bench_passes_and_hands_figures_back", "test_seed_decides_the_stimulus")
    ),
)


@pytest.mark.slow  # a model with mutants in it; `make mutate` does the same for every block
@pytest.mark.timeout(300)
def test_a_bench_on_verilator_forks_for_each_mutant():
    figures = hunt(INCREMENT, count=12, seed=1, jobs=2)["Increment"]
    assert figures["mutants"] == 12 and score(figures) > 0.8, figures


def test_no_test_is_ended_while_it_has_mutants(monkeypatch, tmp_path):
    """Neither by its own limit nor by that on native code."""
    monkeypatch.setenv("KELP_BUILD", str(tmp_path))
    asked = []

    def run(command, **_):
        asked.extend(command)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(KeyboardInterrupt):
        hunt(INCREMENT, count=1, seed=1, jobs=1)
    assert asked[asked.index("--timeout") + 1] == "0"
    assert asked[asked.index("-o") + 1] == "faulthandler_timeout=0"


def test_a_hunt_that_is_cut_short_counts_its_survivors(tmp_path, monkeypatch):
    """Those whose turn in the test under way has not come are no less alive."""
    out = tmp_path / "mutants.json"
    cut = Hunt(Job({"Skid": "kelp_hw.lib.skid"}, "source", 4, 1, 1, str(out)))
    cut.item = SimpleNamespace(nodeid="a test")

    def ends(numbers, seconds):
        if numbers != [0]:
            cut._killed(numbers[0], 1)
            cut.save()
            raise KeyboardInterrupt

    monkeypatch.setattr(cut, "_fork", ends)
    with pytest.raises(KeyboardInterrupt):
        cut.run(list(cut.mutants))
    found = json.loads(out.read_text())
    figures = _figures("Skid", Bench("skid", {"lib/skid": ("Skid",)}, ()), found, False)
    assert figures["mutants"] == len(cut.mutants) > 1
    assert (figures["killed"], figures["undecided"]) == (1, figures["mutants"] - 1)


def test_what_was_recorded_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("KELP_BUILD", str(tmp_path))
    monkeypatch.setattr("kelp_verif.mutation.hunt.hunt", one_for_each)
    for only, options, ran in (
        ("Skid", {}, {"Skid"}),
        ("lib", {"resume": True}, {"SplitSram"}),
        ("Skid", {"resume": True}, set()),
        ("Skid", {"resume": True, "count": 200}, {"Skid"}),
        ("Skid", {}, {"Skid"}),
    ):
        RAN.clear()
        main(**{"only": [only], "count": 100, "seed": 1, "jobs": 1, "resume": False} | options)
        assert set(RAN) == ran, (only, options)
    blocks = json.loads((tmp_path / "mutate.json").read_text())["blocks"]
    assert set(blocks) == {"Skid", "SplitSram"} and blocks["Skid"]["count"] == 100
    page = markdown(blocks)
    assert "| `Skid` | 4 | 3 | 1 | 0 | 100.0% |" in page and "`OrderFifo`" in page


def test_survivors_are_proved_in_each_size_of_their_bench(tmp_path, monkeypatch):
    """What is said of a bench reaches the hunt, whatever blocks are chosen of it."""
    seen = []

    def noted(bench, **_):
        seen.append(bench)
        return one_for_each(bench)

    monkeypatch.setenv("KELP_BUILD", str(tmp_path))
    monkeypatch.setattr("kelp_verif.mutation.hunt.hunt", noted)
    main(only=["Delay"], count=100, seed=1, jobs=1, resume=False)
    assert seen == [bench for bench in BENCHES if "Delay" in bench.classes]
    assert len(seen[0].variants) > 1


@pytest.mark.parametrize("text", ["[]", '{"rows": 1}', '{"blocks": 7}', '{"blocks": {"Skid": 1}}'])
def test_another_file_is_no_record(tmp_path, monkeypatch, text):
    monkeypatch.setenv("KELP_BUILD", str(tmp_path))
    monkeypatch.setattr("kelp_verif.mutation.hunt.hunt", one_for_each)
    (tmp_path / "mutate.json").write_text(text)
    with pytest.raises(SystemExit, match=r"mutate\.json is no record of make mutate; remove it"):
        main(only=["Skid"], count=100, seed=1, jobs=1, resume=False)


def test_only_a_process_that_sleeps_has_stopped():
    for program, runs in (("while 1: pass", True), ("import time; time.sleep(60)", False)):
        process = subprocess.Popen([sys.executable, "-Sc", program], start_new_session=True)
        try:
            time.sleep(1)
            assert awake(process.pid) == runs
        finally:
            process.kill()
            process.wait()


def test_nobody_outlives_a_hunt_that_was_stopped():
    child = "import time; print(flush=True); time.sleep(60)"
    parent = (
        "import subprocess, sys, time; from kelp_verif.mutation.plugin import end_with_parent; "
        + f"p = subprocess.Popen([sys.executable, '-Sc', {child!r}], preexec_fn=end_with_parent); "
        + "print(p.pid, flush=True); time.sleep(60)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        lines = sorted(process.stdout.readline().strip() for _ in range(2))
        process.kill()
    pid = int(lines[1])
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
        except OSError:
            break
        time.sleep(0.1)
    else:
        raise AssertionError("the child lives on")


def test_a_block_that_no_test_simulates_is_below_the_bar():
    none = {"mutants": 0, "killed": 0, "equivalent": 0}
    assert score(none) == 0 and score(none | {"mutants": 2, "equivalent": 2}) == 1


RAN = []


def one_for_each(bench, **_):
    """What a hunt finds where all mutants but one are killed and that one changes nothing."""
    RAN.extend(bench.classes)
    figures = {"mutants": 4, "killed": 3, "equivalent": 1, "undecided": 0, "alive": []}
    return dict.fromkeys(bench.classes, figures)
