# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""In which order a device in lock-step evicts and prefetches, where one request asks for several of
either. The sequences are the RTL's."""

from kelp_golden.lockstep import LockStep
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.setup import LayerFormats, Setup
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.hints import HintKind, HintLine, pack
from kelp_spec.metadata import Op, PageState, PrefetchSource

UNIT = named("unit")
SOURCES = (PrefetchSource.HINT, PrefetchSource.PREVIOUS)


class Device:
    """A golden device of four layers, of one queue each, of which the first is stored in `first`.
    `ops` has the PREFETCHes and STEPs so far."""

    def __init__(self, *, first=Format.INT8, limits=UNIT.frames, high_water=1):
        formats = ((0, first), (1023, Format.INT8))
        setup = Setup(
            config=UNIT,
            layers=4,
            kv_heads=1,
            used_lines=UNIT.half_lines,
            used_pages=UNIT.pages,
            formats=tuple(LayerFormats(last_layer=at, k=f, v=f) for at, f in formats),
            limits=limits,
            budgets=(0,) * 4,
            low_water=0,
            high_water=high_water,
        )
        self.endpoint = setup.endpoint()
        self.endpoint.tracker.reserve = 0
        self.ops, self.sequence = [], 0
        self.engine = LockStep(
            self.endpoint, evict_target=max(1, high_water), enable=SOURCES, log=self._log
        )
        self.engine.open(0, setup.descriptor)

    def _log(self, result):
        op = result.op
        if op.kind == Op.STEP:
            self.ops.append("step")
        elif op.kind == Op.PREFETCH:
            self.ops.append((op.squeue, op.page))

    def write(self, queue, page):
        op = TrackerOp(Op.WRITE, 0, queue, page, 0, 1, origin=(bytes(64), -1))
        self.engine.request(op)

    def hint(self, kind, queue, *pages, advance=False):
        line = HintLine(
            kind=kind, queue=queue, sequence=self.sequence, entries=pages, advance=advance
        )
        self.sequence += 1
        self.engine.hint(pack(line, UNIT))

    def cold(self, queue):
        words = ((page, self.endpoint.tracker.word(queue, page)) for page in range(UNIT.pages))
        return [page for page, word in words if word.state == PageState.COLD]


def test_a_pool_with_nothing_to_give_keeps_no_other_one_waiting():
    device = Device(first=Format.RAW16, limits=(3, 5, 5, 5), high_water=2)
    device.write(0, 0)
    device.hint(HintKind.PIN, 0, 0, 1)
    device.write(0, 1)  # evicted: a page that is absent cannot be pinned
    device.hint(HintKind.PIN, 0, 1)
    device.write(0, 1)
    for page in range(5):
        device.write(1, page)
    pools = device.endpoint.tracker.pools
    assert (pools[0].free, pools[2].free) == (1, 2)  # of the first, all that is used is pinned
    device.hint(HintKind.PREFETCH, 1, *device.cold(1))
    assert len(device.ops) == 2 and pools[2].free == 2


def test_pages_that_a_hint_names_come_before_those_of_the_previous_step():
    device = Device()
    for page in range(UNIT.pages):
        device.write(page % 2, page)
    for page in range(UNIT.pages):
        device.write(2, page)
    accessed = [(page % 2, page) for page in range(8)] + [(2, page) for page in range(8)]
    asked = device.cold(1)[:2]
    device.hint(HintKind.PREFETCH, 1, *asked, advance=True)
    assert device.ops == ["step", *((1, page) for page in asked), *accessed]
