"""The store that the settings name, for every process that needs one."""

from pathlib import Path

from ozymandias.daemon.config import EtcdConfig
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
