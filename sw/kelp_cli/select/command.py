# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp select``: what a choice of pages near memory finds, and what it costs a model."""

from pathlib import Path
from typing import Annotated

import typer

from ..config import CONFIGURATION
from ..output import UserError, drawable, writable

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(select)


_MOST = 1 << 16  #: pages that are named or chosen, and tokens of a page
#: Options that speak of recordings, or of their absence, alone.
_OF_TRACE = (
    *("residency", "wait_above", "policy", "fetch_from", "guess", "told", "warm"),
    *("lists", "rtl", "config", "gap"),
)
_OF_NO_TRACE = ("texts", "page_tokens", "code_bits")
_NOT_OF_RTL = ("policy", "fetch_from", "told", "lists", "page", "gap")
#: A host that waits for what it reads is asked nothing else.
_NOT_OF_GAP = (*("wait_above", "policy", "fetch_from", "guess", "told"), *("lists", "page"))
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
        str,
        typer.Option(
            help="Tokens of a page, with commas between: --quotas and --most are of the first, and "
            + "of the others as many tokens are named and chosen; of TRACE always 16."
        ),
    ] = "16",
    code_bits: Annotated[
        str,
        typer.Option(
            help="Bits of a code that are used, of 32 for each 32 elements of a key, with commas "
            + "between; of TRACE always 32."
        ),
    ] = "32",
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
        str,
        typer.Option(
            help="Of TRACE: what the device keeps by: table (policy 2), kelp (policy 1) or lru."
        ),
    ] = "table",
    fetch_from: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Of TRACE: share of the mass from which on a page that is wanted is fetched; "
            + "under lru each is.",
        ),
    ] = 1 / 64,
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
        typer.Option(help="Write a page and its plots into this folder."),
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
    config: Annotated[str, typer.Option(help=f"With --rtl. {CONFIGURATION}")] = "trace_select",
    gap: Annotated[
        bool,
        typer.Option(
            "--gap",
            help="Of TRACE: of the gap between LRU and Belady, what policy 2 and policy kelp close "
            + "where a host waits for all that the ideal reader chooses.",
        ),
    ] = False,
) -> None:
    """Mass found, recall and perplexity of the device's choice, everything resident, against an
    ideal reader's: the best pages by exact scores until 90 % of the mass. With TRACE: token time,
    who waits and perplexity with little resident, against hosts that choose themselves. With --rtl:
    whether the device chooses so, and in as many cycles.

    The choice is the golden model's, bit for bit; the model runs in NumPy. docs/select.md
    defines it, docs/select_study.md has what was measured.
    """
    chosen = _numbers("quotas", quotas)
    for name in _OF_NO_TRACE if traces else _OF_TRACE:
        if context.get_parameter_source(name).name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} goes {'without' if traces else 'with'} TRACE")
    for name in _NOT_OF_RTL if rtl else ("config",):
        if context.get_parameter_source(name).name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} goes {'without' if rtl else 'with'} --rtl")
    for name in _NOT_OF_GAP if gap else ():
        if context.get_parameter_source(name).name != "DEFAULT":
            raise UserError(f"--{name.replace('_', '-')} goes without --gap")
    little = context.get_parameter_source("residency").name != "DEFAULT"
    for name in _OF_LITTLE if rtl and not little else ():
        if context.get_parameter_source(name).name != "DEFAULT":
            raise UserError(f"--{name.replace('_', '-')} with --rtl goes with --residency")
    if not 0 <= wait_above <= 1:
        raise UserError(f"--wait-above {wait_above} is refused; legal: 0 to 1")
    writable(lists, json=json, folder=page, inputs=[model, *(traces or ())])
    drawable(page)
    if traces:
        from . import gap as gaps
        from . import worth

        asked = worth.Asked(
            model, traces, tokens, first, None if rtl and not little else residency,
            wait_above, policy, fetch_from, guess, told, warm,
        )  # fmt: skip
        quota = chosen[0]
        if gap:
            gaps.gap(asked, quota, most, json)
            return
        if rtl and context.get_parameter_source("quotas").name == "DEFAULT":
            quota = None
        worth.worth(asked, quota, most, json, lists, page, config if rtl else None)
        return
    from .study import Asked, study

    asked = Asked(
        model, texts, tokens or 2048, 1792 if first is None else first, chosen, most,
        _numbers("page-tokens", page_tokens), _numbers("code-bits", code_bits, 32),
    )  # fmt: skip
    study(asked, json, page)


def _numbers(option: str, text: str, most: int = _MOST) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
        if not all(1 <= number <= most for number in found) or len(set(found)) < len(found):
            raise ValueError
    except ValueError:
        raise UserError(
            f"--{option} {text!r} is not whole numbers from 1 to {most}, each once, with commas "
            + "between, such as 16,32"
        ) from None
    return found
