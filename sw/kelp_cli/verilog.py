# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp verilog``: the endpoint, or the device round it, for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from kelp_spec.config import Config, named
from kelp_spec.files import write_whole

from .output import console, writable, write_json

__all__ = ["module_text", "register", "write_verilog"]


def module_text(component, name: str) -> str:
    """Verilog of `component` as module `name`, which lints alone."""
    import os

    from amaranth.back import verilog

    from kelp_hw.export.clean import (
        constant_tables,
        default_cases,
        distinct_instances,
        drop_empty_wires,
        drop_true_asserts,
        guarded_asserts,
        initial_constants,
        reduce_not,
    )
    from kelp_hw.export.rtlil import to_rtlil
    from kelp_hw.export.verilog import settle_constants
    from kelp_hw.export.widths import explicit_widths

    os.environ["AMARANTH_USE_YOSYS"] = "builtin"
    text = explicit_widths(to_rtlil(component, name=name))
    text = settle_constants(verilog._convert_rtlil_text(text, strip_internal_attrs=True))
    text = reduce_not(constant_tables(default_cases(drop_empty_wires(text))))
    return distinct_instances(guarded_asserts(drop_true_asserts(initial_constants(text))), name)


def write_verilog(config: Config, directory: Path, *, external_macros: bool = False) -> list[Path]:
    """Write the Verilog and everything beside it into ``directory``; returns the
    files."""
    import kelp_hw
    from kelp_hw.cxl_device import CxlDevice
    from kelp_hw.endpoint import Endpoint
    from kelp_hw.export.ports import top_name, top_ports
    from kelp_hw.export.wrapper import core_file, smoke_bench, wrapper
    from kelp_hw.flit.front import FlitFront
    from kelp_spec.render import c_header

    from .config import describe

    top = top_name(config)
    device = CxlDevice(config=config) if config.cxlio else Endpoint(config=config)
    text = module_text(device, top)
    head = (
        f"// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1\n// KELP {top[5:]}, "
        + f"configuration {config.name} ({config.digest}). Generated; do not edit.\n"
    )
    if not external_macros:
        for macro in sorted((Path(kelp_hw.__file__).parent / "macros").glob("*.v")):
            text += "\n" + macro.read_text(encoding="utf-8")
    files = {
        f"{top}.v": head + text,
        f"{top}_wrapper.sv": wrapper(config),
        f"{top}_smoke.sv": smoke_bench(config),
        "kelp_regs.h": c_header(config),
    }
    sources = [f"{top}.v", f"{top}_wrapper.sv"]
    if config.flits:
        front = FlitFront(side="device", credits=config.flits, protect=config.protect)
        files["kelp_flit_front.v"] = head + module_text(front, "kelp_flit_front")
        sources.append("kelp_flit_front.v")
    files["kelp.core"] = core_file(config, sources)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_whole(directory / name, content)
    ports = [
        {
            "name": p.name,
            "direction": p.direction,
            "bits": p.bits,
            "fields": [{"name": n, "low": low, "bits": b} for n, low, b in p.fields],
        }
        for p in top_ports(config)
    ]
    write_json(
        directory / f"{top}.json",
        top[5:],
        {
            "top": top,
            "parameters": describe(config),
            "external_macros": external_macros,
            "ports": ports,
        },
    )
    return [*(directory / name for name in files), directory / f"{top}.json"]


def register(app: typer.Typer) -> None:
    app.command()(verilog)


def verilog(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Directory to write into; made if need be.")
    ],
    config: Annotated[
        str, typer.Option(help="Named configuration (kelp config lists them).")
    ] = "trace",
    external_macros: Annotated[
        bool,
        typer.Option(
            "--external-macros",
            help="Leave out the behavioural SRAM models, for a flow that has its own.",
        ),
    ] = False,
) -> None:
    """Write the endpoint's Verilog (of a configuration with CXL.io the device's), a wrapper with
    flat ports, a smoke bench, the C header of its registers and addresses, a FuseSoC core file and
    a JSON description; of one with flits their front beside it."""
    chosen = named(config)
    writable(folder=output)
    with console.status(f"generating configuration {chosen.name} …"):
        files = write_verilog(chosen, output, external_macros=external_macros)
    for file in files:
        console.print(f"{file}  {file.stat().st_size / 1024:,.0f} KiB")
