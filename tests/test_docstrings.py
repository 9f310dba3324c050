# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Docstrings of the blocks, of the endpoint and of the boards: each port has its name under
`Members`, and each block says in attributes how fast it is, which its bench or test holds it to."""

import importlib
import inspect
import pkgutil
import re

import pytest
from amaranth.hdl import Elaboratable
from amaranth.lib import wiring
from paths import ROOT

import kelp_fpga
import kelp_hw
from kelp_fpga.configs import FIRST_LIGHT, board_config
from kelp_fpga.selftest.self_test_program import program
from kelp_golden.codec import round_trip
from kelp_hw.choice.select_engine import KeySizes
from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.datapath.signatures import LineHead, LineLookUp
from kelp_hw.layouts import MESSAGES
from kelp_spec.coherence import SIZES
from kelp_spec.config import named
from kelp_spec.cxlio.component import component_registers
from kelp_spec.cxlio.config import named_cxlio

HW = ROOT / "hw" / "kelp_hw"
READMES = [path for path in HW.glob("*/README.md") if "| latency |" in path.read_text("utf-8")]
UNIT = named("unit")
IO = named_cxlio("recorded")
_TABLE = {"config": UNIT, "slots": 8, "lead": 4}
#: Arguments of the smallest legal instance, where they are not `config` alone.
ARGUMENTS = {
    **dict.fromkeys(("Age", "EmaStep", "Frequency", "Throttle", "TotalCounters"), {}),
    **dict.fromkeys(("GuessedValue", "PageFrequencies"), {}),
    **dict.fromkeys(
        (
            *("CommandEngine", "CxlIo", "HdmDecode", "HdmDecoders", "Mailbox", "RasLog"),
            "SnoopAddress",
        ),
        {"config": IO},
    ),
    **dict.fromkeys(("Doe", "RegisterPort"), {}),
    "ByteMemory": {"depth": 2, "words": 1, "protect": True},
    "ConstantMemory": {"content": [0], "protect": True},
    **dict.fromkeys(
        ("CxlDevice", "EventRecords", "MediaPort", "PoisonedLines"),
        {"config": UNIT.with_(cxlio="recorded")},
    ),
    "Sanitizer": {"config": named("unit_cxl")},
    "MediaEraser": {"config": named("unit_cxl"), "axi": axi_signature(UNIT)},
    "ChannelOrder": {"depth": 4},
    "DecodedChannel": {"config": IO, "message": MESSAGES["M2SReq"]},
    "CreditReceiver": {"credits": 4},
    "CreditSender": {},
    "FlitFront": {"side": "device", "credits": 4, "protect": True},
    "FlitPacker": {"direction": "s2m", "protect": True},
    "FlitUnpacker": {"direction": "s2m", "credits": 4, "protect": True},
    "LoadMeter": {"depth": 4, "most": 8},
    "Msix": {"vectors": 2},
    "Pmu": {"config": named_cxlio("recorded_pmu")},
    "Chmu": {"config": named_cxlio("joined")},
    "RegisterBank": {"block": component_registers(IO)},
    "Sequencer": {"program": [0]},
    **dict.fromkeys(
        ("CoherentFront", "Directory", "Grants", "RequestWindow", "SnoopEngine"),
        {"config": UNIT, "sizes": SIZES["unit"]},
    ),
    **dict.fromkeys(
        ("CoherentHostPort", "LostLines", "PageRecall"), {"config": named("unit_coherent")}
    ),
    "AskShare": {"sector_bits": 4},
    "BypassFifo": {"depth": 2, "shape": 1},
    "ByteMask": {"slots": 1, "protect": True},
    "Delay": {"shape": 1, "cycles": 2},
    "EventLog": {"config": UNIT, "sources": 1},
    "Exp2": {"bias": 0},
    "FreeFrames": {"first": 0, "frames": 8, "frame_bits": 3},
    "FreeList": {"count": 1},
    "LatencyHistogram": {"cycle_bits": 1},
    "OrderFifo": {"width": 1, "depth": 4},
    "ParkLists": {"lists": 1, "nodes": 1, "shape": 1},
    "DataFront": {"config": UNIT, "axi": axi_signature(UNIT)},
    "Dequantiser": {"meta_shape": 1},
    "LineBuffer": {
        "config": UNIT,
        "slots": 8,
        "strobes": 4,
        "look": LineLookUp(UNIT),
        "head": LineHead(UNIT),
    },
    "Log2": {"bits": 2, "least": 0},
    "NoSlots": _TABLE,
    "Quantiser": {"meta_shape": 1},
    "QueueConfig": {"config": UNIT, "fields": ("window",), "protect": True},
    "RawDequantiser": {"meta_shape": 1},
    "RawQuantiser": {"meta_shape": 1},
    "RequestFifo": {"depth": 2, "shape": 1},
    "Skid": {"shape": 1},
    "Registers": {"config": UNIT, "event_sources": 1},
    "KeyScore": {"heads": 1, "lines": 1, "id_bits": 1},
    "SummaryScore": {"heads": 1, "lines": 1, "rows": 1, "lanes": 16, "id_bits": 1},
    "CodeWeights": {"heads": 1, "lines": 1},
    "MassShare": {"heads": 1, "depth": 2, "id_bits": 1},
    "PageMass": {"heads": 1, "id_bits": 1},
    "SummaryBuild": {"lines": 2, "rows": 1, "id_bits": 1},
    "SlotTable": _TABLE,
    "Choice": {"depth": 1, "mass_bits": 1, "id_bits": 1},
    "PageMarks": {"pages": 64, "lists": 1},
    **dict.fromkeys(
        (
            *("GatherWindow", "PageReader", "Select"),
            *("SelectControl", "SelectWindow", "SummaryMemory", "SummaryRows", "SummaryStore"),
        ),
        {"config": named("unit_select")},
    ),
    "SelectEngine": {
        **{"heads": 1, "sizes": KeySizes(1, 1, 16)},
        **{"pages": 64, "quota": 1, "most": 1},
    },
    "TopK": {"depth": 1, "score": 1, "id_bits": 1},
    "Unscored": {"heads": 1},
    **dict.fromkeys(("SplitSram", "Sram", "WideMemory"), {"depth": 1, "shape": 1}),
    **dict.fromkeys(
        ("ProtectedFifo", "ProtectedMemory"), {"depth": 1, "shape": 1, "protect": True}
    ),
    # Of the boards:
    **dict.fromkeys(("AxiFront", "Deframer", "Framer", "HostBridge", "LinkReceiver"), {}),
    "AxiArbiter": {"managers": 2, "address_bits": 25, "id_bits": 1},
    "BlockStore": {"lines": 2, "address_bits": 25, "id_bits": 1},
    "Board": {
        "config": board_config(FIRST_LIGHT),
        "round_trip": round_trip,
        "hz": 80_000_000,
        "divisor": 4,
    },
    "Burst": {"id_bits": 1, "address_bits": 7},
    "ColdStore": {"config": UNIT, "first_line": 0, "lines": 1 << 16, "address_bits": 25},
    "LinkSender": {"patience": 1},
    "MemoryTest": {"address_bits": 25},
    "OnePlace": {"shape": 1},
    "Sdram": {"hz": 80e6, "address_bits": 25, "id_bits": 1},
    "SdramCore": {"hz": 80e6, "id_bits": 1},
    "SdramPads": {"ports": object()},
    "SelfTest": {"program": program(board_config(FIRST_LIGHT), round_trip)},
    "UartReceiver": {"divisor": 4},
    "UartTransmitter": {"divisor": 4},
    "WriteOut": {
        "axi": axi_signature(UNIT),
        "line_bits": 8,
        "line_slots": 8,
        "scale_slots": 8,
        "protect": True,
    },
}

#: Class → why it has no `LATENCY` and `INTERVAL`.
NOT_TIMED = {
    "AxiEndpoint": "that of `AxiFront` and the endpoint's",
    "BlockTop": "wires between pins and ports",
    "Board": "that of its parts",
    "Checked": "it reads, and drives nothing",
    "Closer": "a walk over a session, in the background",
    "ColdStore": "a page takes as long as the memory takes for its lines",
    "Dummy": "it computes nothing",
    "Endpoint": "its hit latency and its rate are rows of `make bench`",
    "Evictor": "a search passes as many queues as have no page",
    "MemoryTest": "a march over as many lines as it is told",
    "Orphans": "a walk over all frames, in the background",
    "SelectControl": "that of its parts",
    "SelfTest": "it takes as long as its program",
    "Ulx3s": "wires between pins and ports",
    "_Rule": "it reads, and drives nothing",
    "VccIo": "it waits for a supply to settle",
}


def blocks():
    """Every block's class of the endpoint and of the boards, tops of boards among them."""
    for package in (kelp_hw, kelp_fpga):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if (
                    inspect.isclass(value)
                    and issubclass(value, Elaboratable)
                    and value.__module__ == module.name
                ):
                    yield value


