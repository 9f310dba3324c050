# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Whose bench is which: every block of the RTL with state or arithmetic, and the tests that must
notice its mutants."""

from dataclasses import dataclass

__all__ = ["BENCHES", "NO_STATE", "Bench"]


@dataclass(frozen=True)
class Bench:
    """Blocks that the same tests stand for.

    `blocks` are files of kelp_hw with their classes; `tests` are pytest's arguments, the quickest
    first. `level` is "netlist" where the tests run on Verilator, "source" where they run on
    Amaranth's simulator or are proofs.
    """

    name: str
    blocks: dict[str, tuple[str, ...]]
    tests: tuple[str, ...]
    level: str = "netlist"

    @property
    def classes(self) -> dict[str, str]:
        """Class → its module."""
        return {
            block: f"kelp_hw.{file.replace('/', '.')}"
            for file, classes in self.blocks.items()
            for block in classes
        }


def _proofs(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/verif/formal/test_proofs.py::test_holds[{name}]" for name in names)


BENCHES = (
    Bench(
        "lib.source",
        {
            "lib/skid": ("Skid",),
            "lib/bypass_fifo": ("BypassFifo",),
            "lib/order_fifo": ("OrderFifo",),
            "lib/request_fifo": ("RequestFifo",),
            "lib/free_list": ("FreeList",),
            "lib/protected": ("ProtectedMemory", "ProtectedFifo"),
        },
        (
            "tests/hw/lib/test_protected.py",
            "tests/hw/lib/test_skid.py",
            "tests/hw/lib/test_bypass_fifo.py",
            "tests/hw/lib/test_order_fifo.py",
            "tests/hw/lib/test_request_fifo.py",
            "tests/hw/lib/test_free_list.py",
            *_proofs("order_fifo", "request_fifo", "bypass_fifo", "free_list"),
        ),
        "source",
    ),
    Bench("lib", {"lib/split_sram": ("SplitSram",)}, ("tests/hw/lib/test_split_sram.py",)),
    Bench(
        "codec",
        {"codec/quantise": ("Quantiser",), "codec/dequantise": ("Dequantiser",)},
        (
            "tests/hw/codec/test_quantise.py",
            "tests/hw/codec/test_dequantise.py",
            "tests/hw/codec/test_codec.py",
        ),
    ),
    Bench(
        "host",
        {
            "host/ingress": ("Ingress",),
            "host/egress": ("Egress",),
            "host/hints": ("HintAbsorber",),
        },
        (
            "tests/hw/host/test_ingress.py",
            "tests/hw/host/test_egress.py",
            "tests/hw/host/test_hints.py",
        ),
    ),
    Bench(
        "host.source",
        {"host/windows": ("WindowRouter",)},
        ("tests/hw/host/test_windows.py",),
        "source",
    ),
    Bench(
        "miss",
        {
            "miss/grants": ("MissGrants",),
            "miss/park_lists": ("ParkLists",),
            "miss/miss_buffer": ("MissBuffer",),
            "miss/cold_scheduler": ("ColdScheduler",),
        },
        ("tests/hw/miss/test_miss_buffer.py", "tests/hw/miss/test_cold_scheduler.py"),
    ),
    Bench(
        "scores",
        {
            "scores/ema": ("EmaStep", "EmaEngine"),
            "scores/kelp_scores": ("Frequency", "Age", "Profile", "Turns"),
            "lib/delay": ("Delay",),
            "lib/log2": ("Log2",),
        },
        ("tests/hw/scores/test_kelp_scores.py", "tests/hw/scores/test_ema.py"),
    ),
    Bench(
        "prefetch",
        {
            "prefetch/throttle": ("Throttle",),
            "prefetch/sources": ("AccessSource", "PreviousSource"),
            "prefetch/fifo": ("PrefetchFifo",),
            "prefetch/prefetch": ("Prefetcher",),
        },
        (
            "tests/hw/prefetch/test_throttle.py",
            "tests/hw/prefetch/test_fifo.py",
            "tests/hw/prefetch/test_sources.py",
            "tests/hw/prefetch/test_prefetch.py",
        ),
    ),
    Bench(
        "tracker",
        {
            "tracker/frame_table": ("FrameTable",),
            "tracker/sessions": ("Sessions", "SessionCheck"),
            "tracker/foresight": ("Foresight",),
            "tracker/arbiter": ("Arbiter",),
            "tracker/decide": ("Decide",),
            "tracker/miss_ids": ("MissIds",),
            "tracker/page_words": ("PageWords",),
            "tracker/hot_pages": ("HotPages",),
            "tracker/page_address": ("PageAddress",),
            "tracker/queue_formats": ("QueueFormats",),
            "tracker/tracker": ("Tracker",),
            "lib/byte_mask": ("ByteMask",),
        },
        (
            "tests/hw/tracker/test_page_address.py",
            "tests/hw/tracker/test_queue_formats.py",
            "tests/hw/tracker/test_frame_table.py",
            "tests/hw/tracker/test_tracker.py",
        ),
    ),
    Bench(
        "tracker.source",
        {
            "tracker/pools": ("FreeFrames", "Pools"),
            "tracker/error_lines": ("ErrorLines",),
        },
        ("tests/hw/tracker/test_pools.py", "tests/hw/tracker/test_error_lines.py"),
        "source",
    ),
    Bench(
        "eviction",
        {
            "eviction/slots": ("EvictionSlots",),
            "eviction/orphans": ("Orphans",),
            "eviction/excess_tree": ("ExcessTree",),
            "eviction/candidates": ("CandidateList",),
            "eviction/closer": ("Closer",),
            "eviction/queue_state": ("QueueState",),
            "eviction/priority": ("PriorityUnit",),
            "eviction/eviction": ("Eviction",),
            "eviction/evictor": ("Evictor",),
            "eviction/sweep": ("Sweep",),
            "eviction/residency_map": ("ResidencyMap",),
            "lib/exp2": ("Exp2",),
        },
        (
            "tests/hw/eviction/test_priority.py",
            "tests/hw/eviction/test_queue_state.py",
            "tests/hw/eviction/test_evictor.py",
            "tests/hw/eviction/test_closer.py",
            "tests/hw/eviction/test_eviction.py",
            "tests/hw/eviction/test_orphans.py",
            "tests/hw/eviction/test_sweep.py",
        ),
    ),
    Bench(
        "eviction.source",
        {
            "eviction/pool_need": ("PoolNeed",),
            "eviction/plain_search": ("PlainSearch",),
            "eviction/kelp_search": ("KelpSearch",),
            "eviction/kelp_state": ("KelpState",),
        },
        (
            "tests/hw/eviction/test_pool_need.py",
            "tests/hw/eviction/test_plain_search.py",
            "tests/hw/eviction/test_kelp_search.py",
            "tests/hw/eviction/test_kelp_state.py",
        ),
        "source",
    ),
    Bench(
        "control",
        {
            "control/session_control": ("SessionControl", "_StoredLines"),
            "control/telemetry": ("Telemetry",),
            "control/registers": ("Registers",),
            "control/register_file": ("RegisterFile",),
            "control/counters": ("TotalCounters", "QueueCounters"),
            "control/phase": ("PhaseDetector",),
            "control/events": ("EventLog",),
            "control/queue_config": ("QueueConfig",),
            "lib/histogram": ("LatencyHistogram",),
        },
        (
            "tests/hw/control/test_phase.py",
            "tests/hw/control/test_events.py",
            "tests/hw/control/test_counters.py",
            "tests/hw/lib/test_histogram.py",
            "tests/hw/control/test_telemetry.py",
            "tests/hw/control/test_registers.py",
        ),
    ),
    Bench(
        "control.source",
        {"control/faults": ("FaultMonitor",)},
        ("tests/hw/control/test_faults.py",),
        "source",
    ),
    Bench(
        "datapath",
        {
            "datapath/slot_table": ("SlotTable",),
            "datapath/write_store": ("WriteStore",),
            "datapath/front": ("DataFront",),
            "datapath/line_buffer": ("LineBuffer",),
            "datapath/line_slots": ("LineSlots",),
            "datapath/scale_slots": ("ScaleSlots",),
            "datapath/write_out": ("WriteOut",),
            "datapath/flush": ("FlushUnit",),
            "datapath/head": ("DataHead",),
            "datapath/datapath": ("DataPath",),
            "datapath/write_path": ("WritePath",),
            "datapath/error_reports": ("ErrorReports",),
        },
        ("tests/hw/datapath/test_datapath.py",),
    ),
    Bench(
        "endpoint",
        {"endpoint": ("Endpoint", "DataFifo")},
        ("tests/hw/test_endpoint.py::test_traffic",),
    ),
)

#: Blocks without state and arithmetic of their own, and why.
NO_STATE = {
    "Sram": "a macro, or a memory of Amaranth's",
    "WideMemory": "memories side by side, or a macro",
    "NoSlots": "what stands in for slots where no stored format has scales: constants",
    "RawQuantiser": "wires, where no stored format but raw16 is built",
    "RawDequantiser": "wires, where no stored format but raw16 is built",
}
