"""Hosts for tests: real machines as far as podman, etcd, flannel and the daemon can tell.

See README.md beside this file. `Hosts.up()` makes them, `Cluster` runs a whole cluster on them.
"""

from tests.cluster.hosts.host import Host
from tests.cluster.hosts.hosts import Hosts
from tests.cluster.hosts.process import Process

__all__ = ["Host", "Hosts", "Process"]
