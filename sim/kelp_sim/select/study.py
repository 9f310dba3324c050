# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a reader finds and what it costs a model: a text is decoded, teacher-forced, and from a
token on each KV head attends to the pages that its reader chose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from kelp_spec.formats import ELEMENTS
from kelp_spec.select import CODE_BITS

from ..quality import llama, real
from ..quality.llama import Llama, attend
from ..quality.threads import one_thread
from ..quality.tokens import Tokenizer, texts
from .readers import Device, Ideal, Moved, page_mass, plans_of

__all__ = ["Row", "curve", "documents", "loss", "measure", "readers_of"]

Store = Callable[[int, np.ndarray], np.ndarray]


def documents(path: Path, count: int, tokens: int) -> tuple[Llama, list[tuple[str, np.ndarray]]]:
    """A model, and (name, ids) of texts for it; of a GGUF file those that are held back."""
    if path.suffix == ".gguf":
        model, tokenizer = real.load(path)
        return model, real.excerpts(tokenizer, count, tokens, held_back=True)
    model = llama.load(path)
    return model, texts(Tokenizer(path / "tokenizer.json"), count, tokens)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One reader on one text. `mass`, `pages` and `recall` are means over layers, KV heads and
    steps; `ideal_mass` and `ideal_pages` are the ideal reader's for the same queries."""

    document: str
    quota: int  #: of the device's choice; 0: the ideal reader
    page_tokens: int
    code_bits: int  #: of a line's code that are used; 0: the ideal reader
    steps: int
    nats: float  #: −log p of the tokens that were decoded, summed
    mass: float  #: attention mass of the pages chosen
    #: the same when as many pages are chosen as the ideal reader does, out of the candidates
    mass_at_as_many: float
    ideal_mass: float
    pages: float
    ideal_pages: float
    candidates: float  #: pages whose scores were exact, the first and the newest among them
    looks: float  #: their tokens that were looked at
    recall: float  #: of the ideal reader's pages


#: What a row has means of, in the order of the sums.
_MEANS = ("mass", "mass_at_as_many", "ideal_mass", "pages", "ideal_pages", "candidates", "looks")


