# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp select``: what a choice of pages near memory finds, and what it costs a model."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .output import UserError, progress_bar, show, writable, write_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(select)


_MOST = 1 << 16  #: pages that are named or chosen, and tokens of a page
#: Options that speak of recordings, or of their absence, alone.
_OF_TRACE = (
    *("residency", "wait_above", "policy", "guess", "told", "warm"),
    *("lists", "page", "rtl", "config"),
)
_OF_NO_TRACE = ("texts", "page_tokens")
_NOT_OF_RTL = ("policy", "told", "lists", "page")
#: With `--rtl`, with little resident alone.
_OF_LITTLE = ("wait_above", "guess")


def select(
    context: typer.Context,
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TRACE…]",
            help="Recordings of this model, or texts: what the choice is worth at residencies.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path,
        typer.Option(
            help="A Llama-shaped model: a folder with config.json, model.safetensors and "
            + "tokenizer.json, or a .gguf file."
        ),
    ] = Path("data/model"),
    texts: Annotated[
        int,
        typer.Option(min=1, help="Texts; of a .gguf file those that are held back (docs/lab.md)."),
    ] = 4,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=64,
            help="Tokens of each; 2048 when left out, of TRACE a recording's all and a text's "
            + "first 2048.",
            show_default=False,
        ),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            min=32,
            help="Tokens before it attend to everything; 1792 when left out, of a recording its "
            + "prefill, of a text a quarter.",
            show_default=False,
        ),
    ] = None,
    quotas: Annotated[
        str,
        typer.Option(
            help="Pages that each query head names, with commas between; of TRACE the first; with "
            + "--rtl the configuration's when left out."
        ),
    ] = "16,32",
    most: Annotated[
        int,
        typer.Option(
            min=0, max=_MOST, help="Pages chosen at most, beside the first and the newest."
        ),
    ] = 16,
    page_tokens: Annotated[
        int, typer.Option(min=1, max=_MOST, help="Tokens of a page; of TRACE always 16.")
    ] = 16,
    residency: Annotated[
        str, typer.Option(help="Of TRACE: shares of the pages that are resident.")
    ] = "0.125,0.25,0.5",
    wait_above: Annotated[
        float,
        typer.Option(
            help="Of TRACE: a layer waits while more of its mass is missing, 0 to 1; 1: never."
        ),
    ] = 1.0,
    policy: Annotated[
        str, typer.Option(help="Of TRACE: what the device keeps: table (policy 2) or lru.")
    ] = "table",
    guess: Annotated[
        bool, typer.Option("--guess/--no-guess", help="Of TRACE: the next layer's query is sent.")
    ] = True,
    told: Annotated[
        bool,
        typer.Option(
            "--told",
            help="Of TRACE: the device knows the masses of absent pages as if their keys were "
            + "here, which no device does: what its estimates cost.",
        ),
    ] = False,
    warm: Annotated[
        int, typer.Option(min=0, help="Of TRACE: steps at the beginning that do not count.")
    ] = 64,
    json: Annotated[
        Path | None,
        typer.Option("--json", help="Also write every row to this file (- is stdout)."),
    ] = None,
    lists: Annotated[
        Path | None,
        typer.Option(help="Of TRACE: write the pages that each reader chose to this .npz."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Of TRACE: write a page and its plots into this folder."),
    ] = None,
    rtl: Annotated[
        bool,
        typer.Option(
            "--rtl",
            help="Of TRACE: the choices on the RTL, everything resident: its answers against the "
            + "golden model's, its cycles against the timing model's; with --residency decoded by "
            + "what the RTL chooses with so little, beside the model with a clock.",
        ),
    ] = False,
    config: Annotated[str, typer.Option(help="With --rtl: the configuration.")] = "trace_select",
) -> None:
    """Mass found, recall and perplexity of the device's choice, everything resident, against an
    ideal reader's: the best pages by exact scores until 90 % of the mass. With TRACE: token time,
    who waits and perplexity with little resident, against hosts that choose themselves. With --rtl:
    whether the device chooses so, and in as many cycles.

    The choice is the golden model's, bit for bit; the model runs in NumPy. docs/select.md
    defines it.
    """
    from kelp_sim.quality import llama
    from kelp_sim.quality.tokens import TokenizerError
    from kelp_sim.select import readers, study

    chosen = _quotas(quotas)
    for name in _OF_NO_TRACE if traces else _OF_TRACE:
        if context.get_parameter_source(name).name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} goes {'without' if traces else 'with'} TRACE")
    for name in _NOT_OF_RTL if rtl else ("config",):
        if context.get_parameter_source(name).name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} goes {'without' if rtl else 'with'} --rtl")
    little = context.get_parameter_source("residency").name != "DEFAULT"
    for name in _OF_LITTLE if rtl and not little else ():
        if context.get_parameter_source(name).name != "DEFAULT":
            raise UserError(f"--{name.replace('_', '-')} with --rtl goes with --residency")
    if not 0 <= wait_above <= 1:
        raise UserError(f"--wait-above {wait_above} is refused; legal: 0 to 1")
    writable(lists, json=json, folder=page)
    if traces:
        from .select_worth import Asked, worth

        asked = Asked(
            model, traces, tokens, first, None if rtl and not little else residency,
            wait_above, policy, guess, told, warm,
        )  # fmt: skip
        quota = chosen[0]
        if rtl and context.get_parameter_source("quotas").name == "DEFAULT":
            quota = None
        worth(asked, quota, most, json, lists, page, config if rtl else None)
        return
    tokens, first = tokens or 2048, 1792 if first is None else first
    if not first < tokens - 1:
        raise UserError(
            f"--first {first} of {tokens} tokens leaves none to judge by; legal: to {tokens - 2}"
        )
    try:
        loaded, documents = study.documents(model, texts, tokens)
    except (llama.ModelError, TokenizerError, ValueError) as error:
        raise UserError(str(error)) from None
    ideal = readers.Ideal(most=most, page_tokens=page_tokens)
    each = [
        ideal,
        *(readers.Device(quota=quota, most=most, page_tokens=page_tokens) for quota in chosen),
    ]
    rows = []
    with progress_bar() as bar:
        task = bar.add_task("", total=len(documents) * len(each))
        for name, ids in documents:
            for reader in each:
                bar.update(task, description=f"{name}: {getattr(reader, 'quota', 'ideal')}")
                rows.append(study.measure(loaded, name, ids, reader, ideal, first=first))
                bar.update(task, advance=1)
    found = study.loss(rows)
    if json is not None:
        write_json(json, "select", {"rows": [asdict(row) for row in rows], "quotas": found})
        if str(json) == "-":
            return
    _show(found, len(documents), tokens - 1 - first)


def _quotas(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
        if not all(1 <= quota <= _MOST for quota in found):
            raise ValueError
    except ValueError:
        raise UserError(
            f"--quotas {text!r} is not whole numbers from 1 to {_MOST} with commas between, such "
            + "as 16,32"
        ) from None
    return found


def _show(found: dict, documents: int, steps: int) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"The device's choice over {documents} texts, {steps} steps of each",
        title_justify="left",
        title_style="bold",
        caption="scored: pages, and their tokens, with exact scores; mass: of the ideal reader's; "
        + "as many: with as many pages as it takes; loss: perplexity against it; worst: of a text",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for heading in (
        *("quota", "scored", "tokens", "pages (ideal)", "recall"),
        *("mass", "as many", "loss", "worst"),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for quota, row in found.items():
        table.add_row(
            str(quota),
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
