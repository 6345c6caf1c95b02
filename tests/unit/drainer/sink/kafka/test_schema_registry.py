"""The registry's client, against registries in this process that answer as they are told."""

from __future__ import annotations

import json
import pickle
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from binlog.errors import ConfigError

from drainer.protocol.encoder import RequiredSchema, fingerprint
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.kafka.schema_registry import (
    RegistryAnswer,
    RegistryHttp,
    RegistrySection,
    SchemaRefused,
    SchemaRegistry,
)
from drainer.sink.kafka.settings.section import KafkaSection
from tests.support.certificates import Authority
from tests.support.http_registry import Registry, serving
from tests.support.servers import free_port

SCHEMA = '{"type":"record","name":"t","fields":[]}'


def client(registry: Registry, *, wait_s: float = 60, user: str = "", token: str = "") -> SchemaRegistry:
    url = registry.url.replace("//", f"//{user}@") if user else registry.url
    return SchemaRegistry(url, RegistrySection(bearer_auth_token=token), wait_s=wait_s)


def test_schema_is_registered_once_and_looked_up_once() -> None:
    with serving(Registry()) as served:
        ours = client(served)
        required = [RequiredSchema("a b/c-key", SCHEMA), RequiredSchema("v", SCHEMA.replace('"t"', '"u"'))]
        ids = ours.register_all(required)
        assert ids == {one.subject: {one.fingerprint: n} for n, one in enumerate(required, 1)}
        assert ours.register_all(required) == ids == ours.ids
        assert [ours.schema(1) for _ in range(3)] == [SCHEMA] * 3
    assert [(method, path) for method, path, _, _ in served.requests] == [
        ("POST", "/subjects/a%20b%2Fc-key/versions"),
        ("POST", "/subjects/v/versions"),
        ("GET", "/schemas/ids/1"),
    ]
    body, headers = served.requests[0][2:]
    assert body.decode() == json.dumps({"schema": SCHEMA}, separators=(",", ":"))
    assert headers["content-type"] == "application/vnd.schemaregistry.v1+json"
    assert headers["accept"].startswith("application/vnd.schemaregistry.v1+json")
    assert pickle.loads(pickle.dumps(ids)) == ids


def test_same_schema_is_registered_under_each_of_two_subjects() -> None:
    with serving(Registry()) as served:
        ids = client(served).register_all([RequiredSchema("a", SCHEMA), RequiredSchema("b", SCHEMA)])
    assert ids == {"a": {fingerprint(SCHEMA): 1}, "b": {fingerprint(SCHEMA): 1}}
    assert len(served.requests) == 2


@pytest.mark.parametrize("status", [409, 422])
def test_refused_schema_error_has_subject_schema_and_registry_message(status: int) -> None:
    words = "Schema being registered is incompatible: reader field 'b' has no default"
    with (
        serving(Registry(deque([(status, json.dumps({"error_code": 42201, "message": words}))]))) as served,
        pytest.raises(SchemaRefused) as caught,
    ):
        client(served).register("s-value", SCHEMA)
    assert len(served.requests) == 1
    for part in ("s-value", SCHEMA, words, str(status), 'topic = "{schema}_{table}" in [[syncer.to.dispatchers]]'):
        assert part in str(caught.value)


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_register_is_retried_after_temporary_http_errors(status: int) -> None:
    with serving(Registry(deque([(status, "later")] * 3))) as served:
        assert client(served).register("s", SCHEMA) == 1
    assert len(served.requests) == 4


def test_registry_that_keeps_failing_is_given_up_at_deadline() -> None:
    with (
        serving(Registry(deque([(500, "never")] * 10_000))) as served,
        pytest.raises(DestinationDown, match="HTTP 500: never"),
    ):
        client(served, wait_s=0.2).register("s", SCHEMA)
    assert len(served.requests) >= 2


def test_unreachable_registry_is_reported_with_its_url() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(DestinationDown, match=url):
        SchemaRegistry(url, wait_s=0.1).check()


REGISTERED, CHECKED, FOUND = (
    lambda ours: ours.register("s", SCHEMA),
    SchemaRegistry.check,
    lambda ours: ours.schema(7),
)


