"""A cluster that checks who asks: logins over TLS, certificates, and rights that are missing, taken and given back."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import kafka
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from contract.bus import Consumer, TopicPartition
from contract.bus.kafka import client as kafka_client
from contract.bus.kafka.bus import KafkaBus
from contract.config import BusSection
from contract.errors import TransportError
from tests.suites.broker import Broker
from tests.suites.bus_suite import Assigned, read_all, record, send_all, stream_of, texts

pytestmark = pytest.mark.integration

PATIENCE_SECONDS = 60.0
PASSWORDS = {"admin": "one", "ingest": "two", "sink": "three"}
SETTINGS = """\
listener.security.protocol.map=SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.crt
listener.name.ssl.ssl.client.auth=required
listener.name.controller.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/,DEFAULT
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin;User:broker
allow.everyone.if.no.acl.found=false
"""


class Authority:
    """Issues certificates into a folder: NAME.crt and NAME.key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = named("test authority")
        basic = x509.BasicConstraints(ca=True, path_length=None)
        builder = blank(self._name, self._name, self._key).add_extension(basic, critical=True)
        self.write("ca", builder.sign(self._key, hashes.SHA256()), self._key)

    def issue(self, name: str) -> None:
        """Issue a certificate for a name, good for a server on loopback as for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
        )
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = blank(named(name), self._name, key).add_extension(addresses, critical=False)
        builder = builder.add_extension(uses, critical=False)
        self.write(name, builder.sign(self._key, hashes.SHA256()), key)

    def write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
        (self.folder / f"{name}.key").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def blank(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))


class Cluster:
    """A broker with users, and the files that they log in with."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder, self.broker = folder, broker
        for user, password in PASSWORDS.items():
            (folder / f"{user}.password").write_text(password + "\n")

    def section(self, user: str, **changes: Any) -> BusSection:
        """Return how a user logs in with a password."""
        keys: dict[str, Any] = {
            "kind": "kafka",
            "servers": self.broker.servers,
            "ca_file": self.folder / "ca.crt",
            "username": user,
            "password_file": self.folder / f"{user}.password",
        }
        return BusSection(**{name: value for name, value in (keys | changes).items() if value is not None})

    def section_tls(self, name: str | None) -> BusSection:
        """Return how the owner of a certificate logs in, or somebody without one."""
        files: dict[str, Any] = {}
        if name is not None:
            files = {"certificate_file": self.folder / f"{name}.crt", "key_file": self.folder / f"{name}.key"}
        servers = self.broker.address("SSL")
        return BusSection(kind="kafka", servers=servers, ca_file=self.folder / "ca.crt", **files)

    def admin(self) -> kafka.KafkaAdminClient:
        return kafka.KafkaAdminClient(**kafka_client.client_settings(self.section("admin")))

    def grant(
        self, user: str, operation: ACLOperation, name: str, kind: ResourceType = ResourceType.TOPIC
    ) -> None:
        right = ACL(
            principal=f"User:{user}",
            host="*",
            operation=operation,
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(kind, name, ACLResourcePatternType.LITERAL),
        )
        with closing(self.admin()) as admin:
            assert admin.create_acls([right])["failed"] == []

    def revoke(self, user: str, name: str) -> None:
        rights = ACLFilter(
            principal=f"User:{user}",
            host="*",
            operation=ACLOperation.ANY,
            permission_type=ACLPermissionType.ANY,
            resource_pattern=ResourcePatternFilter(ResourceType.TOPIC, name, ACLResourcePatternType.LITERAL),
        )
        with closing(self.admin()) as admin:
            [(_, revoked, _)] = admin.delete_acls([rights])
            assert revoked


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, start_broker: Callable[..., Broker]
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("secure")
    authority = Authority(folder)
    for name in ("broker", "ingest"):
        authority.issue(name)
    chain = [(folder / name).read_text() for name in ("broker.key", "broker.crt", "ca.crt")]
    (folder / "broker.pem").write_text("".join(chain))
    settings = dict(line.split("=", 1) for line in SETTINGS.format(folder=folder).splitlines())
    with start_broker(
        folder / "data", listeners=("SASL_SSL", "SSL"), settings=settings, scram=PASSWORDS
    ) as broker:
        yield Cluster(folder, broker)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic that only the administrator may use."""
    stream = stream_of(1)
    with closing(KafkaBus(cluster.section("admin"))) as bus:
        bus.ensure_topics([stream])
        send_all(bus, stream.topic, 0, ["first"])
    return stream.topic


def reason_of(call: Callable[[], object]) -> str:
    with pytest.raises(TransportError) as caught:
        call()
    return caught.value.reason


def start_reading(consumer: Consumer, topic: str) -> None:
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), 0)


def poll_until_denied(consumer: Consumer) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            assert consumer.poll(0.2) == []
        except TransportError as error:
            if error.reason == "denied":
                return
            raise
    raise AssertionError("nothing was denied")


# Who has the rights.


def test_users_with_the_rights_write_and_read_as_a_group(cluster: Cluster, topic: str) -> None:
    cluster.grant("ingest", ACLOperation.WRITE, topic)
    cluster.grant("sink", ACLOperation.READ, topic)
    cluster.grant("sink", ACLOperation.READ, f"group-{topic}", ResourceType.GROUP)
    with closing(KafkaBus(cluster.section("ingest"))) as bus:
        bus.ensure_topics([])
        send_all(bus, topic, 0, ["second"])
    with (
        closing(KafkaBus(cluster.section("sink"))) as bus,
        closing(bus.consumer(f"group-{topic}")) as consumer,
    ):
        consumer.subscribe([topic], Assigned(consumer))
        assert texts(read_all(consumer, 2)) == ["first", "second"]
        consumer.commit({TopicPartition(topic, 0): 2})
        assert bus.committed(f"group-{topic}") == {TopicPartition(topic, 0): 2}


def test_a_certificate_says_who_somebody_is(cluster: Cluster, topic: str) -> None:
    cluster.grant("ingest", ACLOperation.WRITE, topic)
    with closing(KafkaBus(cluster.section_tls("ingest"))) as bus:
        send_all(bus, topic, 0, ["second"])
        assert bus.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 2}


# Whose rights are missing.


def test_who_may_see_nothing_is_told_so_at_the_start(cluster: Cluster, topic: str) -> None:
    stream = stream_of(1)
    with (
        closing(KafkaBus(cluster.section("sink"))) as bus,
        closing(bus.consumer("sink")) as consumer,
        closing(bus.producer()) as producer,
    ):
        assert reason_of(lambda: consumer.assign([TopicPartition(topic, 0)])) == "denied"
        assert reason_of(lambda: consumer.subscribe([topic], Assigned(consumer))) == "denied"
        assert reason_of(lambda: producer.send(topic, 0, record("x"))) == "denied"
        with pytest.raises(TransportError, match=stream.topic) as caught:
            bus.ensure_topics([stream])
        assert caught.value.reason == "denied"


def test_who_may_write_and_not_read_is_told_so(cluster: Cluster, topic: str) -> None:
    cluster.grant("ingest", ACLOperation.WRITE, topic)
    with closing(KafkaBus(cluster.section("ingest"))) as bus, closing(bus.consumer("x")) as consumer:
        start_reading(consumer, topic)
        poll_until_denied(consumer)


def test_who_may_read_and_not_as_this_group_is_told_so(cluster: Cluster, topic: str) -> None:
    cluster.grant("sink", ACLOperation.READ, topic)
    with closing(KafkaBus(cluster.section("sink"))) as bus, closing(bus.consumer("other")) as consumer:
        consumer.subscribe([topic], Assigned(consumer))
        poll_until_denied(consumer)


def test_who_may_read_and_not_write_loses_the_producer_and_a_new_one_writes_when_allowed(
    cluster: Cluster, topic: str
) -> None:
    cluster.grant("sink", ACLOperation.READ, topic)
    with closing(KafkaBus(cluster.section("sink"))) as bus:
        assert reason_of(lambda: send_all(bus, topic, 0, ["x"])) == "denied"
        cluster.grant("sink", ACLOperation.WRITE, topic)
        send_all(bus, topic, 0, ["second"])
        assert bus.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 2}


def test_a_right_taken_from_a_reader_is_told_and_given_back_it_goes_on(cluster: Cluster, topic: str) -> None:
    cluster.grant("sink", ACLOperation.READ, topic)
    with closing(KafkaBus(cluster.section("sink"))) as bus, closing(bus.consumer("x")) as consumer:
        start_reading(consumer, topic)
        read_all(consumer, 1)
        cluster.revoke("sink", topic)
        poll_until_denied(consumer)
        cluster.grant("sink", ACLOperation.READ, topic)
        with closing(KafkaBus(cluster.section("admin"))) as other:
            send_all(other, topic, 0, ["second"])
        found: list[str] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not found and time.monotonic() < deadline:
            try:
                found += texts(consumer.poll(0.2))
            except TransportError as error:
                if error.reason != "denied":
                    raise
        assert found == ["second"]


# Who is not let in.


# The client leaves the sockets of failed handshakes to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.parametrize(
    "stranger",
    ["wrong password", "unknown user", "no TLS", "another authority", "no certificate"],
)
def test_who_is_not_let_in_hears_it_soon_and_where_to_look(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: str
) -> None:
    monkeypatch.setitem(kafka_client._SETTINGS, "bootstrap_timeout_ms", 1_500)
    (tmp_path / "wrong").write_text("wrong")
    Authority(tmp_path)
    section = {
        "wrong password": cluster.section("ingest", password_file=tmp_path / "wrong"),
        "unknown user": cluster.section("nobody", password_file=tmp_path / "wrong"),
        "no TLS": cluster.section("ingest", ca_file=None, username=None, password_file=None),
        "another authority": cluster.section("ingest", ca_file=tmp_path / "ca.crt"),
        "no certificate": cluster.section_tls(None),
    }[stranger]
    with closing(KafkaBus(section)) as bus, pytest.raises(TransportError) as caught:
        bus.describe("t")
    gc.collect()
    assert caught.value.reason in ("unreachable", "denied")
    assert cluster.broker.address("SSL" if stranger == "no certificate" else "SASL_SSL") in str(caught.value)
    assert ("its log says why" in str(caught.value)) is (stranger != "no TLS")
    if stranger == "wrong password":
        assert "invalid credentials" in cluster.broker.log()
    if stranger == "another authority":
        assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value)
