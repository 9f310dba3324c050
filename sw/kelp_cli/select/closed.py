# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp select TRACE… --rtl --residency R``: a text decoded by what the RTL chooses with little
memory, beside the model with a clock (docs/select_study.md, "In a closed loop")."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kelp_rtl.device import DriverError
from kelp_rtl.replay.decoding import RtlDevice, RtlHost
from kelp_sim.select.decode import Device, Run, decode
from kelp_sim.select.worth import HOSTS
from kelp_spec.config import Config

from ..output import UserError, anyway, progress_bar, show, write_json

__all__ = ["closed"]


def closed(
    model,
    documents: Sequence,
    residencies: Sequence[float],
    *,
    device: Device,
    config: Config,
    warm: int,
    json,
) -> None:
    """Measure, show, and write what was asked for; exit status 1 where a gathered line is wrong."""
    config = config.with_(select_estimates=True, select_tables=True)
    rows = []
    with progress_bar() as bar:
        for name, ids, first in documents:
            for residency in residencies:
                for compute in HOSTS:
                    what = f"{name}: {residency:.1%}, {compute // 1000} µs"
                    task = bar.add_task(what, total=len(ids) - 1 - first)
                    little = replace(device, residency=residency, compute=compute)
                    rtl = RtlDevice(device=little, config=config)
                    whole = replace(device, residency=1.0, compute=0, wait_above=1.0)
                    try:
                        runs = decode(
                            model, ids, first, [whole, little, rtl],
                            progress=lambda n, task=task: bar.update(task, completed=n),
                        )  # fmt: skip
                    except (ValueError, DriverError) as error:
                        raise UserError(f"{name}: {error}") from None
                    rtl.host.driver.close()
                    rows.append(_row(name, residency, compute, runs, rtl.host, warm))
    with anyway(lambda: None if str(json) == "-" else _show(rows)):
        if json is not None:
            write_json(json, "select-closed", {"config": config.name, "rows": rows})
    if wrong := sum(row["wrong"] for row in rows):
        raise UserError(f"{wrong} gathered lines are not what was written")


def _row(name: str, residency: float, compute: int, runs: list[Run], host: RtlHost, warm: int):
    whole, model, rtl = runs
    part = slice(warm, None)
    row = {"document": name, "residency": residency, "compute": compute}
    for what, run in (("model", model), ("rtl", rtl)):
        loss = run.nats[part] - whole.nats[part]
        layers = run.waits.shape[1]
        row[what] = {
            "residency_loss": float(np.expm1(loss.mean())),
            "standard_error": float(loss.std() / np.sqrt(len(loss))),
            "layers_wait": float(run.waits[part].mean()),
            "tokens_wait": float(run.waits[part].any(axis=1).mean()),
            "flash_per_layer": float(run.reads[part].mean() / layers),
            "layer_cycles": float(run.cycles[part].mean() / layers),
            "pages": float(run.chosen[part].sum(axis=-1).mean()),
        }
    same = (model.chosen[part] == rtl.chosen[part]).all(axis=-1).mean()
    return row | {"steps": len(whole.nats[part]), "same": float(same), "wrong": host.wrong,
                  "late": host.late}  # fmt: skip


def _show(rows: list[dict]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title="Decoded by what the RTL chose, beside the model with a clock",
        title_justify="left",
        title_style="bold",
        caption="here: resident; loss: of perplexity, against everything resident by the model, "
        + "and its standard error over steps; layers, tokens: that wait; flash: reads a layer; "
        + "cycles: of a layer, beside the host's compute; pages: chosen; late: chosen and gone "
        + "before they were read; wrong: lines gathered that are not what was written",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    for heading in ("document", "by"):
        table.add_column(heading, no_wrap=True)
    for heading in (
        *("here", "µs", "loss", "±", "layers", "tokens", "flash", "cycles"),
        *("pages", "late", "wrong"),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        for what in ("model", "rtl"):
            one = row[what]
            table.add_row(
                row["document"],
                what,
                f"{row['residency']:.1%}",
                f"{row['compute'] // 1000}",
                f"{one['residency_loss']:+.2%}",
                f"{one['standard_error']:.2%}",
                f"{one['layers_wait']:.1%}",
                f"{one['tokens_wait']:.0%}",
                f"{one['flash_per_layer']:.3f}",
                f"{one['layer_cycles'] - row['compute']:.0f}",
                f"{one['pages']:.2f}",
                *((str(row["late"]), str(row["wrong"])) if what == "rtl" else ("", "")),
            )
    show(table)
