"""The store that the settings name, for every process that needs one; and TLS of the API.

Between nodes the API speaks TLS with certificates of the cluster's own authority, and with no
other: a node believes neither the machine's authorities nor a name that is not its peer's.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from ozymandias.daemon.config import ApiConfig, EtcdConfig
from ozymandias.problems import CONFIG_INVALID, ProblemError
from ozymandias.store.etcd import Credentials, EtcdStore


def connect_store(config: EtcdConfig) -> EtcdStore:
    """Never waits; a file that can't be read is a problem that names it."""
    credentials = Credentials(
        ca=_read(config.ca_file, "ca_file"),
        cert=_read(config.cert_file, "cert_file"),
        key=_read(config.key_file, "key_file"),
        user=config.user,
        password=_read(config.password_file, "password_file").decode().strip(),
    )
    return EtcdStore.connect(config.endpoints, credentials)


def _read(file: str, setting: str) -> bytes:
    if not file:
        return b""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ProblemError(CONFIG_INVALID(f"[etcd] {setting}: {error}")) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How the API is served, and how other nodes' are asked."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def settings_tls(config: ApiConfig) -> Tls | None:
    """None for plain HTTP; files that are missing or don't belong together are a problem."""
    if not (config.cert_file or config.key_file or config.ca_file):
        return None
    if not (config.cert_file and config.key_file and config.ca_file):
        raise ProblemError(CONFIG_INVALID("[api] cert_file, key_file and ca_file go together"))
    try:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.minimum_version = ssl.TLSVersion.TLSv1_2
        server.load_cert_chain(config.cert_file, config.key_file)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and name
        client.minimum_version = ssl.TLSVersion.TLSv1_2
        client.load_verify_locations(config.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ProblemError(CONFIG_INVALID(f"[api] cert_file, key_file, ca_file: {error}")) from None
    return Tls(server=server, client=client)
