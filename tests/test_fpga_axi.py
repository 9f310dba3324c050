# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The AXI4 front end against cocotbext-axi's manager."""

import subprocess

import pytest

from kelp_fpga.axi_endpoint import PORT_DOCS, AxiEndpoint
from kelp_fpga.axi_front import AxiFront
from kelp_spec.config import named
from kelp_verif import tools
from kelp_verif.runner import macro_sources, run_cocotb, to_verilog, top_ports


def test_axi_front_end():
    result = run_cocotb(AxiFront(id_bits=8), bench="kelp_verif.axi_front_bench", timeout_s=250)
    rates = result.records["beats_per_cycle"]
    print(rates)
    assert rates["writes"] > 0.95 and rates["reads"] > 0.95 and rates["both"] > 1.9
    assert len(result.tests) == 3


@pytest.mark.parametrize("parameters, message", [({"depth": 100}, "depth = 100"), ({"address_bits": 64}, "address_bits = 64")])
def test_axi_front_end_refuses(parameters, message):
    with pytest.raises(ValueError, match=message):
        AxiFront(**parameters)


def test_every_port_of_the_axi_endpoint_is_documented():
    ports = ["clk", "rst", *top_ports(AxiEndpoint(config=named("unit")))]
    assert {"s_axi_wuser", "s_axi_ruser", "m_axi_awaddr", "m_axi_rdata", "cold_command__payload", "ready", "irq"} <= set(ports)
    for port in ports:
        assert any(port.startswith(name) for name in PORT_DOCS), port


@pytest.mark.slow
def test_the_axi_endpoint_is_linted(tmp_path):
    """Generated, and accepted by Verilator with its own warnings as errors but for style."""
    path = tmp_path / "kelp_axi_endpoint.v"
    text = to_verilog(AxiEndpoint(config=named("unit")), name="kelp_axi_endpoint")
    path.write_text(text, encoding="utf-8")
    options = ["--lint-only", "-Wno-lint", "-Wno-style", "--top-module", "kelp_axi_endpoint"]
    command = [tools.find("verilator"), *options, str(path), *map(str, macro_sources(text))]
    done = subprocess.run(command, env=tools.tool_env(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
