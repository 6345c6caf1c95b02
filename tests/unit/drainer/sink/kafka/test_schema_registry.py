"""The registry's client, against registries in this process that answer as they are told."""

from __future__ import annotations

import json
import pickle
import ssl
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from binlog.errors import ConfigError

from drainer.protocol.schema_ids import RequiredSchema, fingerprint
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.kafka.schema_registry import SchemaRefused, SchemaRegistry
from drainer.sink.kafka.settings.registry_http import RegistryAccess, RegistryAnswer, access_of
from drainer.sink.kafka.settings.section import KafkaSection
from tests.support.certificates import Authority
from tests.support.http_registry import Registry, serving
from tests.support.servers import free_port

SCHEMA = '{"type":"record","name":"t","fields":[]}'


def client(registry: Registry, *, wait_s: float = 60, **more: str) -> SchemaRegistry:
    return SchemaRegistry(access_of(registry.url, **more), wait_s=wait_s)


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


def test_registry_error_that_is_not_json_is_shown() -> None:
    with (
        serving(Registry(deque([(403, "<h1>not you</h1>")]))) as served,
        pytest.raises(RegistryAnswer, match="HTTP 403: <h1>not you</h1>"),
    ):
        client(served).register("s", SCHEMA)


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
        SchemaRegistry(RegistryAccess(url), wait_s=0.1).check()


@pytest.mark.parametrize(
    "answer", ["no json", "[]", '{"id":0}', '{"id":"1"}', '{"id":true}', "{}", "null", '{"id":-1}']
)
def test_registry_answer_without_valid_id_is_refused(answer: str) -> None:
    with serving(Registry(deque([(200, answer)]))) as served, pytest.raises(DestinationRefused):
        client(served).register("s", SCHEMA)


@pytest.mark.parametrize("answer", ["{}", '["JSON"]', "[]", "null", "<html>"])
def test_server_without_avro_support_is_refused_by_check(answer: str) -> None:
    with serving(Registry(deque([(200, answer)]))) as served, pytest.raises(DestinationRefused, match="registry"):
        client(served).check()


def test_check_of_working_registry_succeeds() -> None:
    with serving(Registry()) as served:
        client(served).check()


def test_schema_with_unknown_id_raises_lookup_error() -> None:
    with serving(Registry()) as served, pytest.raises(LookupError):
        client(served).schema(7)


@pytest.mark.parametrize("answer", ['{"schema":"{}","schemaType":"JSON"}', '{"schema":7}', "[]"])
def test_schema_answer_that_is_not_avro_is_refused(answer: str) -> None:
    with serving(Registry(deque([(200, answer)]))) as served, pytest.raises(DestinationRefused):
        client(served).schema(7)


def test_registry_access_with_user_in_url_or_token_is_authorized() -> None:
    with serving(Registry(authorization="Basic dTpwOnc=")) as served:
        plain = served.url
        with pytest.raises(RegistryAnswer, match=r"HTTP 401.*who are you"):
            client(served).check()
        assert len(served.requests) == 1
        client(served, user="u", password="p:w").check()
        served.url = plain.replace("//", "//u:p%3Aw@")
        client(served).check()
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

        def access(registry: dict[str, Any]) -> RegistryAccess:
            section = KafkaSection.model_validate({**given, "registry": registry}, by_alias=True, by_name=False)
            section.check()
            found = section.kafka().registry
            assert found is not None and "s3cret" not in repr(section) + repr(found)
            return found

        SchemaRegistry(access(settings)).check()
        SchemaRegistry(access({**settings, "ssl-ca-location": "", "insecure-skip-verify": True})).check()
        with pytest.raises(RegistryAnswer, match="HTTP 401"):
            SchemaRegistry(access({**settings, "bearer-auth-token": "other"})).check()
        with pytest.raises(DestinationRefused, match="certificate verify failed"):
            SchemaRegistry(access({**settings, "ssl-ca-location": ""})).check()


def test_registry_redirect_is_not_followed() -> None:
    """It would take the password along."""
    with serving(Registry()) as other:
        for status in (301, 302, 307, 308):
            with (
                serving(Registry(deque([(status, other.url + "/schemas/types")]))) as served,
                pytest.raises(RegistryAnswer, match=f"HTTP {status}"),
            ):
                client(served, user="u", password="p").check()
    assert other.requests == []


def test_registry_over_tls_checks_server_and_client_certificates(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    server, ours = authority.issue("server"), authority.issue("client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca))
    context.load_cert_chain(server.cert, server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    pair = {"cert": str(ours.cert), "key": str(ours.key)}
    with serving(Registry(), tls=context) as served:
        client(served, ca=str(authority.ca), **pair).check()
        with pytest.raises(DestinationRefused, match="certificate verify failed"):
            client(served, ca=str(stranger.ca), **pair).check()
        with pytest.raises(DestinationDown):
            client(served, ca=str(authority.ca), wait_s=0.1).check()
        with pytest.raises(ConfigError, match="nowhere"):
            client(served, ca=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("url", ["", "127.0.0.1:8081", "ftp://u:secret@h", "http://", "http://u:secret@h:port", "//h"])
def test_invalid_registry_url_is_refused_without_showing_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        access_of(url)
    assert "secret" not in str(caught.value)


def test_registry_url_gives_base_url_user_and_password() -> None:
    access = access_of("https://u%40x:p%2Fw@reg:8081/api//", ca="")
    assert (access.url, access.user, access.password) == ("https://reg:8081/api", "u@x", "p/w")
    assert "p/w" not in repr(access)
    assert access_of("http://u:p@h", user="v", password="w") == RegistryAccess("http://h", "v", "w")


def test_url_without_registry_is_refused_with_expected_form() -> None:
    with serving(Registry(script=deque([(404, "404 page not found")]))) as served:
        with pytest.raises(
            DestinationRefused, match="HTTP 404: 404 page not found: schema-registry must be the URL at"
        ):
            client(served).check()
        assert len(served.requests) == 1
