"""Sessions, passwords and TLS of a Redfish service, and answers that are none."""

import ipaddress
import logging
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from contract.clock import SystemClock
from contract.errors import CollectError, ConfigError
from ingest.coolant.redfish_client import RedfishClient, RedfishConfig, checked_path
from ingest.coolant.testing import SpoiltServer, drip, forget, nest, pour, refused_url
from twin.redfish import RedfishServers, Service

SESSIONS = "/redfish/v1/SessionService/Sessions"
DOCUMENTS = {"/redfish/v1": {"Name": "root"}, "/redfish/v1/Chassis": {"Name": "chassis"}}


def make_config(url, tmp_path, **settings):
    if "username" in settings:
        (tmp_path / "password").write_text("secret\n")
        settings["password_file"] = tmp_path / "password"
    return RedfishConfig(collector="coolant-redfish", equipment="cdu-1", url=url, **settings)


@pytest.fixture
def served():
    return Service(DOCUMENTS.get, users={"hallwatch": "secret"}, max_sessions=2)


@pytest.fixture
def url(served):
    with RedfishServers([served]) as servers:
        yield servers.urls[0]


@pytest.fixture
def client(url, tmp_path):
    clients = []

    def make(**settings):
        config = make_config(url, tmp_path, **{"username": "hallwatch", **settings})
        clients.append(RedfishClient(config, SystemClock()))
        clients[-1].start()
        return clients[-1]

    yield make
    for one in clients:
        one.close()


def test_one_session_serves_all_requests_and_is_closed_at_the_end(served, client):
    one = client()
    for _ in range(3):
        assert one.get("/redfish/v1/Chassis")["Name"] == "chassis"
    session = one.session
    assert list(served.sessions) == [session]
    one.close()
    assert served.sessions == {}
    logins = [line for line in served.asked if "Sessions" in line]
    assert logins == [f"POST {SESSIONS}", f"DELETE {session}"]


def test_a_session_that_expired_is_renewed_and_the_request_asked_again(served, client):
    one = client()
    one.get("/redfish/v1/Chassis")
    served.sessions.clear()
    assert one.get("/redfish/v1/Chassis")["Name"] == "chassis"
    assert len(served.sessions) == 1


def test_closing_a_session_that_is_gone_is_no_error_and_no_word(served, client, caplog):
    one = client()
    one.get("/redfish/v1/Chassis")
    served.sessions.clear()
    with caplog.at_level(logging.WARNING):
        one.close()  # the service answers 401
    assert caplog.records == []


def test_where_all_sessions_are_taken_the_password_goes_along_instead(served, client):
    served.sessions = {"/a": "1", "/b": "2"}
    one = client()
    assert one.get("/redfish/v1/Chassis")["Name"] == "chassis"
    assert one.get("/redfish/v1/Chassis")["Name"] == "chassis"
    assert one.refused == 1  # one try a round, no more
    served.sessions.clear()
    one.start()
    one.get("/redfish/v1/Chassis")
    assert (one.refused, len(served.sessions)) == (0, 1)


def test_basic_authentication_opens_no_session(served, client):
    one = client(auth="basic")
    assert one.get("/redfish/v1/Chassis")["Name"] == "chassis"
    assert served.sessions == {}
    assert not any(line.startswith("POST") for line in served.asked)


def test_a_wrong_password_is_an_error_that_does_not_show_it(served, client):
    served.users = {"hallwatch": "another"}
    with pytest.raises(CollectError) as caught:
        client().get("/redfish/v1/Chassis")
    assert caught.value.reason == "bad_status"
    assert "secret" not in str(caught.value)


def test_the_session_that_a_killed_process_left_is_closed_by_the_next(served, client):
    dead = client()
    dead.get("/redfish/v1/Chassis")
    left, dead.session = dead.session, None  # as if it had been killed
    one = client()
    one.left_behind = left
    one.get("/redfish/v1/Chassis")
    assert list(served.sessions) == [one.session]


def test_a_service_that_forgets_its_sessions_is_given_no_more_than_two_in_a_round(tmp_path):
    asked = []

    def answer(connection, request):
        asked.append(request)
        forget(connection, request)

    server = SpoiltServer(answer)
    client = RedfishClient(make_config(server.url, tmp_path, username="hallwatch"), SystemClock())
    client.start()
    for _ in range(4):
        with pytest.raises(CollectError, match="status 401"):
            client.get("/redfish/v1/Chassis")
    assert sum(request.startswith(b"POST") for request in asked) == 2
    client.close()
    server.close()


