"""The cluster's own certificate authority, and the certificates of its hosts.

Two for each host, made by the authority and for a year: one for the host itself (it serves etcd
and the API, and speaks to etcd's other members), whose key only root reads; and one for programs
that ask etcd, which can't pass for a member of it. Keys are made on the host and stay there: a
host sends a request, of which nothing but its public key is believed; names, addresses and uses
are what the signing side knows. Certificates count from an hour ago, for clocks that lag.
"""

import base64
import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ozymandias.model.units import counted

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
RENEW_BELOW_DAYS = 122  # a third of the life
LAG = timedelta(hours=1)
REQUEST_BYTES_MAX = 16 * 2**10

Use = Literal["host", "client"]
# etcd's members take each other by this name alone (--peer-cert-allowed-cn).
COMMON_NAMES: dict[Use, str] = {"host": "ozymandias-host", "client": "ozymandias-client"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its private key, as PEM."""

    cert: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a certificate says."""

    subject: str
    serial: str
    not_before: float  # wall clock
    not_after: float
    names: tuple[str, ...]

    def days_left(self, now: float) -> float:
        return (self.not_after - now) / 86_400


def make_authority(cluster: str, now: float, days: int = AUTHORITY_DAYS) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ozymandias cluster {cluster}")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    built = (
        _builder(now, days)
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Pair(cert=_pem(built.sign(key, hashes.SHA256())), key=_key_pem(key))


def make_key() -> str:
    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def make_request(key: str, name: str) -> str:
    """What is sent to be signed: the public key, and the proof that we have the private one."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = x509.CertificateSigningRequestBuilder().subject_name(subject)
    request = built.sign(_private(key), hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def sign(
    authority: Pair,
    request: str,
    *,
    use: Use,
    name: str,
    addresses: Sequence[str],
    now: float,
    days: float = CERTIFICATE_DAYS,
) -> str:
    """The certificate for a request. ValueError: it is none, or not by the key's owner."""
    asked = _read_request(request)
    issuer = x509.load_pem_x509_certificate(authority.cert.encode())
    common = x509.NameAttribute(NameOID.COMMON_NAME, COMMON_NAMES[use])
    unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, name)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    names: list[x509.GeneralName] = [x509.DNSName(name)]
    if use == "host":
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names.append(x509.DNSName("localhost"))
        served = map(ipaddress.ip_address, dict.fromkeys((*addresses, "127.0.0.1")))
        names += [x509.IPAddress(address) for address in served]
    built = (
        _builder(now, days)
        .subject_name(x509.Name([unit, common]))
        .issuer_name(issuer.subject)
        .public_key(asked.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()),  # type: ignore[arg-type]
            critical=False,
        )
    )
    return _pem(built.sign(_private(authority.key), hashes.SHA256()))


def fingerprint(cert: str) -> str:
    """Of an authority, as join tokens carry it: SHA-256 of the certificate, 43 characters."""
    der = x509.load_pem_x509_certificate(cert.encode()).public_bytes(serialization.Encoding.DER)
    return base64.urlsafe_b64encode(hashlib.sha256(der).digest()).decode().rstrip("=")


def read(cert: str) -> Seen:
    """ValueError when it is no certificate."""
    found = x509.load_pem_x509_certificate(cert.encode())
    names: list[str] = []
    for extension in found.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            names += [str(name.value) for name in extension.value]
    return Seen(
        subject=found.subject.rfc4514_string(),
        serial=f"{found.serial_number:x}",
        not_before=found.not_valid_before_utc.timestamp(),
        not_after=found.not_valid_after_utc.timestamp(),
        names=tuple(names),
    )


def problem_of(cert: str, key: str, authority_cert: str, now: float) -> str:
    """Why this certificate will not do; "" when it will: ours, of that key, and of this time."""
    try:
        found = x509.load_pem_x509_certificate(cert.encode())
        issuer = x509.load_pem_x509_certificate(authority_cert.encode())
        own = _private(key).public_key()
    except ValueError as error:
        return f"it can't be read: {error}"
    if _public_bytes(found.public_key()) != _public_bytes(own):
        return "it belongs to another key"
    try:
        found.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return "it was made by another authority"
    seen = read(cert)
    if now > seen.not_after:
        return f"it expired {counted(round(-seen.days_left(now)), 'day')} ago"
    if now < seen.not_before:
        return "it is not valid yet: the clock is behind"
    return ""


def _read_request(request: str) -> x509.CertificateSigningRequest:
    if len(request) > REQUEST_BYTES_MAX:
        raise ValueError("the request is too long")
    asked = x509.load_pem_x509_csr(request.encode())
    if not asked.is_signature_valid:
        raise ValueError("the request is not signed by its own key")
    if not isinstance(asked.public_key(), ec.EllipticCurvePublicKey):
        raise ValueError("the request's key is not of an elliptic curve")
    return asked


def _builder(now: float, days: float) -> x509.CertificateBuilder:
    begin = datetime.fromtimestamp(now, UTC)
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - LAG)
        .not_valid_after(begin + timedelta(days=days))
    )


def _private(key: str) -> ec.EllipticCurvePrivateKey:
    found = serialization.load_pem_private_key(key.encode(), None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not of an elliptic curve")
    return found


def _public_bytes(key: object) -> bytes:
    data: bytes = key.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return data


def _pem(cert: x509.Certificate) -> str:
    return cert.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
