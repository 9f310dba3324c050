# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a run may put between a component and its simulation: nothing, unless a mutation run
(:mod:`kelp_verif.mutation`) has replaced :data:`installed`."""

from collections.abc import Callable
from pathlib import Path

__all__ = ["Passes", "install", "installed"]


class Passes:
    """Passes that change nothing. Each is called on every design that is built for simulation."""

    #: Whether RTLIL says which line of the source each cell is from.
    sources = False

    def component(self, component):
        """The elaboratable that is converted in place of `component`."""
        return component

    def rtlil(self, text: str) -> str:
        """The RTLIL of what `component` returned last."""
        return text

    def verilog(self, text: str) -> str:
        """The Verilog of that."""
        return text

    def simulates(self, verilog: str) -> None:
        """A compiled model of `verilog` begins to run in this process."""

    def bench(
        self, verilog: str, simulate: Callable[..., int | None], folder: Path
    ) -> tuple[Path, int | None]:
        """Run a cocotb bench on a built model of `verilog`: ``simulate(folder, **more)`` runs it
        in a folder, with more environment, and returns its exit code, or nothing where it did not
        end. Returns the folder that its files are in, and that code."""
        return folder, simulate(folder)


_installed = Passes()


def installed() -> Passes:
    """The passes of this process."""
    return _installed


def install(passes: Passes) -> None:
    """Use `passes` from now on."""
    global _installed
    _installed = passes
