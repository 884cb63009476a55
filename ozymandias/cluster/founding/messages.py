"""What is said at the door: the joining host's request and the cluster's answer, as JSON."""

import msgspec

from ozymandias.cluster.founding.authority import Use
from ozymandias.cluster.founding.record import ClusterSettings


class JoinRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    address: str
    machine_id: str
    requests: dict[Use, str]
    version: str = ""
    token: str = ""  # id and secret, with a colon between; not when renewing


class JoinAnswer(msgspec.Struct, kw_only=True):
    cluster: ClusterSettings
    authority: str
    certificates: dict[Use, str]
    endpoints: tuple[str, ...]
    token_hashes: str
    time: float
    authority_key: str = ""  # for hosts that are to hold the store
