"""`corral completion`: what makes the shell complete verbs, options, task ids, GPUs and repositories (`suggest.py`)."""

from __future__ import annotations

import click

COMPLETE_VARIABLE = "_CORRAL_COMPLETE"


@click.command(short_help="Print what makes your shell complete corral's words.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that makes the shell complete verbs, options, task ids, GPUs and repositories.

    \b
    bash:  eval "$(corral completion bash)"       in ~/.bashrc
    zsh:   eval "$(corral completion zsh)"        in ~/.zshrc, after compinit
    fish:  corral completion fish | source        in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "corral", COMPLETE_VARIABLE).source())
