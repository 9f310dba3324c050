# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What ``kelp bench`` does about the bars of the specification, §10 and §11."""

from rich.text import Text

from ..output import console

__all__ = ["NOT_MEASURED", "meet_bars"]

#: (row, unit, bar) of what `kelp bench` does not measure, since it takes hours, a model that this
#: repository does not have, or a replay that there is not. Whoever makes it replaces the row.
NOT_MEASURED = (
    ("token_time.25.waiting_layers.real_model", "fraction", "≤ 0.03"),
    ("select.residency_loss.real_model", "fraction of the perplexity", "≤ 0.005"),
    ("policy.query_ahead.gap_closed.0.125", "fraction", "≥ 0.7"),
    ("policy.query_ahead.gap_closed.0.25", "fraction", "≥ 0.45"),
    ("policy.real_model.query_ahead.gap_closed.0.125", "fraction", "≥ 0.6"),
    ("policy.real_model.query_ahead.gap_closed.0.25", "fraction", "≥ 0.2"),
)


def meet_bars(rows) -> bool:
    """Whether every row in cycles and every ratio meets its bar; names each that does not. A rate
    of wall time is only warned of, since it is of the machine as much as of the program."""
    missed = [row for row in rows if row.met is False]
    for row in missed:
        what = f"{row.name} = {row.value:.4g} {row.unit}, bar {row.goal}"
        if row.wall_clock:
            what += " (wall clock; measure on a quiet machine)"
            console.print(Text.assemble(("warning", "yellow"), f": {what}"))
        else:
            console.print(Text.assemble(("missed", "bold red"), f": {what}"))
    return all(row.wall_clock for row in missed)
