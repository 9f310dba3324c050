# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp verilog``: the endpoint, or the device round it, for other tools."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kelp_spec.config import Config
from kelp_spec.config_text import configuration
from kelp_spec.files import write_whole

from .config import CONFIGURATION
from .output import console, show, writable, write_json

__all__ = ["described", "module_text", "register", "write_verilog"]


def module_text(component, name: str) -> str:
    """Verilog of `component` as module `name`, which lints alone."""
    from kelp_hw.export.rtlil import to_rtlil

    return _verilog_of(to_rtlil(component, name=name), name)


def _verilog_of(rtlil: str, name: str) -> str:
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
    from kelp_hw.export.verilog import settle_constants
    from kelp_hw.export.widths import explicit_widths

    os.environ["AMARANTH_USE_YOSYS"] = "builtin"
    text = explicit_widths(rtlil)
    text = settle_constants(verilog._convert_rtlil_text(text, strip_internal_attrs=True))
    text = reduce_not(constant_tables(default_cases(drop_empty_wires(text))))
    return distinct_instances(guarded_asserts(drop_true_asserts(initial_constants(text))), name)


def described(component, rtlil: str, verilog: str, name: str) -> dict:
    """What an integrator asks of a design, `component` as `rtlil` and `verilog` with top `name`:
    ``memories``, ``shapes`` of these, and its ``structure`` (docs/guides/tape_out.md)."""
    import warnings
    from dataclasses import asdict

    from amaranth.hdl import UnusedElaboratable

    from kelp_hw.export.memories import memories_of, shapes_of, verilog_instances
    from kelp_hw.export.netlist import read_rtlil
    from kelp_hw.export.structure import structure_of
    from kelp_verif.endpoint.inventory import inventory, memory_name

    # The inventory elaborates what nobody converts.
    warnings.simplefilter("ignore", UnusedElaboratable)
    cells = inventory(component)
    modules = read_rtlil(rtlil)
    memories = memories_of(modules, name)
    rows = []
    for memory, instance in zip(memories, verilog_instances(memories, name, verilog), strict=True):
        of_macro = ("words",) if memory.shape.macro else ()
        known = cells[memory_name(*memory.path, *of_macro)]
        rows.append(
            {
                "name": memory_name(*memory.path, *of_macro),
                "instance": instance,
                **asdict(memory.shape),
                "code_words": [len(word) for word in known.words] if known.columns else [],
                "cleared_by": known.cleared_by or None,
            }
        )
    return {
        "memories": rows,
        "shapes": [{**asdict(shape), "memories": n} for shape, n in shapes_of(memories)],
        "structure": asdict(structure_of(modules, name)),
    }


def write_verilog(config: Config, directory: Path, *, external_macros: bool = False) -> list[Path]:
    """Write the Verilog and everything beside it into ``directory``; returns the
    files."""
    from kelp_hw.cxl_device import CxlDevice
    from kelp_hw.endpoint import Endpoint
    from kelp_hw.export.ports import top_name, top_ports
    from kelp_hw.export.rtlil import to_rtlil
    from kelp_hw.export.verilog import macro_sources
    from kelp_hw.export.wrapper import constraints, core_file, smoke_bench, wrapper
    from kelp_hw.flit.front import FlitFront
    from kelp_spec.render import c_header

    from .config import describe

    top = top_name(config)
    parts = {top: CxlDevice(config=config) if config.cxlio else Endpoint(config=config)}
    if config.flits:
        parts["kelp_flit_front"] = FlitFront(
            side="device", credits=config.flits, protect=config.protect
        )
    head = (
        f"// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1\n// KELP {top[5:]}, "
        + f"configuration {config.name} ({config.digest}). Generated; do not edit.\n"
    )
    files, said = {}, {}
    for name, component in parts.items():
        rtlil = to_rtlil(component, name=name)
        text = _verilog_of(rtlil, name)
        files[f"{name}.v"] = head + text
        said[name] = described(component, rtlil, text, name)
    if not external_macros:
        for macro in macro_sources("".join(files.values())):
            files[f"{top}.v"] += "\n" + macro.read_text(encoding="utf-8")
    files[f"{top}_wrapper.sv"] = wrapper(config)
    sources = sorted(files)
    files |= {
        f"{top}_smoke.sv": smoke_bench(config),
        f"{top}.sdc": constraints(config),
        "kelp_regs.h": c_header(config),
        "kelp.core": core_file(config, sources),
    }
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
    payload = {
        "top": top,
        "parameters": describe(config),
        "external_macros": external_macros,
        "ports": ports,
        **said.pop(top),
        **said,
    }
    write_json(directory / f"{top}.json", top[5:], payload)
    return [*(directory / name for name in files), directory / f"{top}.json"]


#: Names of files that some configurations have and others have not.
_EVER_WRITTEN = frozenset(
    f"{top}{end}"
    for top in ("kelp_endpoint", "kelp_device", "kelp_flit_front")
    for end in (".v", "_wrapper.sv", "_smoke.sv", ".sdc", ".json")
)


def register(app: typer.Typer) -> None:
    app.command()(verilog)


def verilog(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Directory to write into; made if need be.")
    ],
    config: Annotated[str, typer.Option(help=CONFIGURATION)] = "trace",
    external_macros: Annotated[
        bool,
        typer.Option(
            "--external-macros",
            help="Leave out the behavioural SRAM models, for a flow that has its own.",
        ),
    ] = False,
    memories: Annotated[
        bool, typer.Option("--memories", help="Print the memories, a line for each shape.")
    ] = False,
) -> None:
    """Write the endpoint's Verilog (of a configuration with CXL.io the device's), a wrapper with
    flat ports and its timing constraints, a smoke bench, the C header of its registers and
    addresses, a FuseSoC core file and a JSON description, memories included; of one with flits
    their front beside it."""
    chosen = configuration(config)
    writable(folder=output)
    with console.status(f"generating configuration {chosen.name} …"):
        files = write_verilog(chosen, output, external_macros=external_macros)
    for file in files:
        console.print(f"{file}  {file.stat().st_size / 1024:,.0f} KiB")
    for file in sorted(output.glob("kelp_*")):
        if file.name in _EVER_WRITTEN and file not in files:
            console.print(
                f"{file} is of an earlier call, for another configuration, and was left: kelp.core "
                + "does not name it",
                soft_wrap=True,
            )
    if memories:
        for name, said in _parts(json.loads(files[-1].read_text(encoding="utf-8"))):
            show(_shapes(name, said["shapes"]))


def _parts(description: dict) -> list[tuple[str, dict]]:
    """(module, what is said of its memories) of each design that was written."""
    beside = description.get("kelp_flit_front")
    return [(description["top"], description), *([("kelp_flit_front", beside)] if beside else [])]


def _shapes(name: str, shapes: list[dict]) -> Table:
    """The memories of one design, those of one shape in a line."""
    table = Table(title=f"memories of {name}")
    for head in ("memories", "rows", "bits", "in all", "reads", "bits a write enable", "module"):
        table.add_column(head, justify="left" if head in ("reads", "module") else "right")
    for shape in shapes:
        how = Counter(
            f"{'clocked' if read['clocked'] else 'same cycle'}, {read['collision']}"
            for read in shape["reads"]
        )
        size = shape["rows"] * shape["bits"] * shape["memories"]
        table.add_row(
            *(str(shape[key]) for key in ("memories", "rows", "bits")),
            f"{size:,}",
            "; ".join(f"{n} × {each}" if n > 1 else each for each, n in how.items()),
            str(shape["granularity"]) if shape["writes"] else "constant",
            shape["macro"] or "inferred",
        )
    return table
