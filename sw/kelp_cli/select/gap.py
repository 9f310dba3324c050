# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp select TRACE… --gap``: what policies close of the gap between LRU and Belady."""

from ..output import anyway, show, write_json
from .worth import Asked, documents_of, progress, residencies_of

__all__ = ["gap"]


def gap(asked: Asked, quota: int, most: int, json) -> None:
    """What of the gap between LRU and Belady is closed: shown, or written."""
    from kelp_sim.select import gap as study
    from kelp_sim.select.decode import Device
    from kelp_sim.select.worth import HOST

    residencies = residencies_of(asked.residency)
    loaded, documents = documents_of(asked, residencies)
    device = Device(quota=quota, most=most, compute=HOST)
    with progress() as heard:
        found = study.rows(
            loaded, documents, residencies, device=device, warm=asked.warm, progress=heard
        )
    over = study.summary(found)
    what = (
        f"model {asked.model}; {len(documents)} documents; at most {most} pages, quota {quota} of "
        + f"a guess, 100 µs of compute a layer, {asked.warm} warm-up steps"
    )

    def tell() -> None:
        if str(json) != "-":
            _show(over)

    with anyway(tell):
        if json is not None:
            write_json(json, "select-gap", {"what": what, "rows": found, "summary": over})


def _show(rows: list[dict]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title="A host that waits for what the ideal reader chooses",
        title_justify="left",
        title_style="bold",
        caption="gap: 0 is LRU, 1 Belady, each over one pool; flash: pages read over LRU's; least, "
        + "most: of one document",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,  # eight columns in a terminal of eighty
    )
    for heading in ("policy", "is told", "here", "missed", "gap", "least", "flash", "most"):
        left = heading in ("policy", "is told")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:

        def number(key, form, row=row):
            return "–" if row[key] is None else f"{row[key]:{form}}"

        table.add_row(
            row["policy"],
            row["told"],
            f"{row['residency']:.1%}",
            f"{row['misses'] / row['reads']:.2%}",
            number("gap", "+.2f"),
            number("least_gap", "+.2f"),
            number("flash_over_lru", ".2f"),
            number("most_flash_over_lru", ".2f"),
        )
    show(table)
