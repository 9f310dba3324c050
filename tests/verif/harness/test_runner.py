# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The Verilator runner itself: a passing bench, a failing one, an RTL Assert, and the compiled
model."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.hdl import Assert, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_hw.export import tools
from kelp_hw.export.verilog import to_verilog
from kelp_hw.lib.sram import Sram
from kelp_rtl import verilator
from kelp_verif.harness import runner


class Increment(wiring.Component):
    """A one-place stream stage that adds ``step``; an Assert forbids ``forbidden`` at its
    output."""

    def __init__(self, *, step=1, forbidden=None):
        self.step = step
        self.forbidden = forbidden
        super().__init__({"i": In(stream.Signature(8)), "o": Out(stream.Signature(8))})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += [
                self.o.valid.eq(self.i.valid),
                self.o.payload.eq(self.i.payload + self.step),
            ]
        if self.forbidden is not None:
            m.d.sync += Assert(self.o.payload != self.forbidden, "forbidden value at the output")
        return m


def run(component, *, test="adds_step", **kwargs):
    return runner.run_cocotb(
        component, bench="kelp_verif.harness.runner_bench", test=test, **kwargs
    )


def test_bench_passes_and_hands_figures_back():
    result = run(Increment(), params={"step": 1}, seed=7)
    assert result.seed == 7
    assert result.records["items"] == 200
    assert not result.run_dir.exists()


def test_seed_decides_the_stimulus():
    seen = [
        run(Increment(), params={"step": 1}, seed=seed).records["cycles"] for seed in (7, 7, 8, 9)
    ]
    assert seen[0] == seen[1]
    assert len(set(seen)) > 1


def test_unchanged_build_is_reused():
    """The model is not compiled again, and a changed one is not taken for it."""
    first = run(Increment(), params={"step": 1}, seed=1).build_dir
    built = (first / "top").stat()
    assert run(Increment(), params={"step": 1}, seed=1).build_dir == first
    again = (first / "top").stat()
    assert (again.st_ino, again.st_mtime_ns) == (built.st_ino, built.st_mtime_ns)
    assert run(Increment(step=2), params={"step": 2}, seed=1).build_dir != first


def test_failing_bench_names_test_seed_and_directory():
    with pytest.raises(AssertionError, match=r"seed 3[\s\S]*adds_step[\s\S]*run directory"):
        run(Increment(step=2), params={"step": 1}, seed=3)


def test_rtl_assert_fails_the_bench():
    with pytest.raises(AssertionError, match="forbidden value"):
        run(Increment(forbidden=200), params={"step": 1}, seed=3)


@pytest.mark.parametrize("test", ["no_such_test", ["adds_step", "no_such_test"]], ids=len)
def test_unknown_test_name_is_not_a_pass(test):
    with pytest.raises(AssertionError, match=r"no test ran: .* test \['no_such_test'\]"):
        run(Increment(), test=test, params={"step": 1}, seed=1)


@pytest.mark.slow  # compiles Verilator's run time with waves
def test_waves_are_kept(monkeypatch):
    result = run(Increment(), params={"step": 1}, seed=1, waves=True)
    assert "i__payload" in result.waves.read_text(encoding="utf-8")


def test_macro_model_is_found_and_its_words_can_be_changed():
    run(
        Sram(depth=8, shape=8, macro=True),
        test="flips_a_stored_bit",
        model=runner.Model(public=[("kelp_sram", "words")]),
    )


DRIVER = """
#include "Vtop.h"
#include "verilated.h"
extern "C" int run(int value, int* error) {
    VerilatedContext context;
    context.fatalOnError(false);
    Vtop top{&context};
    top.o___05Fready = 1;
    top.i___05Fvalid = 1;
    top.i___05Fpayload = value;
    for (int cycle = 0; cycle < 4; cycle++) {
        top.clk = 0; top.eval();
        top.clk = 1; top.eval();
    }
    *error = context.gotError();
    return top.o___05Fpayload;
}
"""


