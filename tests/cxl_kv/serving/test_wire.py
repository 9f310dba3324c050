# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""An error that is raised at the server is, at the client, of the same class, in the same words, at
the same place."""

import copy
import json
import pickle

import numpy as np
import pytest

import cxl_kv
from cxl_kv import errors
from cxl_kv.serving import wire
from cxl_kv.serving.server import Server
from cxl_kv.url import make_core
from kelp_spec.config import ConfigError

KINDS = [getattr(errors, name) for name in errors.__all__]
PLACE = {"session": 3, "layer": 0, "head": 2, "page": np.int64(1)}
BESIDE = {"address": 1 << 40, "in_cold_tier": True}


def planted(kind):
    """An error of that class with everything that it can tell."""
    error = kind("it is planted")
    told = getattr(error, "told", ())
    return (
        error.with_(**{k: v for k, v in (PLACE | BESIDE).items() if k in told}) if told else error
    )


def said(error):
    told = {name: getattr(error, name) for name in getattr(error, "told", ())}
    return type(error), str(error), getattr(error, "message", None), told


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_the_same_at_the_other_end(kind):
    error = planted(kind)
    sent = json.loads(wire.to_json(wire.failure(error)))
    for other in (wire.error_of(sent), pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert said(other) == said(error)
        assert str(other).count("planted") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_server_is_the_clients(kind, tmp_path, monkeypatch):
    core, error = make_core("golden:unit"), planted(kind)
    with Server(core) as server, cxl_kv.open(server.listen(f"unix:{tmp_path}/s")) as device:

        def broken(*_):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(core, "load", broken)
            with pytest.raises(kind) as caught:
                device.transport.load(np.zeros(1, np.uint64))
        assert said(caught.value) == said(error)


def test_what_no_user_knows_arrives_as_what_it_is_derived_from():
    class Ours(cxl_kv.FlashError):
        pass

    other = wire.error_of(wire.failure(Ours("planted", page=0)))
    assert said(other) == said(cxl_kv.FlashError("planted", page=0))
    for error in (ValueError("planted"), ConfigError("planted")):
        assert said(wire.error_of(wire.failure(error))) == (ValueError, "planted", None, {})
    assert len(str(wire.error_of(wire.failure(ValueError("long" * 9999))))) == 2000


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ({"error": "PoisonError"}, cxl_kv.PoisonError("m")),  # an older server's
        ({"error": "PoisonError", "page": 0, "head": "2"}, cxl_kv.PoisonError("m", page=0)),
        ({"error": "PoisonError", "address": 3, "layer": None}, cxl_kv.PoisonError("m")),
        ({"error": "NewerError", "page": 1}, cxl_kv.TransportError("m", page=1)),
        ({"error": "contextlib", "page": [1]}, cxl_kv.TransportError("m")),
        ({"error": ["PoisonError"]}, cxl_kv.TransportError("m")),
        ({"error": "UnsupportedError", "page": 1}, cxl_kv.UnsupportedError("m")),
    ],
)
def test_what_a_server_of_another_version_tells_is_taken_as_far_as_it_is_known(reply, error):
    assert said(wire.error_of(reply | {"message": "m"})) == said(error)