@pytest.mark.parametrize(
    ("ask", "status", "answers", "error", "words"),
    [
        (
            REGISTERED,
            200,
            ["no json", "[]", '{"id":0}', '{"id":"1"}', '{"id":true}', "{}", "null", '{"id":-1}'],
            DestinationRefused,
            "schema registry",
        ),
        (CHECKED, 200, ["{}", '["JSON"]', "[]", "null", "<html>"], DestinationRefused, "registry"),
        (
            FOUND,
            200,
            ['{"schema":"{}","schemaType":"JSON"}', '{"schema":7}', "[]"],
            DestinationRefused,
            "schema registry",
        ),
        (FOUND, 404, ['{"error_code":40403}'], LookupError, "no schema has the id 7"),
        (REGISTERED, 403, ["<h1>not you</h1>"], RegistryAnswer, "HTTP 403: <h1>not you</h1>"),
        (
            CHECKED,
            404,
            ["404 page not found"],
            DestinationRefused,
            "HTTP 404: 404 page not found: schema-registry must be the URL at",
        ),
    ],
)
def test_answer_other_than_a_registrys_is_refused_at_once(
    ask: Callable[[SchemaRegistry], object], status: int, answers: list[str], error: type[Exception], words: str
) -> None:
    for answer in answers:
        with serving(Registry(deque([(status, answer)]))) as served, pytest.raises(error, match=words):
            ask(client(served))
        assert len(served.requests) == 1


def test_registry_access_with_user_in_url_or_token_is_authorized() -> None:
    with serving(Registry(authorization="Basic dTpwOnc=")) as served:
        plain = served.url
        with pytest.raises(RegistryAnswer, match=r"HTTP 401.*who are you"):
            client(served).check()
        assert len(served.requests) == 1
        client(served, user="u:p%3Aw").check()
        served.url = plain.replace("//", "//u:p%3Aw@")
        served.authorization = "Bearer secret"
        client(served, token="secret").check()


def test_registry_section_passes_tls_files_and_bearer_token(tmp_path: Path) -> None:
    """As `[syncer.to.registry]` has them."""
    authority = Authority(tmp_path)
    server, ours = authority.issue("server"), authority.issue("client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca))
    context.load_cert_chain(server.cert, server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    settings = {
        "ssl-ca-location": str(authority.ca),
        "ssl-certificate-location": str(ours.cert),
        "ssl-key-location": str(ours.key),
        "bearer-auth-token": "s3cret",
    }
    with serving(Registry(authorization="Bearer s3cret"), tls=context) as served:
        given = {"protocol": "avro", "addresses": ["k:1"], "topic": "t", "schema-registry": served.url}

        def connected(registry: dict[str, Any], wait_s: float = 60) -> SchemaRegistry:
            section = KafkaSection.model_validate({**given, "registry": registry}, by_alias=True, by_name=False)
            section.check()
            assert "s3cret" not in repr(section)
            return SchemaRegistry(section.schema_registry, section.registry, wait_s=wait_s)

        connected(settings).check()
        connected({**settings, "ssl-ca-location": "", "insecure-skip-verify": True}).check()
        with pytest.raises(RegistryAnswer, match="HTTP 401"):
            connected({**settings, "bearer-auth-token": "other"}).check()
        for ca in ("", str(Authority(tmp_path, "stranger").ca)):
            with pytest.raises(DestinationRefused, match="certificate verify failed"):
                connected({**settings, "ssl-ca-location": ca}).check()
        with pytest.raises(DestinationDown):
            connected({"ssl-ca-location": str(authority.ca)}, 0.1).check()


def test_registry_redirect_is_not_followed() -> None:
    """It would take the password along."""
    with serving(Registry()) as other:
        for status in (301, 302, 307, 308):
            with (
                serving(Registry(deque([(status, other.url + "/schemas/types")]))) as served,
                pytest.raises(RegistryAnswer, match=f"HTTP {status}"),
            ):
                client(served, user="u:p").check()
    assert other.requests == []


@pytest.mark.parametrize("url", ["", "127.0.0.1:8081", "ftp://u:secret@h", "http://", "http://u:secret@h:port", "//h"])
def test_invalid_registry_url_is_refused_without_showing_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RegistryHttp(url, RegistrySection(), wait_s=0)
    assert "secret" not in str(caught.value)


def test_registry_url_gives_base_url_user_and_password() -> None:
    http = RegistryHttp("https://u%40x:p%2Fw@reg:8081/api//", RegistrySection(), wait_s=0)
    assert (http.url, http._authorization) == ("https://reg:8081/api", f"Basic {b64encode(b'u@x:p/w').decode()}")
