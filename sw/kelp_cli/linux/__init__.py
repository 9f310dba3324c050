# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp linux``: packages (:mod:`.packages`), the machine around the RTL (:mod:`.fabric`,
:mod:`.proxy`, :mod:`.machine`), what runs in it (:mod:`.initramfs`), the command itself
(:mod:`.command`)."""

from .command import register

__all__ = ["register"]
