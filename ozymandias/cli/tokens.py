"""`ozy token`: tokens for the API, made on a host. Nobody is asked over the network."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ozymandias.cli.options import output_option
from ozymandias.cli.render import BOLD, paint, show


@click.group()
def token() -> None:
    """Make tokens, with which people and programs use the API.

    \b
    Example:
      ozy token create --right deploy --file /etc/ozymandias/tokens
    """


@token.command("create")
@click.option(
    "--right",
    type=click.Choice(["deploy", "admin"]),
    default="deploy",
    show_default=True,
    help="deploy: read, and change jobs that are not protected; admin: everything.",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Add its line to this file of tokens: [api] token_file of a daemon.",
)
@output_option
def create(right: str, file: Path | None) -> None:
    """Print a new token, once, and the line with which daemons know it.

    The line holds a hash and no secret. It is the same on all hosts: it belongs into the file of
    tokens of each, which a daemon reads again when it changes.

    \b
    Examples:
      ozy token create --right deploy --file /etc/ozymandias/tokens
      ozy token create -o json | jq -r .token
    """
    from ozymandias.cluster import api_tokens

    made = api_tokens.create(right, file)
    document = asdict(made) | {"file": str(file) if file else None}
    show(document, _draw)


def _draw(made: dict[str, Any]) -> None:
    print(f"Token with the right {made['right']}, shown once: {paint(made['token'], BOLD)}")
    if made["file"]:
        print(f"Its line is in {made['file']}. For the same file on other hosts:")
    else:
        print("Its line, for the file of tokens on every host (/etc/ozymandias/tokens):")
    print(made["line"])
