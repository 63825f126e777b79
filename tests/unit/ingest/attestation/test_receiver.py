"""The door by HTTP, and clients that misbehave at it."""

import hashlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from contract.errors import ConfigError
from contract.files import write_whole
from ingest.attestation import receiver as module
from ingest.attestation.receiver import Receiver, read_token, server_context

BODY = b"some evidence"
NAME = f"host1/{hashlib.sha256(BODY).hexdigest()}.evidence"


@pytest.fixture
def folder(tmp_path) -> Path:
    folder: Path = tmp_path / "drop"
    folder.mkdir()
    return folder


@pytest.fixture
def open_receiver(folder) -> Iterator[Callable[..., Receiver]]:
    opened: list[Receiver] = []

    def open_(**changed: Any) -> Receiver:
        settings = {"max_bytes": 1_000, "deadline_seconds": 20.0, **changed}
        opened.append(Receiver(folder, ("127.0.0.1", 0), **settings))
        return opened[-1]

    yield open_
    for receiver in opened:
        receiver.close()


def post(
    receiver: Receiver, body: bytes | None = BODY, path: str = "/evidence/host1", **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=20)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, body, named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()
    finally:
        connection.close()


def raw(receiver: Receiver, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
        return answer


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_body_is_a_whole_file_before_it_is_acknowledged(open_receiver, folder):
    receiver = open_receiver()
    assert post(receiver) == (202, hashlib.sha256(BODY).hexdigest())
    assert files(folder) == [NAME]
    assert (folder / NAME).read_bytes() == BODY
    assert post(receiver)[0] == 202
    assert files(folder) == [NAME]
    assert receiver.counts() == {}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/evidence",
        "/evidence/",
        "/evidence/a/b",
        "/evidence/taking",
        "/evidence/taken",
        "/evidence/set-aside",
        "/evidence/..",
        "/evidence/.hidden",
        "/evidence/%2e%2e",
        "/evidence/a?b",
        "/evidence/" + "a" * 256,
    ],
)
def test_only_names_that_can_be_hosts_are_folders(open_receiver, folder, path):
    receiver = open_receiver()
    assert post(receiver, path=path)[0] == 404
    assert files(folder) == []
    assert receiver.counts() == {"http_404": 1}
    assert receiver.counts() == {}


@pytest.mark.parametrize("size", [0, 1_001])
def test_a_body_of_no_bytes_or_too_many_is_refused_unread(open_receiver, folder, size):
    assert post(open_receiver(), bytes(size))[0] == 413
    assert files(folder) == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Transfer-Encoding: chunked\r\n", b"411"),
        (b"", b"411"),
        (b"Content-Length: many\r\n", b"411"),
        (b"Content-Length: -1\r\n", b"411"),
        (b"Content-Length: 99999999999999999999\r\n", b"411"),
        (b"Content-Length: 999999999999\r\n", b"413"),
    ],
)
def test_a_body_must_say_how_long_it_is(open_receiver, folder, head, status):
    answer = raw(
        open_receiver(), b"POST /evidence/host1 HTTP/1.1\r\n" + head + b"\r\n5\r\nhello\r\n0\r\n\r\n"
    )
    assert answer.split()[1] == status
    assert files(folder) == []


def test_other_methods_and_other_protocols_are_refused(open_receiver):
    receiver = open_receiver()
    assert raw(receiver, b"GET /evidence/host1 HTTP/1.1\r\n\r\n").split()[1] == b"501"
    assert b"400" in raw(receiver, b"\x16\x03\x01\x02\x00\r\n\r\n")
    assert b"431" in raw(receiver, b"POST / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n")


def test_a_body_that_ends_early_is_no_file(open_receiver, folder):
    receiver = open_receiver()
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=20) as connection:
        connection.sendall(b"POST /evidence/host1 HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100).split()[1] == b"408"
    assert files(folder) == []


@pytest.mark.parametrize(
    "beginning", [b"", b"POST /evi", b"POST /evidence/host1 HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf"]
)
def test_a_client_that_goes_on_for_ever_is_cut(open_receiver, folder, beginning):
    receiver = open_receiver(deadline_seconds=0.3)
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=20) as connection:
        connection.sendall(beginning)
        stop = threading.Event()

        def drip() -> None:
            try:
                while not stop.wait(0.05):
                    connection.sendall(b"x" if beginning else b"")
            except OSError:
                return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            while connection.recv(1_000):
                pass
        except ConnectionError:
            pass
        finally:
            stop.set()
            thread.join()
    assert files(folder) == []
    assert post(open_receiver())[0] == 202


