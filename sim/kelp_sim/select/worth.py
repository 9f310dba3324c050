# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a choice near memory is worth with little memory: readers on documents, at residencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kelp_spec.files import read_text

from ..quality import llama, real
from ..quality.llama import Llama
from ..quality.tokens import Tokenizer
from ..trace.trace import distinct, read_tokens
from ..trace.trace import read as read_trace
from . import rivals
from .decode import Device, Run, decode, frames_of
from .readers import Ideal
from .timing import RTL, Shape, Timing

__all__ = ["HOST", "KEYS", "Found", "enough", "given", "summary", "worth"]

#: What a row has, in this order. Others recompute from them, so names stay.
KEYS = (
    *("reader", "document", "residency", "token_time_0", "token_time_100us", "layers_wait"),
    *("tokens_wait", "nll", "nll_ideal", "nll_all_resident", "flash_per_layer"),
    *("lru_flash_per_layer", "link_bytes_per_token", "chosen_bytes_per_token"),
)
HOST = 100_000  #: cycles of a host that computes, a layer
HOSTS = (0, HOST)
_PAGE = 16  #: tokens
#: of bins of missing mass
_EDGES = (0, 1e-9, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)

Document = tuple[str, np.ndarray, int]  #: name, ids, the first token that is decoded


@dataclass
class Found:
    """Rows of documents; what they are of."""

    rows: list[dict] = field(default_factory=list)
    #: the same, all figures of the run with HOST cycles of compute a layer
    rows_100us: list[dict] = field(default_factory=list)
    #: cycles of a token, beside the ratios
    cycles: list[dict] = field(default_factory=list)
    #: estimated against true missing mass, binned
    missing: list[dict] = field(default_factory=list)
    #: reader|document|residency, of the run with HOST cycles of compute with |100us behind it →
    #: chosen pages, packed bits [steps, layers, kv_heads, pages / 8]
    lists: dict[str, np.ndarray] = field(default_factory=dict)


