"""TLS and SASL to a real broker: what is configured rightly gets through, and what is wrong does not."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from binlog.runtime.fields import TopicSection
from binlog.topic.kafka import KafkaWriter
from binlog.topic.message import Outgoing, TopicError, TopicMessage, encode
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from drainer.sink.errors import DestinationRefused
from drainer.sink.kafka.settings.connection import KafkaConnectionSection
from drainer.sink.kafka.topics import admin
from tests.integration.pump.test_kafka_topic import opened
from tests.support.certificates import Authority, Pair
from tests.support.kafka import Broker, running_kafka
from tests.support.servers import answers, free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration]
SECRET = "client-s3cret"


@dataclass
class Secured:
    broker: Broker
    topic: str
    ca: Authority
    stranger: Authority
    client: Pair
    ports: dict[str, int]
    token_url: str

    def produce(self, listener: str, security: dict[str, Any]) -> str:
        """ "" when a record got through, else what the client was told."""
        settings = {"addresses": [f"127.0.0.1:{self.ports[listener]}"], "topic": "t", "security": security}
        section = KafkaConnectionSection.model_validate(settings, by_alias=True, by_name=False)
        section.check()
        told: list[str] = []
        client = {**section.client_settings("test"), "error_cb": lambda error: told.append(str(error)), "log_level": 0}
        producer = Producer({**client, "message.timeout.ms": 60_000})
        delivered: list[KafkaError | None] = []
        producer.produce(self.topic, b"x", on_delivery=lambda error, _: delivered.append(error))
        try:
            for _ in range(600):
                producer.poll(0.1)
                if delivered:
                    return str(delivered[0] or "")
                if told:  # the library goes on trying, the sink would wait; here the reason is what is looked for
                    return told[0]
        finally:
            producer.purge()
        raise AssertionError("neither delivered nor told why within a minute")


class _Tokens(BaseHTTPRequestHandler):
    """An OAuth 2 token endpoint that gives tokens without a signature, which this test's broker takes."""

    def do_POST(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        if base64.b64decode(given).decode() != f"drainer:{SECRET}":
            self.send_error(401)
            return
        parts = ({"alg": "none"}, {"sub": "drainer", "iat": 1, "exp": 4_000_000_000})
        token = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        body = json.dumps({"access_token": f"{token}.", "token_type": "Bearer", "expires_in": 3600}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory: Path = tmp_path_factory.mktemp("certificates")
    ca, stranger = Authority(directory), Authority(directory, "stranger")
    server, client = ca.issue("broker"), ca.issue("client")
    store = directory / "broker-store.pem"
    store.write_bytes(server.key.read_bytes() + server.cert.read_bytes())
    ports = {name: free_port() for name in ("MUTUAL", "PASSWORDS", "OAUTH")}
    listeners = {
        "MUTUAL": ("SSL", ports["MUTUAL"]),
        "PASSWORDS": ("SASL_SSL", ports["PASSWORDS"]),
        "OAUTH": ("SASL_PLAINTEXT", ports["OAUTH"]),
    }
    plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="open sesame";'
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    package = "org.apache.kafka.common.security.oauthbearer"
    oauth = f'{package}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    lines = [
        f"ssl.keystore.type=PEM\nssl.keystore.location={store}",
        f"ssl.truststore.type=PEM\nssl.truststore.location={ca.ca}",
        "listener.name.mutual.ssl.client.auth=required",
        "listener.name.passwords.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"listener.name.passwords.plain.sasl.jaas.config={plain}",
        f"listener.name.passwords.scram-sha-256.sasl.jaas.config={scram}",
        f"listener.name.passwords.scram-sha-512.sasl.jaas.config={scram}",
        "listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER",
        f"listener.name.oauth.oauthbearer.sasl.jaas.config={oauth}",
    ]
    tokens = ThreadingHTTPServer(("127.0.0.1", 0), _Tokens)
    threading.Thread(target=tokens.serve_forever, daemon=True).start()
    try:
        with running_kafka(lines, listeners) as broker:
            wait_until(lambda: all(map(answers, ports.values())), what="each listener listens")
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                entry = UserScramCredentialUpsertion("bob", ScramCredentialInfo(mechanism, 4096), b"pencil", None)
                broker.admin.alter_user_scram_credentials([entry])["bob"].result(60)
            url = f"http://127.0.0.1:{tokens.server_port}/token"
            yield Secured(broker, broker.topic(name="secured"), ca, stranger, client, ports, url)
    finally:
        tokens.shutdown()
        tokens.server_close()


def test_client_certificate_is_accepted_and_its_absence_refused(secured: Secured) -> None:
    files = {"ca": str(secured.ca.ca), "cert": str(secured.client.cert), "key": str(secured.client.key)}
    assert secured.produce("MUTUAL", files) == ""
    assert secured.produce("MUTUAL", {"ca": str(secured.ca.ca)})


def test_broker_certificate_of_another_authority_is_refused_unless_unverified(secured: Secured) -> None:
    alice = {"sasl-user": "alice", "sasl-password": "open sesame"}
    assert "certificate" in secured.produce("PASSWORDS", {**alice, "ca": str(secured.stranger.ca)}).lower()
    assert secured.produce("PASSWORDS", {**alice, "insecure-skip-verify": True}) == ""


def test_wrong_sasl_password_is_refused_without_retry(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps the reason to itself while metadata are asked for."""
    monkeypatch.setattr(admin, "_ANSWER_S", 2.0)  # each question lasts as long as that
    port = secured.ports["PASSWORDS"]
    wrong = {"ca": str(secured.ca.ca), "sasl-user": "alice", "sasl-password": "crayon"}
    settings = {"addresses": [f"127.0.0.1:{port}"], "topic": "t", "security": wrong}
    section = KafkaConnectionSection.model_validate(settings, by_alias=True, by_name=False)
    asked = admin.Topics(section.client_settings("test"), f"127.0.0.1:{port}", 240.0, threading.Event())
    with pytest.raises(DestinationRefused, match=r"Invalid username or password.*user, password or") as told:
        asked.counts()
    assert "crayon" not in str(told.value)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_accepts_right_and_refuses_wrong_password(secured: Secured, mechanism: str) -> None:
    bob = {"ca": str(secured.ca.ca), "sasl-mechanism": mechanism, "sasl-user": "bob"}
    assert secured.produce("PASSWORDS", {**bob, "sasl-password": "pencil"}) == ""
    assert "authentication" in secured.produce("PASSWORDS", {**bob, "sasl-password": "crayon"}).lower()


def test_sasl_plain_accepts_right_and_refuses_wrong_password(secured: Secured) -> None:
    alice = {"ca": str(secured.ca.ca), "sasl-user": "alice"}
    assert secured.produce("PASSWORDS", {**alice, "sasl-password": "open sesame"}) == ""
    assert "authentication" in secured.produce("PASSWORDS", {**alice, "sasl-password": "open"}).lower()


def test_topic_of_pump_is_written_and_read_over_tls_with_scram(secured: Secured) -> None:
    def settings(password: str) -> dict[str, str]:
        client = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(secured.ca.ca)}
        user = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "bob", "sasl.password": password}
        address = f"127.0.0.1:{secured.ports['PASSWORDS']}"
        return TopicSection.model_validate({"addresses": [address], "client": {**client, **user}}).client_settings()

    refused = KafkaWriter(settings("crayon"), "of-a-pump", 1_000_000)
    with pytest.raises(TopicError, match="uthentication"):
        refused.open()
    writer = KafkaWriter(settings("pencil"), "of-a-pump", 1_000_000)
    assert opened(writer) is None
    value = encode(TopicMessage(1, 0, 9 << 18))
    writer.send([Outgoing(9 << 18, value)])
    assert opened(writer) == value
    writer.close()


def test_oauth_token_is_requested_with_decoded_secret(secured: Secured) -> None:
    def told(secret: str) -> str:
        return secured.produce(
            "OAUTH",
            {
                "sasl-mechanism": "OAUTHBEARER",
                "sasl-oauth-client-id": "drainer",
                "sasl-oauth-client-secret": base64.b64encode(secret.encode()).decode(),
                "sasl-oauth-token-url": secured.token_url,
            },
        )

    assert told(SECRET) == ""
    assert told("another") != ""
