"""Who has a port: by address, since others may have the same port on an address of their own."""

import os
import socket
import subprocess
import sys

from ozymandias.cluster.doctor.listeners import holder

LISTEN = """
import socket, sys
with socket.socket() as sock:
    sock.bind((sys.argv[1], int(sys.argv[2])))
    sock.listen()
    print("listening", flush=True)
    sys.stdin.read()
"""


def test_the_holder_of_a_port_is_named_by_its_address() -> None:
    """Two programs with one port on two addresses are told apart; elsewhere it is nobody's."""
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        port = mine.getsockname()[1]
        with subprocess.Popen(
            [sys.executable, "-c", LISTEN, "127.0.0.2", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other:
            assert other.stdout is not None and other.stdin is not None
            assert other.stdout.readline() == b"listening\n"
            assert f"(pid {os.getpid()})" in holder(port, "tcp", "127.0.0.1")
            assert f"(pid {other.pid})" in holder(port, "tcp", "127.0.0.2")
            assert holder(port, "tcp", "127.0.0.3") == "another program"
            other.stdin.close()
