"""COMMITTED: the cluster's state in etcd."""

import os

# grpc reads it when it is first imported. Refused connections and certificates are told by our
# own exceptions; grpc's floods on stderr would say nothing more.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
