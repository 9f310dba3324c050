# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint behind AXI4; its ports, its Verilog, the example of docs/fpga.md."""

import dataclasses
import re
import subprocess

import pytest
from lint_waivers import WAIVED
from paths import DOCS

from kelp_cli.verilog import module_text
from kelp_fpga.axi.axi_endpoint import AxiEndpoint
from kelp_fpga.axi.axi_ports import PORT_DOCS, axi_ports_markdown
from kelp_hw.export import tools
from kelp_hw.export.ports import ports_of
from kelp_hw.export.rtlil import component_ports
from kelp_hw.export.verilog import macro_sources
from kelp_spec.config import named
from kelp_verif.harness.runner import Model, run_cocotb

UNIT = named("unit")


# Members and widths of the R-tile example design's packages, as far as a memory channel has them.
_ENCODINGS = {
    "burst_size": 3,
    "burst": 2,
    "prot": 3,
    "qos": 4,
    "awcache": 4,
    "arcache": 4,
    "lock": 1,
    "resp": 2,
}


_BURST = """logic [7:0] {0}id; logic [51:0] {0}addr; logic [9:0] {0}len;
t_axi4_burst_size_encoding {0}size; t_axi4_burst_encoding {0}burst;
t_axi4_prot_encoding {0}prot; t_axi4_qos_encoding {0}qos; logic {0}valid;
t_axi4_{0}cache_encoding {0}cache; t_axi4_lock_encoding {0}lock;
logic [3:0] {0}region; logic {0}user;"""


PACKAGES = "\n".join(
    [
        "package afu_axi_if_pkg;",
        *(
            f"typedef enum logic [{bits - 1}:0] {{ e{name}_LOW = {bits}'d0, e{name}_HIGH = "
            + f"{bits}'d{2**bits - 1} }} t_axi4_{name}_encoding;"
            for name, bits in _ENCODINGS.items()
        ),
        "endpackage",
        "package mc_axi_if_pkg;",
        "import afu_axi_if_pkg::*;",
        "typedef struct packed { logic poison; } t_rd_rsp_user;",
        "typedef struct packed { logic bready; logic rready;",
        _BURST.format("aw"),
        "logic [511:0] wdata; logic [63:0] wstrb; logic wlast; logic wvalid; logic wuser;",
        _BURST.format("ar"),
        "} t_to_mc_axi4;",
        "typedef struct packed { logic awready; logic wready; logic arready; logic [7:0] bid; "
        + "t_axi4_resp_encoding bresp; logic bvalid; logic buser;",
        "logic [7:0] rid; logic [511:0] rdata; t_axi4_resp_encoding rresp; logic rvalid; "
        + "logic rlast; t_rd_rsp_user ruser; } t_from_mc_axi4;",
        "endpackage",
        "",
    ]
)


@pytest.mark.slow  # it builds the model: two minutes of processor time
@pytest.mark.timeout(1800)
def test_the_whole_top():
    """AxiMaster → the top, configuration `unit` → AxiRam and flash: what is written comes back,
    through eviction and fetch, hits at a line a cycle. A write's slot is taken for 27 cycles, so
    the 16 that `unit` has are 0.6 lines a cycle; here are 64. And twice its frames for raw16, so
    that three pages of a queue stay while another page is fetched."""
    config = UNIT.with_(write_slots=64, frames=(2 * UNIT.frames[0], *UNIT.frames[1:]))
    result = run_cocotb(
        AxiEndpoint(config=config),
        bench="kelp_verif.fpga.axi_endpoint_bench",
        params={"config": dataclasses.asdict(config)},
        model=Model(opt="-O0"),
        timeout_s=600,
    )
    print(result.records)
    assert len(result.tests) == 5


