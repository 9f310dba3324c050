# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`serial:/dev/ttyUSB0` — a board as a device of cxl_kv: the library's loads and stores become
CXL.mem requests over the bridge.

Options in the URL: `baud` (3000000), `timeout` (seconds of silence before something counts as lost;
0.25), `patience` (seconds of silence before the board is given up; 10), `reset` (1: start the
endpoint anew, the default; 0: keep what it holds).
"""

from __future__ import annotations

import numpy as np

from kelp_fpga.link.host import BoardError, Host
from kelp_fpga.link.host_link import LinkError
from kelp_fpga.link.serial_port import PortError, SerialPort
from kelp_spec.address import Region

from ..arguments import nothing_left, seconds, switch, whole
from ..core import Core, Loaded, Status, nameable
from ..errors import ConnectionLostError

__all__ = ["SerialCore"]


class SerialCore(Core):
    """One board. ConnectionLostError when it does not answer.

    Parameters
    ----------
    path : str
        Of the port.
    options : dict
        Of the URL; they are taken out. ValueError for one that is unknown.
    """

    def __init__(self, path: str, options: dict[str, str] | None = None):
        super().__init__()
        options = {} if options is None else options
        baud = whole(options, "baud", 3_000_000)
        timeout, patience = (
            seconds(options, "timeout", 0.25),
            seconds(options, "patience", 10.0),
        )
        reset = switch(options, "reset", "1")
        nothing_left(f"serial:{path}", options)
        self._lost: str | None = None  # why the board is of no use any more
        port = self._guarded(lambda: SerialPort(path, baud))
        try:
            self.host = self._guarded(lambda: Host(port, timeout=timeout, patience=patience))
            self.config = self.host.config
            self._guarded(
                lambda: (
                    self.host.reset(seconds=patience)
                    if reset
                    else self.host.wait("ready", patience)
                )
            )
        except BaseException:
            port.close()
            raise

    def _guarded(self, do):
        """What `do` returns. After an exchange that broke off, as by Ctrl-C, nothing is asked any
        more: answers to it may come yet, and would be taken for others'."""
        if self._lost:
            raise ConnectionLostError(self._lost)
        self._lost = (
            "an access to this board was broken off in the middle, so that nothing is known of "
            + "what it holds; open it again"
        )
        try:
            found = do()
        except (BoardError, LinkError, PortError) as error:
            self._lost = str(error)
            raise ConnectionLostError(self._lost) from None
        self._lost = None
        return found

    def load(self, addresses: np.ndarray, ld_id: int) -> Loaded:
        lines, poison, nxm = self._guarded(lambda: self.host.read(nameable(addresses), ld_id=ld_id))
        return Loaded(
            lines,
            np.where(nxm, Status.NOT_MAPPED, np.where(poison, Status.POISON, Status.DATA)).astype(
                np.uint8
            ),
        )

    def store(
        self, addresses: np.ndarray, lines: np.ndarray, byte_enable: np.ndarray | None, ld_id: int
    ) -> None:
        # Registers and hints take effect one after another, and after what was stored before them;
        # KV lines go at the line's full rate.
        addresses = nameable(addresses)
        side = addresses >> np.uint64(self.config.aperture_bits) != Region.KV
        for part in np.split(np.arange(len(addresses)), np.flatnonzero(np.diff(side)) + 1):
            if len(part):
                enable = None if byte_enable is None else byte_enable[part]
                ordered = bool(side[part[0]])
                self._guarded(
                    lambda p=part, e=enable, o=ordered: self.host.write(
                        addresses[p], lines[p], e, ld_id=ld_id, ordered=o
                    )
                )

    def spec_read(self, addresses: np.ndarray, ld_id: int) -> None:
        self._guarded(lambda: self.host.spec_read(nameable(addresses), ld_id=ld_id))

    def close(self) -> None:
        self.host.close()
