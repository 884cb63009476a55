"""Keys, certificates and tokens on this host: made once, kept, replaced when they are no good.

Keys never leave the host that made them, but for the authority's own: that one is on every host
which holds a member of the store, so that the loss of one host takes nothing from the others, and
so that certificates can be renewed while etcd itself stands still for want of good ones.
"""

from dataclasses import dataclass
from pathlib import Path

from ozymandias.cluster import install
from ozymandias.cluster.founding import authority, files
from ozymandias.cluster.founding.authority import Pair, Seen, Use
from ozymandias.cluster.founding.record import HostRecord, Places
from ozymandias.store.etcd_calls import Credentials
from ozymandias.store.tokens import hashed, make_token

USES: tuple[Use, ...] = ("host", "client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One certificate of this host."""

    use: Use
    seen: Seen | None
    problem: str  # "" when it is good now

    def is_due(self, now: float) -> bool:
        return (
            bool(self.problem)
            or self.seen is None
            or self.seen.days_left(now) < authority.RENEW_BELOW_DAYS
        )


def ensure_authority(places: Places, record: HostRecord, now: float) -> bool:
    """The founder's: made where there is none. Whether it was made."""
    if places.authority_key.exists() and places.authority_cert.exists():
        return False
    made = authority.make_authority(record.cluster.id, now)
    write_authority(places, made)
    return True


def write_authority(places: Places, pair: Pair) -> None:
    """The certificate last: it is what tells that both are there."""
    if pair.key:
        _write(places, places.authority_key, pair.key, 0o600)
    _write(places, places.authority_cert, pair.cert, 0o644)


def read_authority(places: Places) -> Pair | None:
    """None on hosts that don't hold the key."""
    cert, key = _read(places.authority_cert), _read(places.authority_key)
    return Pair(cert=cert, key=key) if cert and key else None


def requests(places: Places, name: str) -> dict[Use, str]:
    """For both certificates, with the keys that are here; made where there are none."""
    found: dict[Use, str] = {}
    for use in USES:
        key = _read(places.key(use))
        if not key:
            key = authority.make_key()
            mode = 0o600 if use == "host" else 0o640
            _write(places, places.key(use), key, mode, install.GROUP if use == "client" else "")
        found[use] = authority.make_request(key, name)
    return found


def sign_all(
    pair: Pair, asked: dict[Use, str], *, name: str, address: str, now: float
) -> dict[Use, str]:
    """ValueError: a request is not one."""
    return {
        use: authority.sign(pair, asked[use], use=use, name=name, addresses=(address,), now=now)
        for use in USES
    }


def write_certificates(places: Places, certs: dict[Use, str]) -> None:
    for use in USES:
        _write(places, places.cert(use), certs[use], 0o644)


def held(places: Places, now: float) -> tuple[Held, ...]:
    """What is here and whether it is good."""
    return tuple(_held(places, use, now) for use in USES)


def _held(places: Places, use: Use, now: float) -> Held:
    cert, key = _read(places.cert(use)), _read(places.key(use))
    ca = _read(places.authority_cert)
    if not (cert and key and ca):
        return Held(use=use, seen=None, problem="it is not there")
    try:
        seen = authority.read(cert)
    except ValueError as error:
        return Held(use=use, seen=None, problem=f"it can't be read: {error}")
    return Held(use=use, seen=seen, problem=authority.problem_of(cert, key, ca, now))


def ensure_token(places: Places) -> bool:
    """The founder's API token, and its hash for daemons. Whether it was made."""
    if places.token.exists() and places.token_hashes.exists():
        return False
    token = _read(places.token).strip() or make_token()
    _write(places, places.token, token + "\n", 0o600)
    _write(places, places.token_hashes, f"{hashed(token)}\n", 0o600)
    return True


def write_token_hashes(places: Places, text: str) -> None:
    _write(places, places.token_hashes, text, 0o600)


def etcd_credentials(places: Places) -> Credentials:
    """To ask etcd as this host's programs do."""
    return Credentials(
        ca=places.authority_cert.read_bytes(),
        cert=places.cert("client").read_bytes(),
        key=places.key("client").read_bytes(),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _write(places: Places, path: Path, text: str, mode: int, group: str = "") -> None:
    if not places.certificates.is_dir():
        places.certificates.mkdir(parents=True, exist_ok=True)
        for directory in (places.settings, places.certificates):
            install.own(directory, 0o750, install.GROUP, places.root)
    files.write(files.Text(path=path, text=text, mode=mode, group=group), places)