def smallest(cls):
    return cls(**ARGUMENTS.get(cls.__name__, {"config": UNIT}))


def ports(cls):
    """A board's top has pins of its platform alone."""
    return smallest(cls).signature.members if issubclass(cls, wiring.Component) else ()


def unnamed(docstring, ports):
    """The ports that no unindented line of the docstring's `Members` section names; `x_<name>`
    there names all that begin with `x_`."""
    sections = re.split(r"^(\w+)\n-+$", inspect.cleandoc(docstring or ""), flags=re.MULTILINE)
    members = dict(zip(sections[1::2], sections[2::2], strict=True)).get("Members", "")
    terms = re.findall(r"(?:\w|<\w+>)+", "\n".join(re.findall(r"^\S.*", members, re.MULTILINE)))
    pattern = re.compile("|".join(re.sub(r"<\w+>", r"\\w+", term) for term in terms) or "(?!)")
    return [port for port in ports if not pattern.fullmatch(port)]


BLOCKS = [pytest.param(cls, id=f"{cls.__module__}-{cls.__name__}") for cls in blocks()]


@pytest.mark.parametrize("cls", BLOCKS)
def test_each_port_is_named(cls):
    assert not unnamed(cls.__doc__, ports(cls))


#: Block → why it has more ports than are read at once.
MANY_PORTS = {
    "AxiEndpoint": "AXI4 wires under the names that block-design tools look for",
    "AxiFront": "the same",
    "CoherentFront": "the host's six channels and the inner device's four",
    "CoherentHostPort": "the same",
    "CxlDevice": "the endpoint's, and CXL.io's beside them",
    "Select": "every stream between host, tracker and data path, and what tables are asked",
    "RegisterFile": "a port for each register: the map of spec §9 is its interface",
}


