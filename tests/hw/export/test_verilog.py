# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What `kelp verilog` writes lints alone under -Wall, names no path, and answers a request in a
plain SystemVerilog bench."""

import json
import os
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from amaranth.hdl import Assert, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from typer.testing import CliRunner

from kelp_cli import verilog as verilog_command
from kelp_cli.main import build_app
from kelp_cli.verilog import module_text, write_verilog
from kelp_hw.export import tools
from kelp_hw.export import verilog as verilog_export
from kelp_hw.export.clean import drop_empty_wires
from kelp_hw.export.verilog import to_verilog
from kelp_hw.export.widths import explicit_widths
from kelp_hw.export.wrapper import core_file
from kelp_hw.flit.front import FlitFront
from kelp_hw.lib.constant_memory import ConstantMemory
from kelp_hw.lib.sram import Sram
from kelp_spec.config import NAMED, named
from kelp_spec.config_text import configuration

WAIVED = ("-Wno-PROCASSINIT", "-Wno-UNUSEDSIGNAL", "-Wno-DECLFILENAME")
#: Verilator's arguments for a program of a model and its bench.
_BUILT = (
    "--binary",
    "--timing",
    "-Wno-fatal",
    *WAIVED,
    "-j",
    "2",
    "-CFLAGS",
    "-std=c++20 -fcoroutines",
    "-MAKEFLAGS",
    "CFG_CXXFLAGS_PCH_I=-include OPT_FAST=-O0 OPT_SLOW=-O0",
    "-fno-table",  # as in kelp_rtl.verilator
)


@pytest.fixture(scope="module", params=["unit", pytest.param("unit_cxl", marks=pytest.mark.slow)])
def written(request, tmp_path_factory):
    """The endpoint, and the device round it, of eight codec lanes, which are a third of the Verilog
    of 32."""
    directory = tmp_path_factory.mktemp("verilog")
    write_verilog(named(request.param).with_(codec_lanes=8), directory)
    return directory


def top_of(directory):
    """The module that is described there."""
    (described,) = directory.glob("*.json")
    return json.loads(described.read_text(encoding="utf-8"))["top"]


def verilator(directory, *arguments):
    return subprocess.run(
        ["verilator", *arguments],
        cwd=directory,
        env=tools.tool_env(),
        capture_output=True,
        text=True,
    )


def lint(directory):
    top = top_of(directory)
    return verilator(
        directory,
        "--lint-only",
        "-Wall",
        *WAIVED,
        "--top-module",
        f"{top}_wrapper",
        f"{top}.v",
        f"{top}_wrapper.sv",
    )


@pytest.mark.timeout(900)
def test_lints_alone_under_wall(written):
    done = lint(written)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMED)
def test_every_named_configuration_lints(name, tmp_path):
    write_verilog(named(name), tmp_path)
    done = lint(tmp_path)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("side", ["device", "host"])
def test_the_front_for_flits_lints_alone(side, tmp_path):
    front = FlitFront(side=side, credits=4, protect=True)
    (tmp_path / "front.v").write_text(module_text(front, "front"), encoding="utf-8")
    done = verilator(tmp_path, "--lint-only", "-Wall", *WAIVED, "--top-module", "front", "front.v")
    assert done.returncode == 0, done.stderr[:3000]


def test_wires_of_no_bits_are_dropped():
    kept = "  wire [1:0] a;\n  assign a = 2'h1;\n"
    assert drop_empty_wires(f"  wire [-1:0] \\b$1 ;\n{kept}  reg [-1:0] c;\n") == kept


CONTENT = [5, 0xDEADBEEF, 3, 0, 9]
_READS_ALL = """
module reads_all;
    reg clk = 0;
    reg [2:0] address = 0;
    wire [31:0] read_data;
    wire [1:0] fault;
    rom dut(.clk(clk), .rst(1'b0), .address(address), .read_data(read_data), .fault(fault));
    initial begin
        repeat (8) begin
            #1 clk = 1;
            #1 $display("%0d %0d", read_data, fault);
            clk = 0;
            address = address + 1;
        end
        $finish;
    end
endmodule
"""


def test_a_table_that_nothing_writes_is_a_function(tmp_path):
    """It says the same, without an initial value, which synthesis for an ASIC leaves out."""
    text = module_text(ConstantMemory(content=CONTENT, protect=True), "rom")
    assert not re.search(r"(?m)^ *initial\b", text) and "endfunction" in text
    (tmp_path / "rom.v").write_text(text, encoding="utf-8")
    done = verilator(tmp_path, "--lint-only", "-Wall", *WAIVED, "--top-module", "rom", "rom.v")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # compiles a model
def test_a_table_that_is_a_function_reads_as_a_memory_would(tmp_path):
    text = module_text(ConstantMemory(content=CONTENT, protect=True), "rom")
    (tmp_path / "rom.v").write_text(text, encoding="utf-8")
    (tmp_path / "bench.sv").write_text(_READS_ALL, encoding="utf-8")
    built = verilator(tmp_path, *_BUILT, "--top-module", "reads_all", "rom.v", "bench.sv")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([tmp_path / "obj_dir" / "Vreads_all"], capture_output=True, text=True)
    read = [line for line in ran.stdout.splitlines() if line[:1].isdigit()]
    assert read == [f"{value} 0" for value in [*CONTENT, 0, 0, 0]]


def test_a_memory_that_is_written_stays_one():
    text = module_text(Sram(depth=4, shape=3), "sram")
    assert "function" not in text and "reg [2:0] memory [3:0];" in text


class Asserting(wiring.Component):
    """Adds one, and asserts in each of the two ways that blocks do."""

    i: In(2)
    o: Out(2)

    def elaborate(self, platform):
        m = Module()
        m.d.sync += [self.o.eq(self.i + 1), Assert(self.i != 2, "a two was given")]
        m.d.comb += Assert(self.i != 3)
        return m


def test_asserts_are_for_who_asks_for_them(tmp_path):
    """`assert` is no word of Verilog-2005, as which the core file names what is written."""
    text = module_text(Asserting(), "asserting")
    assert len(re.findall(r"(?m)^ +assert \(", text)) == 2
    (tmp_path / "asserting.v").write_text(text, encoding="utf-8")
    lint = ("--lint-only", "-Wall", *WAIVED, "asserting.v")
    for how in (("--language", "1364-2005"), ("-DKELP_ASSERTS",)):
        done = verilator(tmp_path, *how, *lint)
        assert done.returncode == 0, (how, done.stderr)
    refused = verilator(tmp_path, "--language", "1364-2005", "-DKELP_ASSERTS", *lint)
    assert "asserting.v" in refused.stderr and refused.returncode, "asserts are there to be read"


@pytest.mark.slow  # a model of its own
@pytest.mark.timeout(900)
def test_smoke_bench_passes(written):
    top = top_of(written)
    built = verilator(
        written,
        *_BUILT,
        "--top-module",
        f"{top}_smoke",
        f"{top}.v",
        f"{top}_wrapper.sv",
        f"{top}_smoke.sv",
    )
    assert built.returncode == 0, built.stderr[-3000:]
    ran = subprocess.run(
        [written / "obj_dir" / f"V{top}_smoke"], capture_output=True, text=True, timeout=300
    )
    assert "PASS" in ran.stdout and "FAIL" not in ran.stdout, ran.stdout[-2000:]
    digest = description(written)["parameters"]["digest"]
    assert f"digest {digest:0>16} after" in ran.stdout, ran.stdout
    smoke = (written / f"{top}_smoke.sv").read_text(encoding="utf-8")
    assert f"s2m_drs_data[127:64] !== 64'h{digest:0>16}" in smoke


def test_no_path_and_complete_description(written):
    for file in written.iterdir():
        if file.is_file():
            assert os.sep + "work" not in file.read_text(encoding="utf-8") and str(
                written
            ) not in file.read_text(encoding="utf-8")
    top = top_of(written)
    described = json.loads((written / f"{top}.json").read_text(encoding="utf-8"))
    name = {"kelp_endpoint": "unit", "kelp_device": "unit_cxl"}[top]
    assert described["schema"] == top.replace("_", ".") and described["parameters"]["name"] == name
    header = (written / "kelp_regs.h").read_text(encoding="utf-8")
    assert f"#define KELP_CONFIG_DIGEST 0x{described['parameters']['digest']}ull\n" in header
    text = (written / f"{top}.v").read_text(encoding="utf-8")
    for port in described["ports"]:
        assert port["name"] in text


def test_the_core_file_has_the_package_s_version():
    root = Path(__file__).resolve().parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = f"name: kelp:cxl:endpoint_unit:{project['version']}\n"
    assert name in core_file(named("unit"), ["kelp_endpoint.v"])
    other = core_file(configuration("unit?codec_lanes=8"), ["kelp_endpoint.v"])
    assert "name: kelp:cxl:endpoint_unit_codec_lanes_8:" in other


def test_what_another_configuration_left_is_named(tmp_path, monkeypatch):
    """A flow that reads every .v of the folder would have two tops, and a header of one of them."""

    def write(config, directory, **_):
        (made := directory / "kelp_endpoint.v").write_text("", encoding="utf-8")
        return [made]

    for name in ("kelp_device.v", "kelp_flit_front.json", "kelp_axi_endpoint.v", "kelp_mine.v"):
        (tmp_path / name).write_text("", encoding="utf-8")
    monkeypatch.setattr(verilog_command, "write_verilog", write)
    said = CliRunner().invoke(build_app(), ["verilog", "-o", str(tmp_path)]).output
    left = [line for line in said.splitlines() if "was left" in line]
    assert [line.split()[0] for line in left] == [
        f"{tmp_path}/kelp_device.v",
        f"{tmp_path}/kelp_flit_front.json",
    ]


class Inverter(wiring.Component):
    i: In(1)
    o: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(~self.i)
        return m


def test_what_is_made_of_yosys_s_verilog_is_not_kept(tmp_path, monkeypatch):
    """Its cache knows tools and design, and not our own sources."""
    monkeypatch.setenv("KELP_BUILD", str(tmp_path))
    first = to_verilog(Inverter())
    monkeypatch.setattr(verilog_export, "settle_constants", lambda text: text + "// changed")
    assert to_verilog(Inverter()) == first + "// changed"
    assert len([*tmp_path.rglob("*.v")]) == 1


#: A `reg` with rows, of any module but the macros' models, whose rows have a parameter's number.
_ARRAY = re.compile(r"(?m)^  reg (?:\[(\d+):0\] )?(\\?\S+) *\[(\d+):0\];")
_MACRO = re.compile(
    r"(?m)^  (kelp_sram\w*) #\(\n +\.ADDRESS_WIDTH\(.*\),\n +\.DEPTH\(32'd(\d+)\),"
    + r"\n +\.WIDTH\(32'd(\d+)\)\n"
)


def description(directory):
    return json.loads((directory / f"{top_of(directory)}.json").read_text(encoding="utf-8"))


def test_every_memory_of_the_verilog_is_listed(written):
    """The list is of what Amaranth emits; this counts in what Yosys makes of it."""
    said = description(written)
    text = (written / f"{said['top']}.v").read_text(encoding="utf-8")
    arrays = Counter(
        (None, int(rows) + 1, int(bits or 0) + 1) for bits, _, rows in _ARRAY.findall(text)
    )
    macros = Counter((name, int(rows), int(bits)) for name, rows, bits in _MACRO.findall(text))
    tables = [memory for memory in said["memories"] if not memory["writes"]]
    assert len(tables) == len(re.findall(r"(?m)^  endfunction$", text))
    assert sum(macros.values()) == len(re.findall(r"(?m)^  kelp_sram\w* #\($", text))
    listed = Counter(
        (memory["macro"], memory["rows"], memory["bits"])
        for memory in said["memories"]
        if memory["writes"]
    )
    assert listed == arrays + macros
    counted = Counter({json.dumps(s): s.pop("memories") for s in said["shapes"]}).total()
    assert counted == len(said["memories"])
    for memory in said["memories"]:
        assert memory["cleared_by"] is None or memory["writes"]
        assert sum(memory["code_words"]) in (0, memory["bits"])
        block = memory["instance"].split(".")[-2]
        assert f"  {block} (\n" in text, memory


#: Of each output that an input reaches without a register, these inputs (docs/guides/tape_out.md).
PATHS = {
    "m2s_req__ready": ["m2s_req__payload", "m2s_rwd__payload", "m2s_rwd__valid"],
    "m2s_rwd__ready": ["m2s_rwd__payload"],
    "quiescent": ["cold_completion__valid", "m2s_req__valid", "m2s_rwd__valid"],
}


def test_one_clock_and_few_ways_from_input_to_output(written):
    structure = description(written)["structure"]
    assert structure["clocks"] == ["posedge clk"] and structure["latches"] == []
    if top_of(written) == "kelp_endpoint":
        assert structure["paths"] == PATHS
        assert {"s2m_drs__payload", "s2m_drs__valid", "ready"} <= set(structure["registered"])


def test_constraints_name_each_port_once(written):
    top = top_of(written)
    text = (written / f"{top}.sdc").read_text(encoding="utf-8")
    wrapped = (written / f"{top}_wrapper.sv").read_text(encoding="utf-8")
    for direction in ("input", "output"):
        (listed,) = re.findall(rf"set_{direction}_delay .*\[get_ports {{\n([^}}]*)}}\]", text)
        ports = re.findall(rf"(?m)^    {direction} +wire (\[\d+:0\] )?(\w+),?$", wrapped)
        assert listed.split() == [
            f"{name}[*]" if bits else name for bits, name in ports if name != "clk"
        ]


_ASKED = """\
read_verilog {top}.v
hierarchy -top {top}
proc -norom
memory_collect
flatten
opt_clean
tee -q -o memories.txt select -list t:$mem_v2
tee -q -o state.txt select -list t:$adff t:$aldff t:$dlatch t:$adlatch t:$dffsr t:$sr t:$tribuf
splitnets -ports
tee -q -o outputs.txt select -list i:* i:clk %d %coe* o:* %i
"""


@pytest.mark.slow  # minutes
@pytest.mark.timeout(1800)
def test_yosys_finds_the_same(written):
    """As plain Verilog, without asserts; to Yosys a table is no memory."""
    said = description(written)
    (written / "asked.ys").write_text(_ASKED.format(top=said["top"]), encoding="utf-8")
    done = subprocess.run(
        ["yosys", "-q", "asked.ys"], cwd=written, env=tools.tool_env(), capture_output=True
    )
    assert done.returncode == 0, done.stderr
    found = {
        name: (written / f"{name}.txt").read_text(encoding="utf-8").split()
        for name in ("memories", "state", "outputs")
    }
    assert len(found["memories"]) == sum(bool(m["writes"]) for m in said["memories"])
    assert not found["state"]
    outputs = {each.partition("/")[2].partition("[")[0] for each in found["outputs"]}
    assert outputs == said["structure"]["paths"].keys()


def test_widths_become_explicit():
    cell = "\n".join(
        [
            "module \\t",
            "  wire width 4 \\a",
            "  wire width 1 \\b",
            "  wire width 5 \\y",
            "  cell $add $1",
            "    parameter \\A_SIGNED 0",
            "    parameter \\B_SIGNED 0",
            "    parameter \\A_WIDTH 4",
            "    parameter \\B_WIDTH 1",
            "    parameter \\Y_WIDTH 5",
            "    connect \\A \\a [3:0]",
            "    connect \\B \\b",
            "    connect \\Y \\y",
            "  end",
            "end",
        ]
    )
    made = explicit_widths(cell)
    assert (
        "connect \\A { 1'0 \\a [3:0] }" in made
        and "connect \\B { 4'0000 \\b [0] }" in made
        and made.count("_WIDTH 5") == 3
    )
