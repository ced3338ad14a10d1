"""A fleet's certificates and keys: an authority, the server's certificate, and one key pair per node."""

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.support.errors import InputError, refusing
from atoll.support.extras import load_extra, require_version

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

# Backdated, for machines with a slow clock.
_SLACK = timedelta(hours=1)


@dataclass(frozen=True)
class Certified:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


def require_flower() -> None:
    """Check that the optional packages for fleets are installed, in versions that Atoll was tested with."""
    load_extra("flwr", "fleet", "a fleet", "Flower")
    require_version("flwr", "fleet", "a fleet")


def make_authority(days: int) -> Certified:
    """Return a new authority, whose certificate everyone in the fleet trusts and whose key signs the server's."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Atoll fleet authority")])
    key = _new_key()
    uses = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = _builder(name, name, key, days, datetime.now(UTC)).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), True
    )
    return _signed(builder.add_extension(uses, True), key, key)


def make_server_certificate(
    authority: Certified, hosts: Sequence[str], days: int, today: datetime | None = None
) -> Certified:
    """Return a certificate for these host names and addresses, signed by the authority and valid from today."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    with refusing("ca.key: must be a private key in PEM format without a password", ValueError, TypeError):
        signer = load_pem_private_key(authority.key, None)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    if signer.public_key() != issuer.public_key():
        raise InputError("ca.key: is not the key of ca.pem; give the one that was made with it")
    key = _new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    builder = (
        _builder(name, issuer.subject, key, days, today or datetime.now(UTC))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), False)  # type: ignore[arg-type]
    )
    return _signed(builder, key, signer)  # type: ignore[arg-type]


def make_key_pair(comment: str) -> tuple[bytes, str]:
    """Return a node's private key (OpenSSH, without a password), and its public key in ssh-keygen's format."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = _new_key()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private, f"{public.decode()} {comment}"


def read_private_key(path: Path) -> "ec.EllipticCurvePrivateKey":
    """Return a node's private key."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    with refusing(f"{path}: must hold a private key in OpenSSH format without a password", Exception):
        key = load_ssh_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path}: must be a key on the curve P-384, as atoll fleet init makes it")
    return key


def is_shared(path: Path) -> bool:
    """Return whether other users of this machine can read a private file."""
    return os.name == "posix" and bool(path.stat().st_mode & 0o077)


def load_public_key(line: str) -> "ec.EllipticCurvePublicKey":
    """Return a public key from a line in ssh-keygen's format."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    with refusing(f"public_key = {line[:40]!r}...: is not a public key in OpenSSH format", Exception):
        key = load_ssh_public_key(line.encode())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(f"public_key = {line[:40]!r}...: must be a key on the curve P-384")
    return key


def require_valid(path: Path) -> bytes:
    """Return a certificate (PEM), which must be valid today."""
    from cryptography import x509

    with refusing(f"{path}: cannot be read as a certificate in PEM format", ValueError):
        content = path.read_bytes()
        certificate = x509.load_pem_x509_certificate(content)
    today = datetime.now(UTC)
    if certificate.not_valid_after_utc < today:
        raise InputError(
            f"{path}: the certificate expired on {certificate.not_valid_after_utc:%d %B %Y}; "
            "atoll fleet renew makes a new one for the server; when the authority itself (ca.pem) has expired, "
            "make a new fleet"
        )
    if certificate.not_valid_before_utc > today:
        raise InputError(
            f"{path}: the certificate is not valid before {certificate.not_valid_before_utc:%d %B %Y}; "
            "is this machine's clock right?"
        )
    return content


def validity(path: Path) -> tuple[datetime, datetime]:
    """Return from when to when a certificate is valid."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(require_valid(path))
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def _new_key() -> "ec.EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _builder(
    name: "x509.Name", issuer: "x509.Name", key: "ec.EllipticCurvePrivateKey", days: int, today: datetime
) -> "x509.CertificateBuilder":
    """Return a builder with the common fields of all certificates."""
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - _SLACK)
        .not_valid_after(today + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _signed(
    builder: "x509.CertificateBuilder", key: "ec.EllipticCurvePrivateKey", signer: "ec.EllipticCurvePrivateKey"
) -> Certified:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    certificate = builder.sign(signer, hashes.SHA384())
    return Certified(
        certificate.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )


def _general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
