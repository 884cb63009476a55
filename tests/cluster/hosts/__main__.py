"""Hosts by hand: `python -m tests.cluster.hosts up`, then `exec PREFIX n1 COMMAND`, `down PREFIX`.

`list` shows the prefixes of all hosts on this machine; `down all` removes every one of them.
"""

import argparse
import os
import sys

from tests.cluster.hosts.hosts import Hosts, prefixes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.hosts", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="make hosts and print their prefix")
    up.add_argument("count", type=int, nargs="?", default=3)
    verbs.add_parser("list", help="prefixes of all hosts here")
    down = verbs.add_parser("down", help="remove hosts and all they hold")
    down.add_argument("prefix", help="as printed by `up`; or `all`")
    run = verbs.add_parser("exec", help="run a command on a host, or on `client`")
    run.add_argument("prefix")
    run.add_argument("host")
    run.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.verb == "up":
        sys.stdout.write(Hosts.up(arguments.count, keep=True).prefix + "\n")
    elif arguments.verb == "list":
        sys.stdout.write("".join(f"{prefix}\n" for prefix in prefixes()))
    elif arguments.verb == "down":
        for prefix in prefixes() if arguments.prefix == "all" else [arguments.prefix]:
            Hosts(prefix).down()
    else:
        hosts = Hosts.load(arguments.prefix)
        place = hosts.client if arguments.host == "client" else hosts[arguments.host]
        command = place.cgroups.joining(*place.entering(), *arguments.command)
        os.execvpe(command[0], command, place.environment())


if __name__ == "__main__":
    main()
