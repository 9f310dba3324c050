# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""An endpoint with a planted bug behind one of the compiled drivers."""

from unittest import mock

from kelp_hw.endpoint import Endpoint
from kelp_verif.formal.prove import mutant

__all__ = ["planted_driver"]


def planted_driver(driver, module, block, old, new):
    """A class like `driver`, a `CachingDriver` or what derives from it, for an endpoint in which
    `old` in the source of `block` is `new`; `module` is where the block is looked up."""
    bad = mutant(block, old, new)

    class PlantedDriver(driver):
        def __init__(self, config, *, driver=(), **options):
            with mock.patch.object(module, block.__name__, bad):
                planted = dict(driver) | {"component": Endpoint(config=config)}
                super().__init__(config, driver=planted, **options)

    return PlantedDriver
