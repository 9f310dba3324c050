# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp select TRACE…``: what a choice near memory is worth with little memory."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kelp_spec.files import whole_file, write_whole

from ..output import UserError, anyway, console, progress_bar, show, write_json

__all__ = ["Asked", "documents_of", "progress", "residencies_of", "worth"]


@dataclass(frozen=True)
class Asked:
    """What the command line says; None: not said."""

    model: Path
    traces: list[Path]
    tokens: int | None
    first: int | None
    residency: str | None  #: None: of RTL, everything
    wait_above: float
    policy: str
    fetch_from: float
    guess: bool
    told: bool
    warm: int


def _on_rtl(model, documents, residencies, asked: Asked, config, quota, most, json) -> None:
    """On the RTL of `config`, everything resident where no residency is given."""
    from kelp_sim.select.decode import Device

    from .closed import closed
    from .rtl import choosing, rtl

    sizes = choosing(config, quota)
    if not residencies:
        rtl(model, documents, sizes, most, asked.warm, json)
        return
    device = Device(
        quota=sizes.select_quota, most=most, wait_above=asked.wait_above, guess=asked.guess
    )
    closed(model, documents, residencies, device=device, config=sizes, warm=asked.warm, json=json)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """A bar, and who hears what runs and the share that is done."""
    with progress_bar() as bar:
        task = bar.add_task("", total=1000)
        yield lambda what, share: bar.update(task, description=what, completed=int(1000 * share))


def documents_of(asked: Asked, residencies: list[float]):
    """The model and its documents."""
    from kelp_sim.lab.recorder import RecorderError
    from kelp_sim.quality.llama import ModelError
    from kelp_sim.quality.tokens import TokenizerError
    from kelp_sim.select import worth as study
    from kelp_sim.trace.trace import TraceError

    for path in asked.traces:
        if not path.is_file():
            fault = "is no file" if path.exists() else "no such file"
            raise UserError(f"{path}: {fault}; a recording (.npz) or a text is expected")
    try:
        loaded, documents = study.given(
            asked.model, asked.traces, asked.tokens or 0, -1 if asked.first is None else asked.first
        )
        if residencies:
            study.enough(loaded, documents, residencies)
    except (ModelError, TokenizerError, TraceError, RecorderError, ValueError) as error:
        raise UserError(str(error)) from None
    shortest = min(len(ids) - 1 - first for _, ids, first in documents)
    if asked.warm >= shortest:
        raise UserError(
            f"--warm {asked.warm} of {shortest} steps leaves none to judge by; legal: 0 to "
            + f"{shortest - 1}"
        )
    return loaded, documents


def worth(
    asked: Asked,
    quota: int | None,
    most: int,
    json,
    lists,
    page,
    config: str | None,
) -> None:
    """Measure, and show or write what was asked for; with a `config` on its RTL, whose `quota` it
    is where none is given."""
    from kelp_sim.select import worth as study
    from kelp_sim.select.decode import ONE, POLICIES, Device

    residencies = [] if asked.residency is None else residencies_of(asked.residency)
    if asked.policy not in POLICIES:
        raise UserError(f"--policy {asked.policy!r} is unknown; legal: {', '.join(POLICIES)}")
    loaded, documents = documents_of(asked, residencies)
    if config is not None:
        _on_rtl(loaded, documents, residencies, asked, config, quota, most, json)
        return
    device = Device(
        quota=quota,
        most=most,
        wait_above=asked.wait_above,
        told=asked.told,
        policy=asked.policy,
        fetch_from=round(asked.fetch_from * ONE),
        guess=asked.guess,
    )
    with progress() as heard:
        found = study.worth(
            loaded, documents, residencies, device=device, warm=asked.warm, progress=heard
        )
    over, over_100us = study.summary(found.rows), study.summary(found.rows_100us)
    what = (
        f"model {asked.model}; {len(documents)} documents; quota {quota}, at most {most} pages, "
        + f"wait above {asked.wait_above:g}, policy {asked.policy}, "
        + f"{'with' if asked.guess else 'without'} the guessed query, {asked.warm} warm-up steps"
    )

    def tell() -> None:
        if str(json) != "-":
            _show(over, "no host compute")
            _show(over_100us, "100 µs of compute a layer")

    with anyway(tell):
        if lists is not None:
            _lists(lists, found.lists)
        if page is not None:
            from kelp_sim.select import worth_page

            pictures = worth_page.plots(found)
            for name, image in pictures.items():
                write_whole(page / name, image)
            write_whole(page / "select.html", worth_page.page(found, pictures, what))
        if json is not None:
            write_json(
                json,
                "select-worth",
                {
                    "what": what,
                    "rows": found.rows,
                    "rows_100us": found.rows_100us,
                    "summary": over,
                    "summary_100us": over_100us,
                    "cycles": found.cycles,
                    "missing": found.missing,
                },
            )
    if page is not None and str(json) != "-":
        console.print(f"{page / 'select.html'} written", soft_wrap=True)


def residencies_of(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
        if not all(0 < share <= 1 for share in found):
            raise ValueError
    except ValueError:
        raise UserError(
            f"--residency {text!r} is not shares above 0 and at most 1 with commas between, such "
            + "as 0.125,0.25"
        ) from None
    return found


def _lists(path: Path, lists: dict) -> None:
    import numpy as np

    with whole_file(path) as file:
        np.savez_compressed(file, **lists)


def _show(rows: list[dict], what: str) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"A choice near memory with little memory, {what}",
        title_justify="left",
        title_style="bold",
        caption="here: resident; 0, 100 µs: token time without compute and with so much a layer, "
        + "over plain reads of the ideal reader's pages with everything resident; layers, tokens: "
        + "that wait; choice: its loss of perplexity; loss, worst: what little memory adds, of all "
        + "documents and of one; flash: reads over pooled LRU's of the ideal's pages; link: bytes "
        + "over the pages'",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,  # eleven columns in a terminal of eighty
    )
    for heading in (
        *("reader", "here", "0", "100 µs", "layers", "tokens"),
        *("choice", "loss", "worst", "flash", "link"),
    ):
        left = heading == "reader"
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["reader"],
            f"{row['residency']:.1%}",
            f"{row['token_time_0']:.2f}",
            f"{row['token_time_100us']:.3f}",
            f"{row['layers_wait']:.0%}",
            f"{row['tokens_wait']:.0%}",
            f"{row['choice_loss']:+.1%}",
            f"{row['residency_loss']:+.1%}",
            f"{row['worst_residency_loss']:+.1%}",
            "–" if row["flash_over_lru"] is None else f"{row['flash_over_lru']:.2f}",
            f"{row['link_over_chosen']:.2f}",
        )
    show(table)
