# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a configuration is refused with. Plain Python."""

__all__ = ["ConfigError"]


class ConfigError(ValueError):
    """A configuration was refused; the message names the field, the value and the legal range."""
