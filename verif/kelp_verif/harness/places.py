# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What is known of an expression, found once (:class:`Places`)."""

__all__ = ["Places"]

_MOST = 10_000  #: benches that make expressions as they go have no end


class Places:
    """``places[expression]`` is ``find(expression)``, remembered by the expression's identity; it
    is kept with it, so that no other comes to have its id."""

    def __init__(self, find):
        self._find, self._known = find, {}

    def __getitem__(self, expression):
        known = self._known.get(id(expression))
        if known is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[id(expression)] = expression, self._find(expression)
        return known[1]
