# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp trace``: check, import and replay traces of blocks; check recordings."""

from pathlib import Path
from typing import Annotated

import typer

from kelp_spec.files import read_text

from .install import missing_package
from .output import UserError, console, progress_bar, show, writable

__all__ = ["register"]


trace = typer.Typer(
    help="Check recordings; import, check and replay block traces.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    app.add_typer(trace, name="trace")


@trace.command()
def check(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Recordings and block traces, .npz.", metavar="FILE…", show_default=False
        ),
    ],
) -> None:
    """Check recordings (kelp-attention-1) and block traces (kelp-blocks-1) against their
    formats; exit 1 at the first fault."""
    from kelp_sim.trace.accesses import access_sequence
    from kelp_sim.trace.trace import TraceError, read

    for path in files:
        try:
            if _is_blocks(path):
                found = _read_blocks(path)
                requests = int(found.request[-1]) + 1
                console.print(
                    f"{path}: {len(found.block):,} references to {found.blocks:,} blocks, "
                    + f"{requests:,} requests",
                    soft_wrap=True,
                )
            else:
                recording = read(path)
                console.print(
                    f"{path}: {recording.queues} queues, {recording.pages} pages, "
                    + f"{len(access_sequence(recording)):,} accesses",
                    soft_wrap=True,
                )
        except TraceError as error:
            raise UserError(str(error)) from None


@trace.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="mooncake, lmcache (lookup JSONL) or oracle (libCacheSim oracleGeneral).",
            show_default=False,
        ),
    ],
    file: Annotated[
        Path, typer.Argument(help="The trace as that tool wrote it.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("-o", help="The block trace to write, .npz.", show_default=False)
    ],
) -> None:
    """Turn another tool's trace into a block trace (kelp-blocks-1, docs/lab.md)."""
    from kelp_sim.lab.blocks import IMPORTERS
    from kelp_sim.trace.trace import TraceError

    if source not in IMPORTERS:
        raise UserError(f"source {source!r} is refused; legal: {', '.join(IMPORTERS)}")
    if output.suffix != ".npz":
        raise UserError(f"-o {output}: the file must end in .npz")
    writable(output, inputs=[file])
    try:
        found = IMPORTERS[source](file)
    except TraceError as error:
        raise UserError(str(error)) from None
    found.write(output)
    console.print(
        f"{output}: {len(found.block):,} references to {found.blocks:,} blocks", soft_wrap=True
    )


