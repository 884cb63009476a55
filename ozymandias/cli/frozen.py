"""What a freeze window leaves to who is held up by it: that hangs on what the token may do.

The daemon tells the right of the token with which it is asked; one of an earlier version does not,
and knows no others than administrators.
"""

from ozymandias.cli.client import Client


def way_on(client: Client, command: str, what: str = "it") -> str:
    """How ``what`` need not wait for the end of the window; ``command`` is what would say so."""
    option = f"`ozy {command}` with --override-freeze REASON"
    if client.get("info").get("right", "admin") == "admin":
        return f"To have {what} at once: {option}."
    return f"It goes on when that ends; an administrator may have {what} at once: {option}."
