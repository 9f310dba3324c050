# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp quality``: what a stored format costs on real keys and values."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kelp_spec.files import write_whole

from .output import UserError, anyway, drawable, progress_bar, show, writable, write_json

__all__ = ["register"]

_MODEL, _RECORDING = Path("data/model"), Path("data/traces/attn_0.npz")


def register(app: typer.Typer) -> None:
    app.command()(quality)


def quality(
    recordings: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RECORDING…]",
            help=f"With k, v and q; of the small model {_RECORDING} when left out.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path,
        typer.Option(
            help="A Llama-shaped model: a folder with config.json, model.safetensors and "
            + "tokenizer.json, or a .gguf file."
        ),
    ] = _MODEL,
    formats: Annotated[
        str | None,
        typer.Option(
            help="Formats, or K/V apart as int8/int4; comma between. When left out, those that "
            + "docs/quality.md has.",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[int, typer.Option(min=0, help="Texts for perplexity; 0 leaves it out.")] = 12,
    tokens: Annotated[int, typer.Option(min=32, help="Tokens of each.")] = 2048,
    tune: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="So many of the texts choose formats for each layer and head; the others "
            + "judge. 0: none, as for a .gguf file when left out; else 4.",
            show_default=False,
        ),
    ] = None,
    budgets: Annotated[
        str, typer.Option(help="Losses of perplexity that plans may cost, as fractions.")
    ] = "0.005,0.01",
    every: Annotated[
        int, typer.Option(min=1, help="Attention error at each n-th decode step.")
    ] = 16,
    store: Annotated[
        Path,
        typer.Option(help="Finished measurements; a run that was killed goes on from there."),
    ] = Path("build/quality/rows.jsonl"),
    json: Annotated[
        Path | None,
        typer.Option("--json", help="Also write everything to this file (- is stdout)."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Also draw the plots into this file.")
    ] = None,
) -> None:
    """Signal to noise, attention error and perplexity of stored formats, and formats for each
    layer and head.

    The device's formats go through the golden codec, bit for bit; the model runs in NumPy.
    docs/quality.md has the findings.
    """
    from kelp_sim.quality import llama, study
    from kelp_sim.quality.tokens import TokenizerError
    from kelp_sim.store import entries
    from kelp_sim.trace.trace import TraceError

    real = model.suffix == ".gguf"
    if tune is None:
        tune = 0 if real else 4
    if recordings is None:
        recordings = [_RECORDING] if model == _MODEL else []
    if not recordings and not texts:
        raise UserError(
            f"--texts 0 and no recording leave nothing to measure of {model}; legal: a text or "
            + "more, or recordings with k, v and q"
        )
    if tune and texts and not tune < texts:
        raise UserError(f"--tune {tune} of {texts} texts leaves none to judge by; legal: fewer")
    names = study.FORMATS if formats is None else tuple(formats.split(","))
    perplexity = Perplexity(
        model=model,
        texts=texts,
        tokens=tokens,
        tune=tune,
        budgets=_losses(budgets),
        store=store,
    )
    try:
        # Before minutes of work, what may be refused.
        writable(png, store if texts else None, json=json, inputs=[model, *recordings])
        drawable(png)
        subject = perplexity.load() if texts else None
        entries(store if texts else None)
        with progress_bar() as bar:
            heads = _noise(names, recordings, every, bar)
            done, channels = perplexity.measure(subject, names, bar) if subject else (None, [])
    except (TraceError, llama.ModelError, TokenizerError, ValueError) as error:
        raise UserError(str(error)) from None

    def tell() -> None:
        if str(json) != "-":
            _show(heads, done)
            if channels:
                _show_channels(channels)

    with anyway(tell):
        if png is not None:
            from kelp_sim.quality.plots import png as drawn

            write_whole(png, drawn(heads, done))
        if json is not None:
            report = {"noise": heads} | (
                done.as_json() | {"channels": channels, "bars": study.bars(done)} if done else {}
            )
            write_json(json, "quality", report)


def _losses(budgets: str) -> list[float]:
    try:
        allowed = [float(text) for text in budgets.split(",")]
        if not all(0 < loss < math.inf for loss in allowed):
            raise ValueError
    except ValueError:
        raise UserError(
            f"--budgets {budgets!r} is not positive numbers with commas between, such as "
            + "0.005,0.01"
        ) from None
    return allowed


