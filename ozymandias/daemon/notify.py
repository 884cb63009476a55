"""systemd's notify protocol: ready, status line, watchdog. Silent where systemd is not."""

import os
import socket


def notify(*lines: str) -> None:
    """Send e.g. ``READY=1`` or ``STATUS=waiting for etcd`` to systemd, if it is there."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto("\n".join(lines).encode(), target)
        except OSError:
            pass  # a service manager that went away is no reason to fail


def watchdog_seconds() -> float | None:
    """How often the watchdog wants to hear from us: half of what it allows."""
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 2_000_000 if text.isdigit() and int(text) else None
