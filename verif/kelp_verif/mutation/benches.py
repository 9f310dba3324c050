# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Whose bench is which: every block of the RTL with state or arithmetic, and the tests that must
notice its mutants."""

from dataclasses import dataclass, field

from kelp_hw.datapath.datapath import axi_signature
from kelp_spec.coherence import sizes_of

__all__ = ["BENCHES", "NO_STATE", "Bench"]


@dataclass(frozen=True)
class Bench:
    """Blocks that the same tests stand for.

    `blocks` are files of kelp_hw with their classes; `tests` are pytest's arguments, the quickest
    first. `level` is "netlist" where the tests run on Verilator, "source" where they run on
    Amaranth's simulator or are proofs. `sizes` are parameters of blocks of the source beside their
    configuration, or functions of it, with which a mutant is tried to be proved equivalent; where
    one size says little about another, `variants` are others beside them, and each must agree.
    """

    name: str
    blocks: dict[str, tuple[str, ...]]
    tests: tuple[str, ...]
    level: str = "netlist"
    sizes: dict = field(default_factory=dict)
    variants: tuple[dict, ...] = ({},)

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


def _source(
    file: str,
    *classes: str,
    proofs: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    variants: tuple[dict, ...] = ({},),
    **sizes,
) -> Bench:
    """A block whose test is on Amaranth's simulator. Nothing is built for it, so that it runs by
    itself. `also` are tests of the room that look at it, too; `sizes`, `variants` as of a Bench."""
    room, _, name = file.rpartition("/")
    own = (name, *also)
    tests = (*(f"tests/hw/{room}/test_{each}.py" for each in own), *_proofs(*proofs))
    return Bench(f"{room}.{name}", {file: classes}, tests, "source", sizes, variants)


BENCHES = (
    _source("lib/skid", "Skid"),
    _source("lib/bypass_fifo", "BypassFifo", proofs=("bypass_fifo",)),
    _source("lib/order_fifo", "OrderFifo", proofs=("order_fifo",)),
    _source("lib/request_fifo", "RequestFifo", proofs=("request_fifo",)),
    _source("lib/free_list", "FreeList", proofs=("free_list",), count=5),
    _source("lib/byte_mask", "ByteMask", slots=8, protect=True),
    _source("lib/delay", "Delay", shape=2, variants=tuple({"cycles": n} for n in (2, 3, 4, 9))),
    _source("lib/exp2", "Exp2", bias=1),
    _source("lib/log2", "Log2", bits=12, least=4),
    _source("lib/protected", "ProtectedMemory", "ProtectedFifo"),
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
    _source("scores/kelp_scores", "Frequency", "Age", "Profile", "Turns"),
    _source("scores/table_values", "PageFrequencies", "GuessedValue"),
    _source("prefetch/fifo", "PrefetchFifo", proofs=("prefetch_fifo",)),
    _source("host/windows", "WindowRouter"),
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
        },
        ("tests/hw/scores/test_ema.py",),
    ),
    Bench(
        "tables",
        {
            "scores/table_scores": ("TableScores",),
            "scores/table_learning": ("TableLearning",),
            "scores/table_shadow": ("TableShadow",),
        },
        ("tests/hw/scores/test_table_scores.py",),
    ),
    Bench(
        "prefetch",
        {
            "prefetch/throttle": ("Throttle",),
            "prefetch/sources": ("AccessSource", "PreviousSource"),
            "prefetch/prefetch": ("Prefetcher",),
        },
        (
            "tests/hw/prefetch/test_throttle.py",
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
            "tracker/decide": ("Decide",),
            "tracker/page_words": ("PageWords",),
            "tracker/hot_pages": ("HotPages",),
            "tracker/tracker": ("Tracker",),
        },
        (
            "tests/hw/tracker/test_frame_table.py",
            "tests/hw/tracker/test_tracker.py",
        ),
    ),
    _source("tracker/arbiter", "Arbiter", proofs=("arbiter",)),
    _source("tracker/miss_ids", "MissIds", proofs=("miss_ids",)),
    _source("tracker/page_address", "PageAddress"),
    _source("tracker/pools", "FreeFrames", "Pools"),
    _source("tracker/queue_formats", "QueueFormats"),
    _source("tracker/error_lines", "ErrorLines"),
    Bench(
        "eviction",
        {
            "eviction/residency_map": ("ResidencyMap",),
            "eviction/queue_state": ("QueueState",),
            "eviction/priority": ("PriorityUnit",),
            "eviction/eviction": ("Eviction",),
            "eviction/evictor": ("Evictor",),
        },
        (
            "tests/hw/eviction/test_priority.py",
            "tests/hw/eviction/test_queue_state.py",
            "tests/hw/eviction/test_evictor.py",
            "tests/hw/eviction/test_closer.py",
            "tests/hw/eviction/test_orphans.py",
            "tests/hw/eviction/test_eviction.py",
        ),
    ),
    Bench(
        "eviction.excess_tree",
        {"eviction/excess_tree": ("ExcessTree",)},
        ("tests/hw/eviction/test_excess_tree.py",),
    ),
    Bench(
        "eviction.orphans",
        {"eviction/orphans": ("Orphans",)},
        ("tests/hw/eviction/test_orphans.py",),
    ),
    _source("eviction/candidates", "CandidateList"),
    _source("eviction/slots", "EvictionSlots"),
    Bench(
        "eviction.closer",
        {"eviction/closer": ("Closer",)},
        ("tests/hw/eviction/test_closer.py::test_every_page_is_scrubbed_and_waited_for",),
        "source",
    ),
    Bench(
        "eviction.sweep",
        {"eviction/sweep": ("Sweep",)},
        ("tests/hw/eviction/test_sweep.py::test_the_list_is_the_models",),
        "source",
    ),
    _source("eviction/pool_need", "PoolNeed"),
    _source("eviction/plain_search", "PlainSearch"),
    _source("eviction/kelp_search", "KelpSearch"),
    _source("eviction/kelp_state", "KelpState"),
    Bench(
        "control",
        {
            "control/telemetry": ("Telemetry",),
            "control/counters": ("TotalCounters", "QueueCounters"),
            "control/phase": ("PhaseDetector",),
            "control/events": ("EventLog",),
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
    # No other test of the room has it: of a run of some minutes this would come last.
    Bench(
        "control.registers",
        {"control/registers": ("Registers",)},
        ("tests/hw/control/test_registers.py",),
    ),
    _source("control/register_file", "RegisterFile"),
    _source("control/faults", "FaultMonitor"),
    _source("control/session_control", "SessionControl", "_StoredLines"),
    _source("control/queue_config", "QueueConfig", fields=("window", "alpha"), protect=True),
    Bench(
        "datapath",
        {
            "datapath/slot_table": ("SlotTable",),
            "datapath/write_store": ("WriteStore",),
            "datapath/line_slots": ("LineSlots",),
            "datapath/scale_slots": ("ScaleSlots",),
            "datapath/write_out": ("WriteOut",),
            "datapath/flush": ("FlushUnit",),
            "datapath/head": ("DataHead",),
            "datapath/datapath": ("DataPath",),
            "datapath/write_path": ("WritePath",),
        },
        # What is quick first, rates last: a run of some minutes does not reach them.
        tuple(
            f"tests/hw/datapath/test_datapath.py::test_{name}"
            for name in (
                "lines_are_written_once_where_writes_follow_each_other",
                "lines_are_written_before_their_slots_are_needed",
                "lines_that_are_stored_whole_are_not_read",
                "an_op_waits_for_the_fills_of_its_own_slots",
                "flipped_bits_of_a_fill_are_told_whatever_part_is_read",
                "a_flush_forgets_its_own_frame_alone",
                "partial_writes_to_lines_never_written",
                "lines_are_written_as_soon_as_they_are_complete",
                "idle_waits_for_flushes",
                "scales_are_written_in_turn_with_lines",
                "every_write_slot_is_handed_out",
                "dirty_lines_grow_old_under_other_traffic",
                "mixture_of_every_format",
                "nothing_is_silently_wrong_while_memory_errs",
                "an_error_in_each_slot",
                "errors_on_two_hot_lines",
                "mixture_on_two_hot_lines",
                "many_pages_in_the_rough",
                "one_flipped_bit_of_a_word_changes_nothing",
                "flipped_bits_of_each_code_word_are_told",
                "every_slot_is_reused_behind_slow_memory",
                "cancelled_flushes_lose_nothing",
                "flush_is_done_under_reads_of_stored_lines",
                "refused_writes_give_their_slots_back",
                "dirty_lines_reach_memory_when_nothing_else_is_to_do",
                "line_read_with_an_error_is_poison",
                "latency",
                "rate",
                "page_sequential_reads_share_dram_lines",
                "page_sequential_writes_are_combined",
                "as_many_reads_outstanding_as_line_slots",
            )
        ),
    ),
    Bench(
        "datapath.front", {"datapath/front": ("DataFront",)}, ("tests/hw/datapath/test_front.py",)
    ),
    _source("datapath/error_reports", "ErrorReports"),
    _source("coherence/completions", "Completions", also=("front",)),
    _source("coherence/host_port", "CoherentHostPort"),
    _source("coherence/lost_lines", "LostLines"),
    _source("coherence/ask_share", "AskShare", sector_bits=8),
    _source("eviction/page_recall", "PageRecall"),
    _source("coherence/request_window", "RequestWindow", also=("front",), sizes=sizes_of),
    _source("coherence/grants", "Grants", also=("front",), sizes=sizes_of),
    _source("coherence/snoop_engine", "SnoopEngine", also=("front",), sizes=sizes_of),
    _source("coherence/directory", "Directory", also=("front",), sizes=sizes_of),
    _source("coherence/front", "CoherentFront"),
    _source("choice/choice", "Choice", depth=8, mass_bits=16, id_bits=8),
    _source(
        "choice/key_score",
        "KeyScore",
        id_bits=2,
        variants=(
            {"heads": 1, "lines": 1},
            {"heads": 2, "lines": 2, "banks": 2, "products": 8},
            {"heads": 1, "lines": 3, "products": 16},
        ),
    ),
    _source("choice/mass_share", "MassShare", heads=2, depth=8, id_bits=8),
    _source("choice/page_marks", "PageMarks"),
    _source("choice/page_mass", "PageMass", heads=2, id_bits=8),
    _source("choice/select_engine", "SelectEngine"),
    _source(
        "choice/summary_build",
        "SummaryBuild",
        lines=4,
        rows=4,
        id_bits=8,
        variants=tuple({"elements": n} for n in (4, 8, 16, 32)),
    ),
    _source("choice/summary_score", "SummaryScore"),
    _source("choice/code_weights", "CodeWeights", also=("summary_score",)),
    _source("choice/top_k", "TopK", depth=8, score=8, id_bits=8),
    _source("choice/unscored", "Unscored", heads=2),
    _source("select/gather_window", "GatherWindow"),
    _source("select/page_reader", "PageReader"),
    _source("select/select", "Select", also=("control_tables",)),
    _source("select/select_control", "SelectControl", also=("select_wait", "control_tables")),
    _source("select/select_window", "SelectWindow"),
    _source("select/summary_store", "SummaryStore"),
    _source("select/summary_rows", "SummaryRows"),
    _source("select/summary_memory", "SummaryMemory"),
    _source("flit/credits", "CreditSender", "CreditReceiver"),
    _source("flit/packer", "FlitPacker"),
    _source("flit/unpacker", "FlitUnpacker", also=("flips",)),
    _source("flit/front", "FlitFront", also=("flips",)),
    _source("lib/byte_memory", "ByteMemory"),
    _source("cxlio/chmu", "Chmu"),
    _source("cxlio/command_engine", "CommandEngine"),
    _source("lib/constant_memory", "ConstantMemory", content=range(7), protect=True),
    _source("media/channel_order", "ChannelOrder", depth=4),
    _source("media/decoded_channel", "DecodedChannel"),
    _source("cxlio/doe", "Doe"),
    _source("media/event_records", "EventRecords"),
    _source("cxlio/hdm_decode", "HdmDecode"),
    _source("cxlio/hdm_decoders", "HdmDecoders"),
    _source("media/health_report", "HealthReport"),
    _source("media/load_meter", "LoadMeter", depth=16, most=64),
    _source("cxlio/mailbox", "Mailbox"),
    _source("media/media_eraser", "MediaEraser", axi=axi_signature),
    _source("media/media_port", "MediaPort"),
    _source("media/monitor_events", "MonitorEvents"),
    _source("cxlio/msix", "Msix", vectors=3),
    _source("cxlio/pmu", "Pmu"),
    _source("media/poisoned_lines", "PoisonedLines"),
    _source("media/ras_errors", "RasErrors"),
    _source("cxlio/ras_log", "RasLog"),
    _source("cxlio/register_bank", "RegisterBank", also=("pmu",)),
    _source("cxlio/register_port", "RegisterPort"),
    _source("cxlio/sequencer", "Sequencer", program=[0] * 9, protect=True),
    _source("media/sanitizer", "Sanitizer"),
    _source("media/snoop_address", "SnoopAddress"),
    Bench("cxlio", {"cxlio/cxl_io": ("CxlIo",)}, ("tests/hw/cxlio/test_cxl_io.py",)),
    Bench("cxl_device", {"cxl_device": ("CxlDevice",)}, ("tests/hw/test_cxl_device.py",)),
    Bench("data_fifo", {"endpoint": ("DataFifo",)}, ("tests/hw/test_data_fifo.py",), "source"),
    Bench(
        "endpoint",
        {"endpoint": ("Endpoint",)},
        # All on the driver's design: random traffic on cocotb has another one, without the mutants.
        (
            "tests/hw/test_lockstep_traffic.py",
            "tests/hw/test_endpoint_wires.py",
            "tests/hw/test_lockstep.py",
            "tests/hw/test_clauses.py",
            "tests/hw/test_storms.py::test_storm",
        ),
    ),
)

#: Blocks without state and arithmetic of their own, and why.
NO_STATE = {
    "LineBuffer": "what LineSlots and ScaleSlots are made of: its mutants are theirs",
    "Sram": "a macro, or a memory of Amaranth's",
    "WideMemory": "memories side by side, or a macro",
    "NoSlots": "what stands in for slots where no stored format has scales: constants",
    "RawQuantiser": "wires, where no stored format but raw16 is built",
    "RawDequantiser": "wires, where no stored format but raw16 is built",
}