class _Sparse:
    """Attention that is dense before `first`, and reads chosen pages from there on."""

    def __init__(self, reader, ideal: Ideal, first: int, moved: Moved):
        self.reader, self.ideal, self.first, self.moved = reader, ideal, first, moved
        self.sums = np.zeros(9)

    def __call__(self, layer, q, k, v, positions) -> np.ndarray:
        first, rows = self.first, positions[self.first :]
        before = attend(q[:, :first], k[:, :first], v[:, :first], positions[:first])
        late = q[:, first:]
        bits = getattr(self.reader, "code_bits", CODE_BITS)
        plans = plans_of(k[:, :first], q[:, :first], self.moved, self.ideal.page_tokens, bits)
        chosen = self.reader.chosen(late, k, rows, [plan for _, plan in plans])
        self._compare(late, k, rows, chosen)
        group = len(q) // len(k)
        out = np.empty(late.shape, np.float32)
        for head in range(len(q)):
            mine = head // group
            hidden = ~np.repeat(chosen[mine], self.ideal.page_tokens, axis=1)[:, : k.shape[1]]
            hidden |= np.arange(k.shape[1])[None] > rows[:, None]
            score = late[head] @ (k[mine].T * np.float32(q.shape[-1] ** -0.5))
            score[hidden] = -np.inf
            score -= score.max(axis=1, keepdims=True)
            np.exp(score, out=score)
            out[head] = score @ v[mine] / score.sum(axis=1, keepdims=True)
        return np.concatenate([before, out], axis=1)

    def _compare(self, q, k, rows, chosen) -> None:
        group = len(q) // len(k)
        for head in range(len(k)):
            mass = page_mass(
                q[head * group : (head + 1) * group], k[head], rows, self.ideal.page_tokens
            )
            best = self.ideal.of_masses(mass, rows // self.ideal.page_tokens)
            device = isinstance(self.reader, Device)
            named = self.reader.named[head] if device else best
            looks = self.reader.looks[head] if device else best * self.ideal.page_tokens
            always = np.zeros(mass.shape, bool)
            always[:, 0] = always[np.arange(len(rows)), rows // self.ideal.page_tokens] = True
            # As many as the ideal reader takes beside those that both always do.
            order = -np.sort(-np.where(named & ~always, mass, 0), axis=1)
            count = (best & ~always).sum(axis=1)
            as_many = np.where(np.arange(mass.shape[1])[None] < count[:, None], order, 0)
            self.sums += [
                (mass * chosen[head]).sum(),
                as_many.sum() + (mass * always).sum(),
                (mass * best).sum(),
                chosen[head].sum(),
                best.sum(),
                named.sum(),
                looks.sum(),
                (chosen[head] & best).sum(),
                len(rows),
            ]


def readers_of(
    page_tokens: Sequence[int], code_bits: Sequence[int], quotas: Sequence[int], most: int
) -> list[tuple[Ideal, list[Device]]]:
    """Of each page size its ideal reader, and devices of all code bits and quotas. `quotas` and
    `most` are of pages of the first size; of other sizes as many tokens are named and chosen."""
    found = []
    for size in page_tokens:
        fit = {n: max(1, round(n * page_tokens[0] / size)) for n in (*quotas, most)}
        how = {"most": fit[most] if most else 0, "page_tokens": size}
        devices = [
            Device(quota=quota, code_bits=bits, **how)
            for bits in code_bits
            for quota in dict.fromkeys(fit[n] for n in quotas)
        ]
        found.append((Ideal(**how), devices))
    return found


@one_thread()
def measure(
    model: Llama,
    document: str,
    tokens: np.ndarray,
    reader: Ideal | Device,
    ideal: Ideal,
    *,
    first: int,
    store: Store | None = None,
) -> Row:
    """A reader on a text, from token `first` on."""
    reader = replace(reader)
    sparse = _Sparse(reader, ideal, first, model.moved)
    nats = model.losses(tokens, store, sparse)[first:].sum()
    s = sparse.sums
    return Row(
        document=document,
        quota=reader.quota if isinstance(reader, Device) else 0,
        page_tokens=reader.page_tokens,
        code_bits=reader.code_bits if isinstance(reader, Device) else 0,
        steps=len(tokens) - 1 - first,
        nats=float(nats),
        recall=float(s[7] / s[4]),
        **dict(zip(_MEANS, map(float, s[:7] / s[8]), strict=True)),
    )


def curve(rows: Sequence[Row]) -> list[dict]:
    """Of each page size, code bits and quota what :func:`loss` says, with these and what the bits
    that are used come to, `bytes`: of a summary, for each dimension and page."""
    out = []
    for size in dict.fromkeys(row.page_tokens for row in rows):
        for bits in dict.fromkeys(row.code_bits for row in rows if row.code_bits):
            own = [r for r in rows if r.page_tokens == size and r.code_bits in (0, bits)]
            of = {"page_tokens": size, "code_bits": bits, "bytes": size * bits / 8 / ELEMENTS}
            out += [of | {"quota": quota} | found for quota, found in loss(own).items()]
    return out


def loss(rows: Sequence[Row]) -> dict[int, dict]:
    """By quota, of one page size and code bits: the choice loss, perplexity against the ideal
    reader's over documents (the mean of log ratios), the worst document, and the means of what was
    found."""
    base = {row.document: row.nats / row.steps for row in rows if not row.quota}
    out: dict[int, dict] = {}
    for quota in dict.fromkeys(row.quota for row in rows if row.quota):
        mine = [row for row in rows if row.quota == quota]
        by = {
            row.document: float(np.expm1(row.nats / row.steps - base[row.document])) for row in mine
        }
        worst = max(by, key=by.__getitem__)
        means = {
            name: float(np.mean([value[name] for value in map(asdict, mine)]))
            for name in ("candidates", "looks", "pages", "ideal_pages", "recall")
        }
        share = [(row.mass / row.ideal_mass, row.mass_at_as_many / row.ideal_mass) for row in mine]
        out[quota] = means | {
            "documents": len(mine),
            "loss": float(np.expm1(np.mean(np.log1p(list(by.values()))))),
            "worst": by[worst],
            "worst_document": worst,
            "mass": float(np.mean([a for a, _ in share])),
            "mass_at_as_many": float(np.mean([b for _, b in share])),
        }
    return out