def _noise(names, recordings, every: int, bar) -> list[dict]:
    """Signal to noise and attention error of every format on every recording."""
    from kelp_sim.quality import noise, plans
    from kelp_sim.trace.trace import distinct, read

    distinct(recordings)
    for name in names:
        plans.uniform(name, 1, 1)  # refuses what is no format
    traces = [read(path) for path in recordings]
    task = bar.add_task("noise", total=len(traces) * len(names))
    return [
        row
        for trace in traces
        for row in noise.measure(
            trace, names, every=every, progress=lambda name: bar.update(task, advance=1)
        )
    ]


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """A model's perplexity on some texts under each format, `tune` of which choose formats for each
    layer and head within each of the `budgets`. What is measured is kept in `store`."""

    model: Path
    texts: int
    tokens: int
    tune: int
    budgets: list[float]
    store: Path

    def load(self):
        """(the model, its texts)."""
        from kelp_sim.quality import llama, real, tokens

        if self.model.suffix == ".gguf":
            loaded, tokenizer = real.load(self.model)
            texts = real.excerpts(tokenizer, self.texts, self.tokens)
        else:
            loaded = llama.load(self.model)
            tokenizer = tokens.Tokenizer(self.model / "tokenizer.json")
            known = loaded.config["vocab_size"]
            if tokenizer.highest >= known:
                raise UserError(
                    f"{self.model}: the ids of tokenizer.json go to {tokenizer.highest}, and "
                    + f"model.safetensors has {known} tokens: they are of two models"
                )
            texts = tokens.texts(tokenizer, self.texts, self.tokens)
        limit = loaded.config.get("max_position_embeddings", self.tokens)
        if self.tokens > limit:
            raise UserError(
                f"--tokens {self.tokens} is refused; the positions of {self.model} end at {limit}"
            )
        return loaded, texts

    def measure(self, subject, names, bar):
        """(the study, rows of outlying channels on its first text) of what `load` gave."""
        from kelp_sim.quality import channels, study

        loaded, chosen = subject
        total = study.count(len(names), len(chosen), self.tune, len(self.budgets), loaded)
        task = bar.add_task("perplexity", total=total)

        def heard(text, plan, stored):
            description = f"{plan}: {text}" + (" (stored)" if stored else "")
            bar.update(task, advance=1, description=description)

        done = study.run(
            loaded,
            chosen,
            names,
            tune=self.tune,
            budgets=self.budgets,
            store=self.store,
            progress=heard,
        )
        singles = list(dict.fromkeys(half for name in names for half in name.split("/")))
        return done, channels.measure(loaded, chosen[0][1], singles)


def _table(title: str, *headings: str, caption: str = ""):
    from rich import box
    from rich.table import Table

    shown = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for i, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if i else "left", no_wrap=True)
    return shown


def _show(heads: list[dict], done) -> None:
    names = list(dict.fromkeys(row["format"] for row in heads))
    if names:
        _show_noise(names, heads)
    if done is not None:
        _show_perplexity(done)


def _show_channels(rows: list[dict]) -> None:
    """Outlying channels, and the noise of single formats: over layers and heads."""
    of = {kv: [row for row in rows if row["kv"] == kv] for kv in "KV"}
    worst = max(of["K"], key=lambda row: row["peak"])
    table = _table(
        "Noise on the first text: mean (worst) over layers and heads",
        "format",
        "keys dB",
        "values dB",
        caption="The largest channel over the median one: "
        + ", ".join(
            f"{name} {sum(r['peak'] for r in of[kv]) / len(of[kv]):.1f} on average, "
            + f"{max(r['peak'] for r in of[kv]):.1f} at most"
            for kv, name in (("K", "keys"), ("V", "values"))
        )
        + f" (keys: layer {worst['layer']}, head {worst['head']}, channel {worst['channel']})",
    )
    for name in rows[0]["snr_db"]:
        table.add_row(name, *(_decibels([r["snr_db"][name] for r in of[kv]]) for kv in "KV"))
    show(table)


def _decibels(values: list[float]) -> str:
    exact = min(values) > 900
    return "exact" if exact else f"{sum(values) / len(values):.1f} ({min(values):.1f})"


def _show_noise(names: list[str], heads: list[dict]) -> None:
    table = _table(
        "Noise over layers and heads: mean (worst)",
        "format",
        "keys dB",
        "values dB",
        "attention error",
    )
    for name in names:
        rows = [row for row in heads if row["format"] == name]
        snr = [_decibels([r[key] for r in rows]) for key in ("k_snr_db", "v_snr_db")]
        errors = [r["attention_error"] for r in rows]
        table.add_row(name, *snr, f"{sum(errors) / len(errors):.2e} ({max(errors):.2e})")
    show(table)


def _show_perplexity(done) -> None:
    table = _table(
        f"Perplexity of {len(done.documents)} texts, {done.perplexity:.2f} in raw16",
        "format K/V",
        "bits",
        "increase",
        "95 %",
        "nats/token",
    )
    for row in done.formats:
        table.add_row(row["label"], f"{row['bits']:.2f}", *_figures(row))
    show(table)
    if done.units:
        table = _table(
            f"One key or value head in int4 ({len(done.tuned_on)} texts): perplexity",
            "layer",
            *(f"{kv} {head}" for kv in "KV" for head in sorted({u["head"] for u in done.units})),
        )
        for layer in sorted({u["layer"] for u in done.units}):
            mine = sorted(
                (u for u in done.units if u["layer"] == layer), key=lambda u: (u["kv"], u["head"])
            )
            table.add_row(str(layer), *(f"{u['increase']:+.3%}" for u in mine))
        show(table)
    if done.plans:
        legend = "\n".join(
            [
                "K V of each layer from the first, a digit a head:",
                *(f"{p['label']}: {_digits(p['names'])}" for p in done.plans),
            ]
        )
        title = f"Plans of int8 and int4, judged on the other {done.plans[0]['documents']} texts"
        table = _table(
            title, "plan", "bits", "foreseen", "increase", "95 %", "nats/token", caption=legend
        )
        for row in done.plans:
            table.add_row(
                row["label"], f"{row['bits']:.2f}", f"{row['foreseen']:+.3%}", *_figures(row)
            )
        show(table)


def _digits(names) -> str:
    """(("int8", "int4"), ("int4", "int4")), … → "84 44 …"."""
    return " ".join("".join(name[3] for name in half) for layer in names for half in layer)


def _figures(row: dict) -> tuple[str, str, str]:
    return (
        f"{row['increase']:+.3%}",
        f"{row['low']:+.3%} … {row['high']:+.3%}",
        f"{row['nats']:+.6f}",
    )