def test_every_port_of_the_axi_endpoint_is_documented():
    top = AxiEndpoint(config=UNIT)
    ports = {port.name: port for port in ports_of(top.signature)}
    assert [*ports] == ["clk", "rst", *component_ports(top)]
    # The memory of summaries has a port where a configuration says so.
    select = AxiEndpoint(config=named("unit_select"))
    assert [port.name for port in ports_of(select.signature)] == [
        "clk",
        "rst",
        *component_ports(select),
    ]
    assert "m_axi_summary_arvalid" in component_ports(select)
    assert set(ports) | set(component_ports(select)) == set(PORT_DOCS)
    rows = axi_ports_markdown(top).splitlines()
    assert "| `s_axi_awaddr` | input | 52 |" in "\n".join(
        rows
    ) and "| `m_axi_awvalid` | output | 1 |" in "\n".join(rows)
    command = next(row for row in rows if "cold_command__payload" in row)
    assert (
        "op [1:0], id.index [" in command
        and f"line_mask.poison [{ports['cold_command__payload'].bits - 1}:" in command
    )


# Of the example's package: members that the endpoint has no use for.
SPARE = ("DECLFILENAME", "UNUSEDSIGNAL")


def lint(top, waived, *files):
    command = [
        tools.find("verilator"),
        "--lint-only",
        "--timing",
        "-Wall",
        *(f"-Wno-{name}" for name in waived),
        "--top-module",
        top,
        *map(str, files),
    ]
    return subprocess.run(
        command, env=tools.tool_env(), capture_output=True, text=True, check=False
    )


def example(directory):
    """The example of docs/fpga.md behind a package with the members that the R-tile's has, and its
    Verilog."""
    text = (DOCS / "fpga.md").read_text(encoding="utf-8")
    (directory / "packages.sv").write_text(PACKAGES, encoding="utf-8")
    (directory / "kelp_afu.sv").write_text(
        re.search(r"```systemverilog\n(.*?)```", text, re.DOTALL)[1], encoding="utf-8"
    )
    return directory / "packages.sv", directory / "kelp_afu.sv"


def test_the_example_fits_the_ports(tmp_path):
    """Every port is connected, at its width; the endpoint's inside is left out."""
    ports = ports_of(AxiEndpoint(config=named("trace")).signature)
    header = ",\n".join(f"{port.direction} wire [{port.bits - 1}:0] {port.name}" for port in ports)
    (tmp_path / "kelp_axi_endpoint.v").write_text(
        f"// verilator lint_off UNDRIVEN\nmodule kelp_axi_endpoint ({header});\nendmodule\n",
        encoding="utf-8",
    )
    files = *example(tmp_path), tmp_path / "kelp_axi_endpoint.v"
    done = lint("kelp_afu", SPARE, *files)
    assert done.returncode == 0, done.stderr[-3000:]
    good = files[1].read_text(encoding="utf-8")
    for there, wrong in (
        (".s_axi_wstrb(ip.wstrb), ", ""),
        ("assign mc.wuser", "// "),
        ("wire [112:0]", "wire [111:0]"),
        (".m_axi_rid(", ".m_axi_rids("),
    ):
        assert there in good
        files[1].write_text(good.replace(there, wrong), encoding="utf-8")
        assert lint("kelp_afu", SPARE, *files).returncode != 0, wrong


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("config", ["unit", "trace"])
def test_the_axi_endpoint_is_linted(config, tmp_path):
    """Generated, and accepted by Verilator with its own warnings as errors, but for how Amaranth
    and Yosys write Verilog; `trace` inside the example."""
    text = module_text(AxiEndpoint(config=named(config)), "kelp_axi_endpoint")
    (tmp_path / "kelp_axi_endpoint.v").write_text(text, encoding="utf-8")
    files = [tmp_path / "kelp_axi_endpoint.v", *macro_sources(text)]
    done = (
        lint("kelp_afu", WAIVED, *example(tmp_path), *files)
        if config == "trace"
        else lint("kelp_axi_endpoint", WAIVED, *files)
    )
    assert done.returncode == 0, done.stderr[-3000:]