@pytest.mark.parametrize(
    ("answer", "reasons"),
    [(drip, {"timeout"}), (pour, {"too_large"}), (nest, {"unreadable"})],
    ids=["drips", "has no end", "is 10,000 levels deep"],
)
def test_an_answer_that_is_none_is_a_typed_error(answer, reasons, tmp_path):
    server = SpoiltServer(answer)
    config = make_config(server.url, tmp_path, timeout_seconds=0.5 if answer is drip else 20)
    client = RedfishClient(config, SystemClock())
    client.start()
    with pytest.raises(CollectError) as caught:
        client.get("/redfish/v1/")
    assert caught.value.reason in reasons
    client.close()
    server.close()


def test_a_service_that_is_not_there_is_unreachable(tmp_path):
    client = RedfishClient(make_config(refused_url(), tmp_path), SystemClock())
    client.start()
    with pytest.raises(CollectError) as caught:
        client.get("/redfish/v1/")
    assert caught.value.reason == "unreachable"
    client.close()


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'"x"', b"{", b"\xff\xfe", b'{"a": NaN}'])
def test_a_body_that_is_no_json_object_is_unreadable(body, tmp_path):
    def answer(connection, _request):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    server = SpoiltServer(answer)
    client = RedfishClient(make_config(server.url, tmp_path), SystemClock())
    client.start()
    with pytest.raises(CollectError) as caught:
        client.get("/redfish/v1/")
    assert caught.value.reason == "unreadable"
    client.close()
    server.close()


@pytest.mark.parametrize(
    ("link", "path"),
    [
        ("/redfish/v1/Chassis/1", "/redfish/v1/Chassis/1"),
        ("/redfish/v1/Chassis/1#/Status", "/redfish/v1/Chassis/1"),
        ("//elsewhere.example/redfish", None),
        ("http://elsewhere.example/redfish", None),
        ("/redfish/v1/a b", None),
        ("/redfish/v1/a\r\nX-Evil: 1", None),
        ("/redfish/v1/ä", None),
        ("/" + "a" * 2_000, None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_only_addresses_on_the_same_service_are_followed(link, path):
    assert checked_path(link) == path


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "https://10.0.0.1/redfish/v1"}, "only scheme, host and port"),
        ({"url": "https://10.0.0.1", "username": "u"}, "belong together"),
        ({"url": "http://10.0.0.1", "username": "u", "password_file": "p"}, "without TLS"),
        ({"url": "https://u:p@10.0.0.1"}, "leave them out"),
    ],
)
def test_a_configuration_that_would_not_work_or_not_be_safe_is_refused(settings, words):
    with pytest.raises(ValidationError, match=words):
        RedfishConfig(collector="coolant-redfish", equipment="cdu-1", **settings)


@pytest.mark.parametrize("key", ["ca_file", "password_file"])
def test_a_file_of_the_configuration_that_is_not_there_is_named(key, tmp_path):
    settings = {key: tmp_path / "missing"} | ({"username": "u"} if key == "password_file" else {})
    config = RedfishConfig(collector="coolant-redfish", equipment="cdu-1", url="https://10.0.0.1", **settings)
    with pytest.raises(ConfigError, match=f"{key} .*missing"):
        RedfishClient(config, SystemClock())


@pytest.fixture
def certificate(tmp_path):
    """Return a server's TLS context with a certificate of its own, and that certificate's file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "unit")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(7)
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    (tmp_path / "ca.pem").write_bytes(made.public_bytes(pem))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    return tls, tmp_path / "ca.pem"


def test_a_unit_is_believed_only_where_its_certificate_is_known(certificate, tmp_path):
    tls, ca_file = certificate
    with RedfishServers([Service(DOCUMENTS.get)], tls=tls) as servers:
        known = RedfishClient(make_config(servers.urls[0], tmp_path, ca_file=ca_file), SystemClock())
        known.start()
        assert known.get("/redfish/v1/Chassis")["Name"] == "chassis"
        known.close()
        unknown = RedfishClient(make_config(servers.urls[0], tmp_path), SystemClock())
        unknown.start()
        with pytest.raises(CollectError, match="certificate") as caught:
            unknown.get("/redfish/v1/Chassis")
        assert caught.value.reason == "unreachable"
        unknown.close()