@pytest.mark.parametrize("cls", BLOCKS)
def test_no_block_has_more_ports_than_are_read_at_once(cls):
    """Ports that belong together are one signature (signatures.py of a room, layouts.py)."""
    assert (len(ports(cls)) > 21) == (cls.__name__ in MANY_PORTS)


def pairs(ports):
    """Ports of which another says whether they hold something: a stream, or a struct of both."""
    names = {re.sub("_(payload|data)$", "", port) for port in ports}
    return [port for port in ports if port.endswith("_valid") and port[:-6] in names]


@pytest.mark.parametrize("cls", BLOCKS)
def test_no_port_has_another_one_for_its_valid(cls):
    assert not pairs(ports(cls)) or cls.__name__ in MANY_PORTS


def test_a_planted_pair_is_seen():
    assert pairs(["i", "i_valid", "read_data", "read_valid", "x_valid"]) == [
        "i_valid",
        "read_valid",
    ]


@pytest.mark.parametrize("cls", BLOCKS)
def test_each_block_says_how_fast_it_is(cls):
    if cls.__name__ in NOT_TIMED:
        assert not hasattr(cls, "LATENCY") or not hasattr(cls, "INTERVAL"), "needs no waiver"
    else:
        assert hasattr(cls, "LATENCY") and hasattr(cls, "INTERVAL")
        assert re.search(r"(?i)latency|combinational", cls.__doc__), "docstring tells no latency"


