# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp fpga selftest`` and ``replay``: the commands that speak to a board on a cable."""

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from kelp_spec.config import Config

from ..output import UserError, progress_bar, writable
from ..replay.choices import FORMATS, parse_formats
from . import replay as fpga_replay
from .selftest import selftest as run_selftest
from .shared import Json, finish

__all__ = ["Cable", "Portion", "connected", "planned", "replay", "selftest"]

_Port = Annotated[
    str, typer.Option(help="The board's serial port, such as /dev/ttyUSB0.", show_default=False)
]
_Baud = Annotated[int, typer.Option(help="Bits per second, as the bitstream was built for.")]
_Timeout = Annotated[
    float,
    typer.Option(help="Seconds of silence before something counts as lost; more for a simulation."),
]
_Patience = Annotated[float, typer.Option(help="Seconds of silence before the board is given up.")]


@dataclass(frozen=True, kw_only=True)
class Cable:
    """A board's serial port, how fast it is, and the silences, in seconds, after which a frame
    counts as lost and the board is given up."""

    port: str
    baud: int
    timeout: float
    patience: float


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The part of a recording that a board replays: whole steps of so many lines, behind so many
    pages of its prefill, with frames for a share of the pages."""

    trace: Path
    lines: int
    prefill_pages: int
    residency: float
    formats: tuple[str, ...] = FORMATS
    lockstep: bool = False


def selftest(
    port: _Port,
    baud: _Baud = 3_000_000,
    timeout: _Timeout = 0.25,
    patience: _Patience = 10.0,
    first: Annotated[int, typer.Option(help="First line (64 bytes) of memory to test.")] = 0,
    lines: Annotated[
        int | None,
        typer.Option(help="Lines to test; all of the memory by default.", show_default=False),
    ] = None,
    json: Json = None,
) -> None:
    """Run the board's self-test (memory, endpoint, codecs, ECC) and show its result; exit 1
    when anything fails. The endpoint is reset by it."""
    writable(json=json)
    cable = Cable(port=port, baud=baud, timeout=timeout, patience=patience)
    with connected(cable) as host:
        result = run_selftest(host, first, lines)
    finish(result, json, "fpga-selftest")


def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            help="A recording with keys and values, such as data/traces/attn_0.npz.",
            show_default=False,
        ),
    ],
    port: _Port,
    baud: _Baud = 3_000_000,
    timeout: _Timeout = 0.25,
    patience: _Patience = 10.0,
    lines: Annotated[
        int, typer.Option(help="Replay whole steps that ask for so many lines.")
    ] = 1024,
    prefill_pages: Annotated[
        int,
        typer.Option(help="Pages of the prefill to keep, the newest: boards have short queues."),
    ] = 2,
    residency: Annotated[
        float, typer.Option(help="Frames, as a share of the pages at the end.")
    ] = 0.5,
    formats: Annotated[
        list[str] | None, typer.Option(help="Stored formats, as of kelp replay.")
    ] = None,
    lockstep: Annotated[
        bool,
        typer.Option(
            "--lockstep/--free-running",
            help="One request at a time; the counters must be equal too.",
        ),
    ] = False,
    json: Json = None,
) -> None:
    """Replay a recording on the board and compare every line that it answers with the golden
    model; exit 1 on a mismatch."""
    writable(json=json)
    cable = Cable(port=port, baud=baud, timeout=timeout, patience=patience)
    portion = Portion(
        trace=trace,
        lines=lines,
        prefill_pages=prefill_pages,
        residency=residency,
        formats=tuple(formats or FORMATS),
        lockstep=lockstep,
    )
    with connected(cable) as host:
        result = _replay(host, portion)
    finish(result, json, "fpga-replay")


@contextlib.contextmanager
def connected(cable: Cable):
    """The board's host, with what goes wrong as one line."""
    from kelp_fpga.link.host import BoardError, Host
    from kelp_fpga.link.host_link import LinkError
    from kelp_fpga.link.serial_port import PortError, SerialPort

    host = None
    try:
        host = Host(
            SerialPort(cable.port, cable.baud), timeout=cable.timeout, patience=cable.patience
        )
        yield host
    except (BoardError, LinkError, PortError) as error:
        raise UserError(str(error)) from None
    except ValueError as error:
        if host is None:
            raise UserError(str(error)) from None
        raise
    finally:
        if host is not None:
            host.close()


def planned(config: Config, portion: Portion):
    """The plan of a portion's replay on a board of `config`; :class:`UserError` where there can be
    none."""
    from kelp_fpga.configs import FIRST_LIGHT
    from kelp_sim.replay.plan import Excerpt, plan
    from kelp_sim.trace import trace as traces

    if config.name == FIRST_LIGHT:
        raise UserError(
            "this bitstream is for first light and has no endpoint: kelp fpga build --board … "
            + "makes one that has"
        )
    try:
        recording = fpga_replay.crop(traces.read(portion.trace), portion.prefill_pages)
        return plan(
            recording,
            config,
            formats=parse_formats(portion.formats),
            residency=portion.residency,
            excerpt=Excerpt(accesses=max(portion.lines // recording.half_lines, 1)),
        )
    except ValueError as error:
        raise UserError(str(error)) from None


def _replay(host, portion: Portion) -> dict:
    chosen = planned(host.config, portion)
    with progress_bar() as bar:
        task = bar.add_task("board: lines", total=None)
        done = fpga_replay.replay(
            host,
            chosen,
            lines=portion.lines,
            lockstep=portion.lockstep,
            progress=lambda n, total: bar.update(task, completed=n, total=total),
        )
    result = asdict(done) | {
        "passed": done.passed,
        "config": host.config.name,
        "lockstep": portion.lockstep,
        "frames_bad": host.link.bad,
        "frames_resent": host.link.resent,
        "polls": host.link.polls,
    }
    result["counters"] = {name: value for name, value in done.counters.items() if value}
    for name in ("misses", "write_backs"):
        result["counters"].setdefault(name, 0)
    return result
