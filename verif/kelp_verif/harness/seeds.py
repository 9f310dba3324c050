# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What ``$KELP_SEED`` makes of the seeds that tests name: without it they are fixed, so that two
runs of the same sources say the same; ``fresh`` or a number draws others."""

import functools
import os
import random

__all__ = ["forget", "reseeded", "wanted"]


def wanted() -> int | None:
    """What ``$KELP_SEED`` asks for: the number that it is, one of this call's own where it is
    ``fresh``, None where it is not set. ValueError where it is anything else."""
    said = os.environ.get("KELP_SEED")
    if said == "fresh":
        return random.SystemRandom().randrange(1, 2**31)
    try:
        return None if said is None else int(said)
    except ValueError:
        raise ValueError(f"KELP_SEED is {said!r}; legal: a number, or fresh") from None


#: By what the value is, since tests may change it.
_moved = functools.cache(lambda said: wanted())


def forget() -> None:
    """The next seed under ``fresh`` is another one."""
    _moved.cache_clear()


def reseeded(seed: int) -> int:
    """A test's own ``seed``, moved by what ``$KELP_SEED`` asks for: for benches that run in the
    process of the test. Of ``fresh`` a process draws once. Printed always, with what repeats it."""
    said = os.environ.get("KELP_SEED")
    if said is None:
        return seed
    moved = _moved(said)
    print(f"seed {seed} is {seed + moved} (KELP_SEED={moved})")
    return seed + moved