def false_paces(text, paces):
    """Figures of cycles in `text` that are none of `paces`; not those that are about right, a bound
    or a part of a sum."""
    said = re.findall(r"(?i)(?<!about )(?<!at most )\b(\d+) cycles?\b(?! and the)", text)
    return [int(figure) for figure in said if int(figure) not in paces]


MODULES = {}
for each in blocks():
    MODULES.setdefault(each.__module__, []).append(each)


@pytest.mark.parametrize("module", MODULES)
def test_the_top_of_a_file_states_no_other_pace_than_its_blocks(module):
    paces = {
        getattr(smallest(cls), name)
        for cls in MODULES[module]
        if cls.__name__ not in NOT_TIMED
        for name in dir(cls)
        if re.search("LATENCY|INTERVAL", name)
    }
    text = " ".join(importlib.import_module(module).__doc__.split())
    assert not false_paces(text, paces)


def figures_of(cls):
    """What its attributes say of how fast a block is."""
    names = [name for name in dir(cls) if re.search("LATENCY|INTERVAL", name)]
    return {getattr(smallest(cls), name) for name in names}


def latencies(readme):
    """(block, latency) of each row of a room's table."""
    return re.findall(r"^\| \[[^|]*\| `(\w+)`[^|]*\|[^|]*\| ([^|]*) \|", readme, re.MULTILINE)


def is_another(latency, paces):
    """Whether a row begins with a figure, of two the least or the most, that is none of `paces`;
    not with a part of a sum."""
    said = re.match(r"(\d+)(?: to (\d+))?\b(?! cycles (?:and the|a level))", latency)
    return bool(said) and not paces & {int(figure) for figure in said.groups() if figure}


@pytest.mark.parametrize("room", sorted(path.parent.name for path in READMES))
def test_a_rooms_readme_has_its_blocks_own_latencies(room):
    classes = {cls.__name__: cls for cls in blocks() if f"kelp_hw.{room}." in cls.__module__}
    rows = latencies((HW / room / "README.md").read_text(encoding="utf-8"))
    bad = [
        f"{name}: {latency}"
        for name, latency in rows
        if name in classes and name not in NOT_TIMED
        if is_another(latency, figures_of(classes[name]))
    ]
    assert not bad, "\n".join(bad)


def test_a_planted_latency_is_seen():
    row = "| [fifo.py](fifo.py) | `Fifo` | holds items | 3 cycles at best | 1 item a cycle |"
    ((name, latency),) = latencies(row)
    assert name == "Fifo" and is_another(latency, {1, 2}) and not is_another(latency, {3})
    assert not is_another("1 to 2 cycles", {2}) and not is_another("none", {2})
    assert not is_another("3 cycles and the quantiser's", {2})


def test_the_tables_name_what_exists():
    names = {cls.__name__ for cls in blocks()}
    assert names >= ARGUMENTS.keys() | NOT_TIMED.keys()


def test_a_planted_false_pace_is_seen():
    text = "After 2 cycles, about 60 cycles, 3 cycles and the head's, at most 20 cycles; 1 cycle"
    assert false_paces(text, {1, 2}) == []
    assert false_paces(text, {2}) == [1]


def test_a_planted_omission_is_seen():
    docstring = """A FIFO of `depth` places.

    Members
    -------
    i, o : streams
        `level` is mentioned, not named.
    ready : out
    rw_<name> : out

    Attributes
    ----------
    depth : int
    """
    assert not unnamed(docstring, ["i", "o", "ready", "rw_a", "rw_b"])
    assert unnamed(docstring, ["i", "o", "depth", "level", "ro_a"]) == ["depth", "level", "ro_a"]
    assert unnamed(None, ["i"]) == ["i"]
