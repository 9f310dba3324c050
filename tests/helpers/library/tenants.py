# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Token files for servers under test, and clients that speak the protocol by hand."""

from cxl_kv.backends.remote import connect
from cxl_kv.serving import wire
from cxl_kv.serving.tokens import Tokens, add, read_token
from cxl_kv.url import split


def tenants(folder, *names, **limits):
    """The Tokens of a fresh file in `folder`, and each name's own token file beside it,
    `NAME.token`."""
    for name in names:
        add(folder / "tokens.toml", name, folder / f"{name}.token", **limits)
    return Tokens.load(folder / "tokens.toml")


def greeted(url):
    """A connection to `url` after HELLO."""
    connection = connect(url, 30)
    path = split(url)[2].get("token_file")
    wire.send(
        connection, wire.Op.HELLO, 1, wire.to_json({"token": read_token(path)} if path else {})
    )
    assert wire.receive(connection)[0] == wire.Reply.OK
    return connection