def given(
    path: Path, paths: Sequence[Path], tokens: int, first: int
) -> tuple[Llama, list[Document]]:
    """A model, and documents for it: recordings, from their first step on, and texts, from
    ``first`` on (-1: a quarter); the first ``tokens`` of each (0: all of a recording, 2048 at most
    of a text). ValueError where one has fewer, or too few."""
    if path.suffix == ".gguf":
        model, tokenizer = real.load(path)
    else:
        model, tokenizer = llama.load(path), Tokenizer(path / "tokenizer.json")
    found: list[Document] = []
    distinct(paths)
    for one in paths:
        if one.suffix == ".npz":
            trace = read_trace(one)
            ids = read_tokens(trace)
            if ids.max() >= model.config["vocab_size"] or trace.layers != model.layers:
                raise ValueError(
                    f"{one} is of {trace.layers} layers and token {ids.max()}: not of {path}, "
                    + f"which has {model.layers} and {model.config['vocab_size']} tokens"
                )
            start = trace.prefill_tokens if first < 0 else first
            most = len(ids)
        else:
            try:
                text = read_text(one)
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"{one} is no text: {error}") from None
            ids, most = np.array(tokenizer.encode(text), np.int64), 2048
            quarter = max(min(tokens or most, len(ids)) // 4 // _PAGE, 1) * _PAGE
            start = quarter if first < 0 else first
        if len(ids) < 2 * _PAGE:
            raise ValueError(
                f"{one} has {len(ids)} tokens; legal: two pages, {2 * _PAGE} tokens, or more"
            )
        if tokens > len(ids):
            raise ValueError(
                f"{one} has {len(ids)} tokens, and --tokens {tokens} is refused; legal: "
                + f"{len(ids)} at most, or none given"
            )
        ids = ids[: tokens or most]
        if not 0 < start < len(ids) - 1:
            raise ValueError(
                f"{one} has {len(ids)} tokens: decoding from token {start} on leaves none to "
                + f"judge by; legal: --first 1 to {len(ids) - 2}"
            )
        found.append((one.stem, ids, start))
    return model, found


def worth(
    model: Llama,
    documents: Sequence[Document],
    residencies: Sequence[float],
    *,
    device: Device,
    warm: int = 0,
    timing: Timing = RTL,
    progress: Callable[[str, float], None] | None = None,
) -> Found:
    """``device`` says what the host asks for; the first ``warm`` steps of a document count
    nowhere. ``progress`` hears what runs and the share that is done. Raises ValueError, before
    any work, where a residency leaves too few frames."""
    enough(model, documents, residencies)
    study = _Study(model, residencies, device, slice(warm, None), timing)
    for n, (name, ids, first) in enumerate(documents):

        def tell(what: str, share: float, name=name, n=n) -> None:
            if progress is not None:
                progress(f"{name}: {what}", (n + share) / len(documents))

        study.document(name, ids, first, tell)
    return study.found


def enough(model: Llama, documents: Sequence[Document], residencies: Sequence[float]) -> None:
    """ValueError where there is no frame for the first and the newest page of every queue, which
    every choice takes."""
    queues = model.layers * model.kv_heads
    for name, ids, _ in documents:
        pages = -(-len(ids) // _PAGE)
        for residency in residencies:
            frames = frames_of(residency, pages * queues)
            if frames < 2 * queues:
                raise ValueError(
                    f"{name}: residency {residency:g} of {pages} pages in {queues} queues is "
                    + f"{frames} frames; legal: {2 * queues} or more, for the first and the "
                    + "newest page of each"
                )


class _Study:
    def __init__(self, model, residencies, device, counted: slice, timing: Timing):
        self.model, self.residencies, self.device = model, residencies, device
        self.counted, self.timing, self.found = counted, timing, Found()
        self.shape = Shape(
            kv_heads=model.kv_heads,
            group=model.config["num_attention_heads"] // model.kv_heads,
            lines=-(-model.head_dim // 32),
        )

    def document(self, name: str, ids: np.ndarray, first: int, tell) -> None:
        ideal = Ideal(target=self.device.target, most=self.device.most)
        readings = []
        for n, reader in enumerate(rivals.NAMES):
            tell(reader, 0.25 * n / len(rivals.NAMES))
            readings.append(rivals.read(self.model, ids, first, reader, ideal))
        devices = [replace(self.device, residency=1.0, compute=0)]
        devices += [
            replace(self.device, residency=r, compute=c) for r in self.residencies for c in HOSTS
        ]
        steps = len(ids) - 1 - first
        runs = decode(
            self.model,
            ids,
            first,
            devices,
            progress=lambda n: tell("kelp", 0.25 + 0.75 * n / steps),
        )
        best = readings[0]
        free = np.zeros(best.late.shape, int)
        base = {
            compute: rivals.time(best, first, free, self.shape, self.timing, compute)[0]
            for compute in HOSTS
        }
        common = name, base, float(best.nats[self.counted].mean())
        lru = {r: rivals.misses(best, first, r, self.shape) for r in self.residencies}
        lru = {r: self._each_layer(missed.sum(axis=(1, 2))) for r, missed in lru.items()}
        for reading in readings:
            self._plain(reading, first, common, lru)
        self._near(runs, common, lru)
        tell("done", 1.0)

    def _each_layer(self, steps: np.ndarray) -> float:
        return float(steps[self.counted].mean() / self.model.layers)

    def _times(self, cycles: dict, base: dict) -> list[float]:
        part = self.counted
        return [cycles[c][part].sum() / base[c][part].sum() for c in HOSTS]

    def _plain(self, reading, first, common, lru) -> None:
        """Rows of a host that reads plain lines."""
        (name, base, nll_ideal), found, part = common, self.found, self.counted
        nll = float(reading.nats[part].mean())
        pages = 64 * rivals.lines(reading, first, self.shape)[part].sum(axis=1).mean()
        over = reading.summaries * self.shape.kv_heads * (reading.newest[part] + 1).mean()
        link = pages + 64 * self.model.layers * (over + self.timing.written(self.shape))
        for r in self.residencies:
            missed = rivals.misses(reading, first, r, self.shape)
            both = {
                c: rivals.time(reading, first, missed, self.shape, self.timing, c) for c in HOSTS
            }
            cycles = {c: both[c][0] for c in HOSTS}
            flash = self._each_layer(missed.sum(axis=(1, 2)))
            for compute, rows in zip(HOSTS, (found.rows, found.rows_100us), strict=True):
                waits = both[compute][1][part]
                wait = waits.mean(), waits.any(axis=1).mean()
                values = nll, nll_ideal, nll, flash, lru[r], link, pages
                rows.append(_row(reading.name, name, r, *self._times(cycles, base), *wait, *values))
            self._cycles(reading.name, name, r, cycles, base)
        found.lists[f"{reading.name}|{name}|1.0"] = np.packbits(reading.chosen, axis=-1)

    def _near(self, runs: list[Run], common, lru) -> None:
        """Rows of the device: runs with everything resident, then two for each residency."""
        (name, base, nll_ideal), found, part = common, self.found, self.counted
        whole = float(runs[0].nats[part].mean())
        reader = "told" if self.device.told else "kelp"
        found.lists[f"{reader}|{name}|1.0"] = np.packbits(runs[0].chosen, axis=-1)
        for n, r in enumerate(self.residencies):
            pair = dict(zip(HOSTS, runs[1 + 2 * n :], strict=False))
            cycles = {compute: run.cycles for compute, run in pair.items()}
            for compute, rows in zip(HOSTS, (found.rows, found.rows_100us), strict=True):
                run = pair[compute]
                waits = run.waits[part]
                wait = waits.mean(), waits.any(axis=1).mean()
                values = run.nats[part].mean(), nll_ideal, whole, self._each_layer(run.reads)
                link = run.link[part].mean(), run.useful[part].mean()
                rows.append(
                    _row(reader, name, r, *self._times(cycles, base), *wait, *values, lru[r], *link)
                )
                self._reliability(name, r, compute, run)
            self._cycles(reader, name, r, cycles, base)
            for compute, suffix in zip(HOSTS, ("", "|100us"), strict=True):
                chosen = np.packbits(pair[compute].chosen, axis=-1)
                found.lists[f"{reader}|{name}|{r}{suffix}"] = chosen

    def _cycles(self, reader, name, residency, cycles, base) -> None:
        row = {"reader": reader, "document": name, "residency": residency}
        for compute, label in zip(HOSTS, ("0", "100us"), strict=True):
            row[f"cycles_{label}"] = float(cycles[compute][self.counted].mean())
            row[f"ideal_cycles_{label}"] = float(base[compute][self.counted].mean())
        self.found.cycles.append(row)

    def _reliability(self, name, residency, compute, run: Run) -> None:
        """Estimated missing mass in bins, and what was missing indeed."""
        each = run.missing[self.counted].reshape(-1, 4)[:, :2] / (65536 * self.shape.group)
        at = np.digitize(each[:, 0], _EDGES) - 1
        for place, edge in enumerate(_EDGES):
            mine = each[at == place]
            if len(mine):
                self.found.missing.append(
                    {
                        "document": name,
                        "residency": residency,
                        "compute": compute,
                        "from": edge,
                        "count": len(mine),
                        "estimated": float(mine[:, 0].mean()),
                        "true": float(mine[:, 1].mean()),
                        "true_95": float(np.quantile(mine[:, 1], 0.95)),
                    }
                )


def _row(*values) -> dict:
    return {
        key: value if isinstance(value, str) else float(value)
        for key, value in zip(KEYS, values, strict=True)
    }


def summary(rows: list[dict]) -> list[dict]:
    """Over documents, for each reader and residency: means of ratios as means of log ratios, the
    losses as perplexities, the worst document, and a 95 % interval of the residency loss (2000
    bootstrap draws of documents). Flash reads over LRU's are None where LRU reads nothing."""
    out = []
    rng = np.random.default_rng(1)
    for reader, residency in dict.fromkeys((r["reader"], r["residency"]) for r in rows):
        mine = [r for r in rows if (r["reader"], r["residency"]) == (reader, residency)]
        loss = np.array([r["nll"] - r["nll_all_resident"] for r in mine])
        choice = np.array([r["nll_all_resident"] - r["nll_ideal"] for r in mine])
        draws = loss[rng.integers(0, len(loss), (2000, len(loss)))].mean(axis=1)
        worst = int(loss.argmax())

        def mean(key, mine=mine):
            return float(np.mean([r[key] for r in mine]))

        def ratio(key, mine=mine):
            return float(np.exp(np.mean(np.log([r[key] for r in mine]))))

        lru = mean("lru_flash_per_layer")
        out.append(
            {
                "reader": reader,
                "residency": residency,
                "documents": len(mine),
                "token_time_0": ratio("token_time_0"),
                "token_time_100us": ratio("token_time_100us"),
                "layers_wait": mean("layers_wait"),
                "tokens_wait": mean("tokens_wait"),
                "choice_loss": float(np.expm1(choice.mean())),
                "residency_loss": float(np.expm1(loss.mean())),
                "residency_loss_interval": np.expm1(np.quantile(draws, [0.025, 0.975])).tolist(),
                "worst_residency_loss": float(np.expm1(loss[worst])),
                "worst_document": mine[worst]["document"],
                "flash_over_lru": mean("flash_per_layer") / lru if lru else None,
                "flash_over_lru_worst": max(
                    (
                        r["flash_per_layer"] / r["lru_flash_per_layer"]
                        for r in mine
                        if r["lru_flash_per_layer"]
                    ),
                    default=None,
                ),
                "link_over_chosen": mean("link_bytes_per_token") / mean("chosen_bytes_per_token"),
            }
        )
    return out