def test_no_more_than_a_few_are_served_at_once_and_then_it_goes_on(open_receiver, monkeypatch):
    monkeypatch.setattr(module, "MOST_AT_ONCE", 2)
    receiver = open_receiver()
    held = [socket.create_connection(("127.0.0.1", receiver.port), timeout=20) for _ in range(2)]
    for connection in held:
        connection.sendall(b"POST /evidence/host1 HTTP/1.1\r\n")
    _until(lambda: not _is_served(receiver))
    for connection in held:
        connection.close()
    _until(lambda: _is_served(receiver))
    assert receiver.counts()["http_503"] >= 1


def _is_served(receiver: Receiver) -> bool:
    try:
        return post(receiver)[0] == 202
    except (ConnectionError, http.client.HTTPException):
        return False


def _until(condition: Callable[[], bool]) -> None:
    assert any(condition() for _ in range(500))


def test_a_token_must_be_shown_where_one_is_configured(open_receiver, folder):
    receiver = open_receiver(token="a token of some length")
    assert post(receiver)[0] == 401
    for shown in ("Bearer another", "a token of some length", "Bearer a token of some lengt\xe9"):
        assert post(receiver, Authorization=shown)[0] == 401
    assert files(folder) == []
    assert post(receiver, Authorization="Bearer a token of some length")[0] == 202


