# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Every row of kelp_verif.formal.proofs: the contract holds, its covers are reached, and it catches
each bug that is planted in the block."""

import inspect
import sys

import pytest

from kelp_verif.formal.proofs import PROOFS, table
from kelp_verif.formal.prove import mutant


def marks(proof, quick=True):
    # The test's own limit is the last resort: sby stops at the proof's.
    return [
        pytest.mark.prove,
        pytest.mark.timeout(proof.timeout_s + 60),
        *([pytest.mark.quick] if proof.quick and quick else []),
    ]


def rows(but=()):
    return [
        pytest.param(proof, id=proof.name, marks=marks(proof, proof.name not in but))
        for proof in PROOFS
    ]


#: `make test` plants the first of each quick proof's bugs, `make prove` all of them.
BUGS = [
    pytest.param(proof, old, new, id=f"{proof.name}-{k}", marks=marks(proof, k == 0))
    for proof in PROOFS
    for k, (old, new) in enumerate(proof.bugs)
]


#: `make test` plants none of these, `make prove` all.
WITHDRAWALS = [
    pytest.param(proof, old, new, id=f"{proof.name}-{k}", marks=marks(proof, quick=False))
    for proof in PROOFS
    for k, (old, new) in enumerate(proof.withdrawals)
]


@pytest.fixture
def record(record_property):
    def record(proof, part, result, good):
        record_property(
            "proof",
            {
                "proof": proof.name,
                "part": part,
                "mode": result.mode,
                "depth": result.depth,
                "status": result.status,
                "good": good,
                "seconds": result.cpu_seconds,
            },
        )

    return record


@pytest.mark.parametrize("proof", rows())
def test_holds(proof, record):
    result = proof.holds()
    record(proof, "holds", result, result.passed)
    assert result.passed, result


# The arbiter's covers lie 30 cycles deep and take minutes.
@pytest.mark.parametrize("proof", rows(but=("arbiter",)))
def test_covers_are_reached(proof, record):
    result = proof.covers()
    record(proof, "covers", result, result.passed)
    assert result.passed, result


@pytest.mark.parametrize(("proof", "old", "new"), BUGS)
def test_planted_bug_is_caught(proof, old, new, record):
    result = proof.catches(old, new)
    caught = result.status == "FAIL" and result.trace is not None
    record(proof, "catches", result, caught)
    assert caught, result


@pytest.mark.parametrize(("proof", "old", "new"), WITHDRAWALS)
def test_an_offer_that_does_not_stay_is_caught(proof, old, new, record):
    result = proof.catches(old, new, stream_rule=True)
    caught = any("stream_rule.py" in reason for reason in result.reasons)
    record(proof, "catches", result, caught)
    assert caught, result


def test_every_proof_has_a_bug_to_catch():
    assert all(proof.bugs for proof in PROOFS)
    assert len({proof.name for proof in PROOFS}) == len(PROOFS)


def test_a_bug_that_is_not_planted_is_refused():
    with pytest.raises(ValueError, match="'no such line' occurs 0 times"):
        mutant(PROOFS[0].block, "no such line", "")


def test_table_tells_what_failed():
    row = {
        "proof": PROOFS[0].name,
        "mode": "prove",
        "depth": 2,
        "status": "PASS",
        "good": True,
        "seconds": 1.0,
    }
    lines = table(
        [
            {**row, "part": "holds"},
            {**row, "part": "covers", "good": False, "depth": 7},
            {**row, "part": "catches"},
            {**row, "part": "catches", "good": False},
        ]
    )
    assert len(lines) == 2 and lines[1].split() == [
        PROOFS[0].name,
        "induction",
        "2",
        "PASS",
        "NO",
        "1",
        "of",
        "2",
        "4.0",
    ]


def test_documented(repo_root):
    text = (repo_root / "docs" / "formal.md").read_text(encoding="utf-8")
    for proof in PROOFS:
        row = next(
            (
                line
                for line in text.splitlines()
                if line.startswith("|") and f"`{proof.name}`" in line
            ),
            "",
        )
        assert f"{'induction' if proof.mode == 'prove' else 'bounded'}, {proof.depth} " in row, (
            f"docs/formal.md has no right row for {proof.name}: {row!r}"
        )


def test_every_assumption_is_said_to_hold_somewhere(repo_root):
    text = (repo_root / "docs" / "formal.md").read_text(encoding="utf-8")
    table = text.split("## What is assumed, and where it holds")[1].split("\n## ")[0]
    for proof in PROOFS:
        contract = getattr(proof.spec, "func", proof.spec)
        module = sys.modules[contract.__module__]
        parts = [contract, *(vars(module)[name] for name in vars(module) if name[:1] == "_")]
        used = inspect.getsource(contract)
        if "Assume(" in used or any(
            inspect.isclass(part)
            and f"{part.__name__}(" in used
            and "Assume(" in inspect.getsource(part)
            for part in parts
        ):
            assert f"`{proof.name}`" in table, f"docs/formal.md: of what {proof.name} assumes"
