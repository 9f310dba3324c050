# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""``kelp token``: who may connect to ``kelp serve``."""

from typing import Annotated

import typer

from .output import UserError, console

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    @app.command()
    def token(
        name: Annotated[
            str, typer.Argument(help="Tenant; or `metrics`, for who reads every metric.")
        ],
        tokens: Annotated[str, typer.Option(help="The server's file; made where it is not there.")],
        to: Annotated[str, typer.Option(help="New file for the tenant's token alone.")],
        clients: Annotated[
            int | None, typer.Option(help="Connections that it may have at once; 256.")
        ] = None,
        sessions: Annotated[
            int | None, typer.Option(help="Sessions that it may have open; no limit.")
        ] = None,
        budget: Annotated[
            int | None, typer.Option(help="DRAM bytes per queue; as kelp serve --budget says.")
        ] = None,
        idle: Annotated[
            int | None, typer.Option(help="Seconds that a client may be idle; 3600.")
        ] = None,
    ) -> None:
        """Add a tenant with a fresh token to a server's file. Both files are for their owner's eyes
        alone (0600); the token is not shown."""
        from cxl_kv.serving.tokens import add

        limits = dict(clients=clients, sessions=sessions, budget_bytes=budget, idle_seconds=idle)
        try:
            grant = add(tokens, name, to, **limits)
        except ValueError as error:
            raise UserError(str(error)) from None
        except OSError as error:
            raise UserError(f"{tokens}, {to}: {error.strerror}; neither was written") from None
        who = f"tenant {name} (LD-ID {grant.ld_id})" if grant.ld_id else name
        console.print(f"{who} is in {tokens}, its token in {to}")