def test_nothing_more_is_taken_while_too_many_wait(open_receiver, folder, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    receiver = open_receiver()
    assert [post(receiver, bytes([n, 1]), f"/evidence/h{n}")[0] for n in range(3)] == [202, 202, 503]
    assert len(files(folder)) == 2


def test_many_folders_of_hosts_hide_nothing_that_waits(open_receiver, folder, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    for number in range(50):
        (folder / f"h{number}").mkdir()
        for waiting in ("a", "b") if number in (0, 49) else ():
            (folder / f"h{number}" / waiting).touch()
    assert post(open_receiver())[0] == 503


def test_what_was_taken_away_makes_room(open_receiver, folder, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 1)
    receiver = open_receiver()
    assert [post(receiver)[0] for _ in range(2)] == [202, 503]
    (folder / NAME).unlink()
    assert post(receiver)[0] == 202


def test_a_folder_that_is_removed_at_the_moment_of_storing_is_made_again(open_receiver, folder, monkeypatch):
    removed: list[Path] = []

    def write(path, body, mode):
        if not removed:
            removed.append(path.parent)
            path.parent.rmdir()
        write_whole(path, body, mode)

    monkeypatch.setattr("ingest.attestation.receiver.write_whole", write)
    assert post(open_receiver())[0] == 202
    assert removed == [folder / "host1"]
    assert files(folder) == [NAME]


def test_a_folder_that_cannot_be_written_is_told_to_the_sender(open_receiver, folder):
    receiver = open_receiver()
    folder.rmdir()
    assert post(receiver)[0] == 507
    assert receiver.counts() == {"http_507": 1}


def test_a_port_that_is_taken_is_told_at_the_start(open_receiver, folder):
    receiver = open_receiver()
    with pytest.raises(ConfigError, match=f"127.0.0.1:{receiver.port}"):
        Receiver(folder, ("127.0.0.1", receiver.port), max_bytes=1, deadline_seconds=1)


class Pki:
    """An authority that issued a server's certificate and a client's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.issue("ca", authority=True)
        self.issue("server")
        self.issue("client", subject="a sender", dns="host1")

    def issue(self, name: str, *, subject: str = "", dns: str = "localhost", authority: bool = False) -> None:
        key = self._key if authority else ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(self._name(subject or name))
            .issuer_name(self._name("ca"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(dns)]), critical=False)
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        self.path(name).write_bytes(certificate.public_bytes(Encoding.PEM))
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.path(name, "key").write_bytes(secret)

    def path(self, name: str, suffix: str = "crt") -> Path:
        return self.folder / f"{name}.{suffix}"

    def _name(self, name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def post_by_tls(receiver: Receiver, pki: Pki, *, known: bool = True, host: str = "host1") -> int:
    context = ssl.create_default_context(cafile=str(pki.path("ca")))
    if known:
        context.load_cert_chain(pki.path("client"), pki.path("client", "key"))
    connection = http.client.HTTPSConnection("localhost", receiver.port, timeout=20, context=context)
    try:
        connection.request("POST", f"/evidence/{host}", BODY)
        return connection.getresponse().status
    finally:
        connection.close()


def test_by_mutual_tls_only_senders_of_the_authority_are_served(open_receiver, folder, tmp_path):
    pki = Pki(tmp_path)
    context = server_context(pki.path("server"), pki.path("server", "key"), pki.path("ca"))
    receiver = open_receiver(tls=context)
    assert post_by_tls(receiver, pki, known=True) == 202
    (folder / NAME).unlink()
    with pytest.raises((OSError, http.client.HTTPException)):
        post_by_tls(receiver, pki, known=False)
    with pytest.raises((OSError, http.client.HTTPException)):
        post(receiver)
    assert files(folder) == []
    assert post_by_tls(receiver, pki, known=True) == 202
    assert receiver.counts()["http_400"] >= 1


def test_by_mutual_tls_a_sender_speaks_for_the_hosts_of_its_certificate_alone(
    open_receiver, folder, tmp_path
):
    pki = Pki(tmp_path)
    pki.issue("client", subject="host1", dns="host2")
    receiver = open_receiver(
        tls=server_context(pki.path("server"), pki.path("server", "key"), pki.path("ca"))
    )
    hosts = ["host1", "host2", "host3", "localhost", "HOST1", "host"]
    assert [post_by_tls(receiver, pki, host=host) for host in hosts] == [202, 202, 403, 403, 403, 403]
    assert {name.split("/")[0] for name in files(folder)} == {"host1", "host2"}
    assert receiver.counts() == {"http_403": 4}


def test_by_tls_without_an_authority_of_senders_any_host_may_be_named(open_receiver, tmp_path):
    pki = Pki(tmp_path)
    receiver = open_receiver(tls=server_context(pki.path("server"), pki.path("server", "key"), None))
    assert post_by_tls(receiver, pki, known=False, host="host3") == 202


class TlsClient:
    """The client's end of TLS, so that a test decides when which byte is sent."""

    def __init__(self, receiver: Receiver, pki: Pki) -> None:
        context = ssl.create_default_context(cafile=str(pki.path("ca")))
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self.connection = socket.create_connection(("127.0.0.1", receiver.port), timeout=20)

    def hello(self) -> bytes:
        """Return the first message of a handshake."""
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._out.read()

    def shake_hands(self) -> None:
        self.connection.sendall(self.hello())
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._in.write(self.connection.recv(65_536))
        self.connection.sendall(self._out.read())

    def seal(self, text: bytes) -> bytes:
        """Return what is sent for a text."""
        self._tls.write(text)
        return self._out.read()

    def drip(self, parts: Iterator[bytes]) -> int:
        """Send part after part, each long before a socket would time out, until cut; return how many."""
        sent = 0
        with self.connection:
            self.connection.settimeout(0.02)
            for part in parts:
                try:
                    self.connection.sendall(part)
                    while self.connection.recv(65_536):
                        pass
                    return sent
                except TimeoutError:
                    sent += 1
                except OSError:
                    return sent
        return sent


@pytest.fixture
def slow_client(open_receiver, tmp_path) -> TlsClient:
    pki = Pki(tmp_path)
    context = server_context(pki.path("server"), pki.path("server", "key"), None)
    return TlsClient(open_receiver(tls=context, deadline_seconds=0.4), pki)


MANY = 200


def test_a_client_that_drips_its_tls_handshake_is_cut(slow_client):
    hello = slow_client.hello()
    assert len(hello) > MANY
    assert slow_client.drip(hello[at : at + 1] for at in range(MANY)) < MANY


def test_a_client_that_drips_its_request_behind_a_tls_handshake_is_cut(slow_client, folder):
    slow_client.shake_hands()
    head = slow_client.seal(b"POST /evidence/host1 HTTP/1.1\r\nContent-Length: 900\r\n\r\n")
    body = (slow_client.seal(b"x") for _ in range(MANY))
    assert slow_client.drip(chain([head], body)) < MANY
    assert files(folder) == []


@pytest.mark.parametrize(
    "text",
    [b"", b"short", b"x" * 5_000, "ein Schlüssel von etwas Länge".encode(), b"two lines of\na token there"],
)
def test_a_token_file_without_a_good_token_is_refused(tmp_path, text):
    (tmp_path / "token").write_bytes(text)
    with pytest.raises(ConfigError, match="at least 16"):
        read_token(tmp_path / "token")


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ConfigError, match="token"):
        read_token(tmp_path / "token")
    with pytest.raises(ConfigError, match="chain"):
        server_context(tmp_path / "chain", tmp_path / "key", None)