@trace.command()
def record(
    model: Annotated[
        str,
        typer.Argument(
            help="A causal model that transformers reads: a .gguf file, a folder or a name.",
            show_default=False,
        ),
    ],
    text: Annotated[Path, typer.Option(help="The text to decode.", show_default=False)],
    output: Annotated[
        Path, typer.Option("-o", help="The recording to write, .npz.", show_default=False)
    ],
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the text, prefill included.")
    ] = 2048,
    prefill: Annotated[
        int, typer.Option(min=1, help="Tokens before the first step; whole pages.")
    ] = 512,
    page_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a page.")] = 16,
    top_p: Annotated[
        float, typer.Option(help="Read rule: pages until this share of the mass.")
    ] = 0.9,
    max_pages: Annotated[
        int, typer.Option(help="Read rule: at most so many, and the page being written.")
    ] = 16,
    mass_floor: Annotated[
        float, typer.Option(help="Pages not read are written without a mass below this share.")
    ] = 0.0,
    lines: Annotated[bool, typer.Option("--lines", help="Keys, values and queries too.")] = False,
    qkv: Annotated[
        str | None,
        typer.Option(
            help="Queries, keys and values of these layers into a file beside it, as 0,5,10-12."
        ),
    ] = None,
) -> None:
    """Record a model's attention on a text (kelp-attention-1). Needs torch and transformers:
    .venv.hf, make test-engines ENGINES=hf."""
    from kelp_sim.lab.models import load
    from kelp_sim.lab.recorder import ReadRule, RecorderError, qkv_path
    from kelp_sim.lab.recorder import record as run

    if output.suffix != ".npz":
        raise UserError(f"-o {output}: the file must end in .npz")
    writable(output, inputs=[text])
    if lines and qkv is not None:
        raise UserError("--lines writes those of every layer; leave out --qkv, or --lines")
    chosen = _layer_list(qkv) if qkv is not None else []
    try:
        rule = ReadRule(top_p, max_pages, mass_floor)
        said = read_text(text)
        loaded, tokenizer = load(model)
    except ModuleNotFoundError as error:
        raise UserError(missing_package(error, "kelp trace record")) from None
    except RecorderError as error:
        raise UserError(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{text} cannot be read: {error}") from None
    ids = tokenizer(said, verbose=False)["input_ids"][:tokens]
    with progress_bar() as bar:
        task = bar.add_task(f"recording {text.name}", total=len(ids))
        try:
            run(
                loaded,
                ids,
                output,
                prefill=prefill,
                page_tokens=page_tokens,
                rule=rule,
                lines=chosen or lines,
                progress=lambda done, _: bar.update(task, completed=done),
            )
        except RecorderError as error:
            raise UserError(str(error)) from None
    fewer = f"; the text ends at token {len(ids)} of {tokens}" if len(ids) < tokens else ""
    console.print(
        f"{output}: {len(ids) - prefill} steps recorded on {loaded.device.type}{fewer}",
        soft_wrap=True,
    )
    if chosen:
        console.print(f"{qkv_path(output)}: q, k, v of {len(chosen)} layers", soft_wrap=True)
    elif qkv_path(output).exists():
        console.print(
            f"{qkv_path(output)} is of an earlier recording, and was left", soft_wrap=True
        )


_LAYERS = 1 << 16  #: no model has so many


def _layer_list(text: str) -> list[int]:
    """0,5,10-12 as numbers, each once."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if (
            not first.isdecimal()
            or dash
            and not last.isdecimal()
            or not int(first) <= int(last or first) < _LAYERS
        ):
            raise UserError(
                f"--qkv {text!r} is refused; legal: layers below {_LAYERS} as 0,5,10-12"
            )
        found += range(int(first), int(last or first) + 1)
    return sorted(set(found))


@trace.command()
def blocks(
    file: Annotated[Path, typer.Argument(help="A block trace.", show_default=False)],
    frames: Annotated[
        str, typer.Option(help="Cache sizes in blocks; comma between.")
    ] = "1000,10000,30000,50000",
    policy: Annotated[
        str, typer.Option(help="Policies that need no queues; comma between.")
    ] = "lru,s3fifo,belady",
) -> None:
    """Hit rates of a block trace in a cache that starts empty."""
    from rich.table import Table

    from kelp_sim.lab.policies import load
    from kelp_sim.lab.stream import run_keys
    from kelp_sim.trace.trace import TraceError

    try:
        sizes = [int(size) for size in frames.split(",")]
        if min(sizes) < 10:
            raise ValueError
    except ValueError:
        raise UserError(
            f"--frames {frames!r} is not whole numbers of at least 10 with commas between"
        ) from None
    try:
        found, makes = _read_blocks(file), {name: load(name) for name in policy.split(",")}
    except (TraceError, ValueError) as error:
        raise UserError(str(error)) from None
    table = Table("policy", *(f"{size:,} blocks" for size in sizes))
    for name, make in makes.items():
        if name not in _STREAM:
            raise UserError(
                f"policy {name!r} needs queues and steps, which a block trace has not; "
                + f"legal here: {', '.join(_STREAM)}"
            )
        table.add_row(
            name, *(f"{1 - run_keys(found.block, make, size).mean():.1%}" for size in sizes)
        )
    table.add_row("infinite", f"{1 - found.blocks / len(found.block):.1%}")
    show(table)


_STREAM = ("lru", "fifo", "clock", "lfu", "arc", "s3fifo", "sieve", "wtinylfu", "belady")


def _is_blocks(path: Path) -> bool:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return "block.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _read_blocks(path: Path):
    from kelp_sim.lab.blocks import read_blocks

    return read_blocks(path)