class PartlyConstant(wiring.Component):
    """Adds 1 like Increment, but by way of a signal of which a process assigns some bits and the
    others are constant."""

    def __init__(self):
        super().__init__({"i": In(stream.Signature(8)), "o": Out(stream.Signature(8))})

    def elaborate(self, platform):
        m = Module()
        wide, held = Signal(12), Signal(12)
        m.d.comb += [wide[:4].eq(5), self.i.ready.eq(~self.o.valid | self.o.ready)]
        with m.If(self.i.payload[0]):
            m.d.comb += wide[4:].eq(self.i.payload + 1)
        with m.Else():
            m.d.comb += wide[4:].eq(self.i.payload | 1)
        # Whole, since Yosys folds the constants into any use of a part.
        with m.If(self.i.ready):
            m.d.sync += [self.o.valid.eq(self.i.valid), held.eq(wide)]
        m.d.comb += self.o.payload.eq(held[4:] + held[:4] - 5)
        return m


def test_constant_bits_beside_a_process_are_constant():
    run(PartlyConstant(), params={"step": 1})


def test_compiled_model_runs_and_reports_an_assert(tmp_path):
    driver = tmp_path / "driver.cpp"
    driver.write_text(DRIVER, encoding="utf-8")
    path = verilator.verilate_model(
        to_verilog(Increment(step=3, forbidden=200)),
        verilator.Cpp(sources=[driver]),
        name="increment",
        opt=verilator.QUICK_OPT,
    )
    assert path == verilator.verilate_model(
        to_verilog(Increment(step=3, forbidden=200)),
        verilator.Cpp(sources=[driver]),
        name="increment",
        opt=verilator.QUICK_OPT,
    )
    library = ctypes.CDLL(str(path))
    error = ctypes.c_int()
    assert library.run(39, ctypes.byref(error)) == 42
    assert error.value == 0
    library.run(197, ctypes.byref(error))
    assert error.value == 1


def test_what_a_driver_includes_is_part_of_it(tmp_path):
    """From wherever it lies, also by way of another header; and each counts once."""
    (tmp_path / "own").mkdir()
    driver, header, part = (tmp_path / name for name in ("own/driver.cpp", "a.h", "b.h"))
    driver.write_text(
        '#include "../a.h"\n#include "ports.h"\n#include <memory>\n', encoding="utf-8"
    )
    header.write_text('#  include "b.h"\n', encoding="utf-8")
    part.write_text('#include "a.h"\n', encoding="utf-8")
    assert verilator.with_included(driver) == [driver, header, part]
    cpp = verilator.Cpp(sources=[driver], headers={"ports.h": ""})
    before = cpp.key
    part.write_text("// other\n", encoding="utf-8")
    assert cpp.key != before


def test_no_bench_runs_without_asserts():
    command = [sys.executable, "-O", "-c", "import kelp_verif.harness.runner"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode and "ToolError: benches judge by assert" in done.stderr


def test_build_failure_shows_the_compiler_message(tmp_path):
    driver = tmp_path / "driver.cpp"
    driver.write_text("#error planted\n", encoding="utf-8")
    with pytest.raises(tools.ToolError, match="planted"):
        verilator.verilate_model(
            to_verilog(Increment(step=3, forbidden=200)),
            verilator.Cpp(sources=[driver]),
            name="increment",
            opt=verilator.QUICK_OPT,
        )


def test_a_build_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    """Nor does one that was killed before it, once there is another."""
    monkeypatch.setenv("KELP_BUILD", str(tmp_path))

    def built():
        (tmp_path / "half").write_text("", encoding="utf-8")
        return [tmp_path / "half"]

    def interrupted():
        yield from built()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verilator._shelf("parts", interrupted, "key")
    shelves = tmp_path / "verilator-parts"
    assert [path.suffix for path in shelves.iterdir()] == [".lock"]
    shelf = next(shelves.iterdir()).with_suffix("")
    killed = shelf.with_suffix(".part")
    killed.mkdir()
    (killed / "other").touch()
    assert verilator._shelf("parts", built, "key") == shelf
    assert [path.name for path in shelf.iterdir()] == ["half"] and not killed.exists()


def test_a_link_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(command, **_):
        Path(command[-1]).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(verilator, "call", interrupted)
    cpp = verilator.Cpp(sources=[])
    with pytest.raises(KeyboardInterrupt):
        verilator._link(tmp_path, cpp, tmp_path / "model.so", "-O1", False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
