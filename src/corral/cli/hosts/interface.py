"""The check of `--interface`, an option of `corral up` and `corral join`."""

from __future__ import annotations

import click


def known_interface(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    import socket

    names = [name for _, name in socket.if_nameindex()]
    if value and value not in names:
        raise click.BadParameter(f"This machine has no network interface {value}. It has {', '.join(names)}.")
    return value
