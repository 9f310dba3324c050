# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Rows of ``kelp bench`` for the choice near memory: the clock of token times against the RTL, and
what the choice is worth, both on a recording's text decoded by the small model."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["select_rows"]

_RESIDENCY = 0.25
#: of the text that is decoded with little resident, and of the part that the RTL decodes too
_TOKENS, _HELD_TOKENS = 1536, 777
_WARM = 64


def select_rows(
    *, tokens: int = _TOKENS, held: int = _HELD_TOKENS, config: str | None = None
) -> Iterator:
    """The RTL's part first."""
    from kelp_sim.select import worth as study
    from kelp_sim.select.decode import Device, decode
    from kelp_spec.config import named
    from kelp_verif.measure.rows import Row
    from kelp_verif.select.hits import hits_beside_choice

    from ..output import progress_bar
    from ..select.rtl import BAR, CONFIG, hold

    path = Path("data/traces/attn_3.npz")
    name = config or CONFIG
    model, [(document, ids, first)] = study.given(Path("data/model"), [path], tokens, -1)
    device = Device(quota=named(name).select_quota, most=16)
    with progress_bar() as bar:
        [run] = decode(model, ids[:held], first, [device], keep=True)
        task = bar.add_task("choices on the RTL", total=held - 1 - first)
        found = hold(
            document, run, first, config=named(name), warm=_WARM,
            progress=lambda n: bar.update(task, completed=n),
        )  # fmt: skip
        task = bar.add_task("", total=1000)
        results = study.worth(
            model,
            [(document, ids, first)],
            [_RESIDENCY],
            device=device,
            warm=_WARM,
            progress=lambda what, share: bar.update(
                task, description=what, completed=int(1000 * share)
            ),
        )
    beside = hits_beside_choice(named(name))
    cycles = int(found.found.cycles.sum())

    def of_rtl(row, value, unit, goal=""):
        return Row(f"select.{row}", value, unit, goal, name, cycles)

    yield of_rtl("wrong_lines", found.found.wrong, "lines", "≤ 0")
    yield of_rtl("timing_error", abs(found.error), "fraction", f"≤ {BAR:g}")
    yield of_rtl("timing_error.worst_step", found.worst, "fraction")
    row = found.row()
    yield of_rtl("cycles", row["select_cycles"], "cycles")
    yield of_rtl("layer_cycles", row["layer_cycles"], "cycles")
    yield of_rtl("gathered_lines_per_cycle", found.rate(0), "lines/cycle")
    yield Row(
        "select.hit_lines_per_cycle", beside.rate, "lines/cycle", "≥ 0.9", name, beside.cycles
    )
    yield Row("gather.lines_per_cycle", found.rate(-1), "lines/cycle", "≥ 0.98", name, cycles)
    rows = {one["reader"]: one for one in study.summary(results.rows)}
    mine = rows["kelp"]
    at = f"token_time.{100 * _RESIDENCY:g}"
    for title, value, unit, goal in (
        (f"{at}.without_host_compute", mine["token_time_0"], "ratio", "≤ 2"),
        (f"{at}.100us_a_layer", mine["token_time_100us"], "ratio", "≤ 1.03"),
        (f"{at}.waiting_layers", mine["layers_wait"], "fraction", "≤ 0.01"),
        ("select.residency_loss", mine["residency_loss"], "fraction of the perplexity", "≤ 0.002"),
        ("select.choice_loss", mine["choice_loss"], "fraction of the perplexity", "≤ 0.005"),
    ):
        yield Row(title, value, unit, goal, f"{_RESIDENCY:g}")
