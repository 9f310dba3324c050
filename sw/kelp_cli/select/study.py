# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp select`` without TRACE: what a choice finds and costs, everything resident."""

from dataclasses import asdict, dataclass
from pathlib import Path

from ..output import UserError, anyway, console, progress_bar, show, write_json, write_whole

__all__ = ["Asked", "study"]


@dataclass(frozen=True)
class Asked:
    """What the options say."""

    model: Path
    texts: int
    tokens: int
    first: int
    quotas: list[int]
    most: int
    page_tokens: list[int]
    code_bits: list[int]

    @property
    def what(self) -> str:
        sizes, bits, quotas = (
            ", ".join(map(str, each)) for each in (self.page_tokens, self.code_bits, self.quotas)
        )
        return (
            f"model {self.model}; {self.texts} texts, tokens {self.first} to {self.tokens}; pages "
            + f"of {sizes} tokens, {bits} bits a line of a key, quotas {quotas} and at most "
            + f"{self.most} pages of the first size"
        )


def study(asked: Asked, json: Path | None, page: Path | None) -> None:
    """Measures, writes and shows it. UserError where it cannot be begun."""
    from kelp_sim.quality import llama
    from kelp_sim.quality.tokens import TokenizerError
    from kelp_sim.select import study

    if not asked.first < asked.tokens - 1:
        raise UserError(
            f"--first {asked.first} of {asked.tokens} tokens leaves none to judge by; legal: to "
            + f"{asked.tokens - 2}"
        )
    try:
        loaded, documents = study.documents(asked.model, asked.texts, asked.tokens)
    except (llama.ModelError, TokenizerError, ValueError) as error:
        raise UserError(str(error)) from None
    readers = study.readers_of(asked.page_tokens, asked.code_bits, asked.quotas, asked.most)
    rows = []
    with progress_bar() as bar:
        task = bar.add_task("", total=len(documents) * sum(1 + len(own) for _, own in readers))
        for name, ids in documents:
            for ideal, devices in readers:
                for reader in (ideal, *devices):
                    bar.update(task, description=f"{name}: {getattr(reader, 'quota', 'ideal')}")
                    rows.append(study.measure(loaded, name, ids, reader, ideal, first=asked.first))
                    bar.update(task, advance=1)
    curve = study.curve(rows)

    def tell() -> None:
        if str(json) != "-":
            _show(curve, len(documents), asked.tokens - 1 - asked.first)

    with anyway(tell):
        if page is not None:
            from kelp_sim.select import study_page

            pictures = study_page.plots(curve)
            for name, image in pictures.items():
                write_whole(page / name, image)
            write_whole(page / "select.html", study_page.page(curve, pictures, asked.what))
        if json is not None:
            found = {"what": asked.what, "rows": [asdict(row) for row in rows], "curve": curve}
            write_json(json, "select", found | {"quotas": _first(curve)})
    if page is not None and str(json) != "-":
        console.print(f"{page / 'select.html'} written", soft_wrap=True)


def _first(curve: list[dict]) -> dict[int, dict]:
    """By quota, of the first page size and code bits."""
    of = [(entry["page_tokens"], entry["code_bits"]) for entry in curve]
    return {e["quota"]: e for e, own in zip(curve, of, strict=True) if own == of[0]}


def _show(curve: list[dict], documents: int, steps: int) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"The device's choice over {documents} texts, {steps} steps of each",
        title_justify="left",
        title_style="bold",
        caption="bytes: of a summary, a dimension and page; scored: pages, and their tokens, with "
        + "exact scores; mass: of the ideal reader's; as many: with as many pages as it takes; "
        + "loss: perplexity against it; worst: of a text",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    varies = any(len({entry[key] for entry in curve}) > 1 for key in ("page_tokens", "code_bits"))
    for heading in (
        *(("page", "bytes") if varies else ()),
        *("quota", "scored", "tokens", "pages (ideal)", "recall"),
        *("mass", "as many", "loss", "worst"),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in curve:
        table.add_row(
            *((str(row["page_tokens"]), f"{row['bytes']:.2f}") if varies else ()),
            str(row["quota"]),
            f"{row['candidates']:.1f}",
            f"{row['looks']:.0f}",
            f"{row['pages']:.1f} ({row['ideal_pages']:.1f})",
            f"{row['recall']:.3f}",
            f"{row['mass']:.3f}",
            f"{row['mass_at_as_many']:.3f}",
            f"{row['loss']:+.2%}",
            f"{row['worst']:+.2%}",
        )
    show(table)
