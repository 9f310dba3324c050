# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What CXL.io and its blocks take of an ECP5, each synthesised alone:
`python -m kelp_verif.cxlio.area`. Some minutes, once for the same sources; many with `--routed`."""

from __future__ import annotations

import argparse
import sys

from kelp_fpga.flow.build import LAYOUT, SYNTHESIS
from kelp_fpga.flow.cells import cells_of
from kelp_fpga.flow.pnr import Flow, place_and_route
from kelp_hw.cxlio.chmu import Chmu
from kelp_hw.cxlio.command_engine import CommandEngine
from kelp_hw.cxlio.cxl_io import CxlIo
from kelp_hw.cxlio.hdm_decode import HdmDecode
from kelp_hw.cxlio.msix import Msix
from kelp_hw.cxlio.pmu import Pmu
from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.layouts import MESSAGES
from kelp_hw.media.decoded_channel import DecodedChannel
from kelp_hw.media.event_records import EventRecords
from kelp_hw.media.health_report import HealthReport
from kelp_hw.media.load_meter import LoadMeter
from kelp_hw.media.media_eraser import MediaEraser
from kelp_hw.media.media_port import MediaPort
from kelp_hw.media.monitor_events import MonitorEvents
from kelp_hw.media.poisoned_lines import PoisonedLines
from kelp_hw.media.ras_errors import RasErrors
from kelp_hw.media.sanitizer import Sanitizer
from kelp_spec.config import named
from kelp_spec.cxlio.config import cxlio_of

__all__ = ["BLOCKS", "main"]

#: Name → the block before the endpoint of a configuration.
BLOCKS = {
    "CxlIo": lambda c: CxlIo(config=cxlio_of(c)),
    "CommandEngine": lambda c: CommandEngine(config=cxlio_of(c)),
    "Pmu": lambda c: Pmu(config=cxlio_of(c)),
    "Chmu": lambda c: Chmu(config=cxlio_of(c)),
    "Msix": lambda c: Msix(vectors=cxlio_of(c).vectors, protect=cxlio_of(c).protect),
    "HdmDecode": lambda c: HdmDecode(config=cxlio_of(c)),
    "DecodedChannel": lambda c: DecodedChannel(config=cxlio_of(c), message=MESSAGES["M2SRwD"]),
    "MediaPort": lambda c: MediaPort(config=c),
    "Sanitizer": lambda c: Sanitizer(config=c),
    "MediaEraser": lambda c: MediaEraser(config=c, axi=axi_signature(c)),
    "EventRecords": lambda c: EventRecords(config=c),
    "PoisonedLines": lambda c: PoisonedLines(config=c),
    "RasErrors": lambda c: RasErrors(config=c),
    "HealthReport": lambda c: HealthReport(config=c),
    "MonitorEvents": lambda c: MonitorEvents(config=c),
    "LoadMeter": lambda c: LoadMeter(depth=c.parked, most=1024),
}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.cxlio.area")
    parser.add_argument("--config", default="unit_cxl", help="one that has cxlio")
    parser.add_argument(
        "--routed", action="store_true", help="placed and routed, too: clock at speed grade 6"
    )
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help=", ".join(BLOCKS))
    args = parser.parse_args(argv)
    if unknown := set(args.blocks) - set(BLOCKS):
        parser.error(f"{', '.join(sorted(unknown))} is no block; there are {', '.join(BLOCKS)}")
    config = named(args.config)
    for name in args.blocks or BLOCKS:
        kept_as = f"cxlio-{config.name}-{name}"
        cells = cells_of(BLOCKS[name](config), kept_as)
        print(f"| `{name}` | {' | '.join(map(str, cells.values()))} |", flush=True)
        if args.routed:
            flow = Flow(script=SYNTHESIS, layout=LAYOUT)
            print(place_and_route(BLOCKS[name](config), name=kept_as, speed=6, flow=flow))
    return 0


if __name__ == "__main__":
    sys.exit(main())
