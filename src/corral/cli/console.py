"""`corral console` opens the web console."""

from __future__ import annotations

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, find_endpoint
from corral.cli.printing.output import print_json, print_message, print_text


@click.command(short_help="Open the web console.")
@data_option
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser.")
@click.option("--logout", is_flag=True, help="End all your sessions of the console.")
@click.option("--json", "as_json", is_flag=True, help="Print the link, or the number of sessions that have ended, as JSON.")
def console(data: DataFolder, opens: bool, logout: bool, as_json: bool) -> None:
    """Print a link to the web console. It works once, within five minutes, and opens a session of twelve hours.

    The console can do what you may do. If you are on another machine, connect to the server with ssh -L 4568:127.0.0.1:4568 HOST,
    and run this command there.
    """
    if opens and logout:
        raise click.UsageError("use either --open or --logout.")
    endpoint = find_endpoint(data)
    if logout:
        ended, _ = call(endpoint, "EndConsoleSessions")
        if as_json:
            print_json(ended)
        else:
            print_text(f"{ended['sessions']} session{'' if ended['sessions'] == 1 else 's'} of the console ended")
        return
    found, _ = call(endpoint, "CreateConsoleLink")
    link = f"{found['url']}#{found['code']}"
    if as_json:
        print_json({"link": link, "url": found["url"], "expiresAtS": found["expiresAtS"]})
    else:
        print_text(link)
    if opens:
        _open(link)


def _open(link: str) -> None:
    import webbrowser  # imported here, because few links are opened

    if not webbrowser.open(link):
        print_message("no browser was found on this machine. Open the link yourself.")
