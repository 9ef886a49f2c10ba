"""Checks of the cases about previews: what dev servers, proxies and browsers have met elsewhere."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.models import PreviewCreated
from coldframe.client.sync import SyncColdframe
from tests.cases.checks import Lab, check
from tests.cases.runner import Bench
from tests.previews.app import BLOCK
from tests.previews.visiting import APP, Answer, Visitor

VITE = Path(__file__).parents[1] / "previews/js/node_modules"
_PAGE = {"Accept": "text/html"}


async def share(lab: Lab, bench: Bench, port: int, **options: Any) -> tuple[PreviewCreated, Visitor]:
    sandbox_id = lab.sandbox_of(bench).id

    def create() -> PreviewCreated:
        with SyncColdframe(lab.installation.url, lab.installation.token) as client:
            return client.previews.create(sandbox_id, port, record=False, **options)

    made = await asyncio.to_thread(create)
    return made, Visitor(made)


async def ask(visitor: Visitor, *arguments: Any, **options: Any) -> Answer:
    return await asyncio.to_thread(lambda: visitor.ask(*arguments, **options))


@check("B123")
async def a_stock_vite_project_is_shown(lab: Lab) -> None:
    if not (VITE / "vite").exists():
        pytest.skip("vite is not installed")
    bench = await lab.bench()
    await lab.sandbox_of(bench).upload_folder(str(VITE), "node_modules")
    await bench.ask("write_file", path="package.json", content='{"scripts": {"dev": "vite"}}')
    await bench.ask("write_file", path="index.html", content="<h1>the app</h1>")
    start = "PATH=node_modules/vite/bin:$PATH; exec node node_modules/vite/bin/vite.js"
    _, visitor = await share(lab, bench, 5173, start=start)
    page = await ask(visitor, "/", headers=_PAGE)
    assert (page.status, b"the app" in page.body, b"Blocked request" in page.body) == (200, True, False)


@check("B125")
async def a_server_of_one_family_is_found(lab: Lab) -> None:
    bench = await lab.bench()
    await bench.ask("write_file", path="app.py", content=APP)
    ports = {8101: "::1", 8102: "127.0.0.1", 8103: "0.0.0.0"}
    for port, address in ports.items():
        _, visitor = await share(lab, bench, port, start=f"exec python3 app.py {address} {port}")
        assert (await ask(visitor, "/echo")).status == 200, address
    listed = {
        port.port: (port.address, "app.py" in one.command_line)
        for one in await lab.sandbox_of(bench).processes()
        for port in one.ports
    }
    assert listed == {port: (address, True) for port, address in ports.items()}


@check("B127")
async def answers_are_what_the_server_said(lab: Lab) -> None:
    bench = await lab.bench()
    await bench.ask("write_file", path="app.py", content=APP)
    _, visitor = await share(lab, bench, 8000, start="exec python3 app.py 127.0.0.1 8000")
    head = await ask(visitor, "/bytes?n=12345", method="HEAD")
    assert (head.get("Content-Length"), head.body) == ("12345", b"")
    for status in (204, 304):
        answer = await ask(visitor, f"/status/{status}")
        assert (answer.status, answer.get("ETag"), answer.body) == (status, '"x"', b"")
    part = await ask(visitor, "/range", headers={"Range": "bytes=10-19"})
    assert (part.status, part.body) == (206, BLOCK[10:20])
    for place, told in {
        "/login": "/login",
        "http://localhost:8000/x": f"http://{visitor.host}/x",
        "//other.test/": "//other.test/",
    }.items():
        assert (await ask(visitor, f"/redirect?to={place}")).get("Location") == told
    cookies = (await ask(visitor, "/cookies")).all("Set-Cookie")
    assert [one.partition("=")[0] for one in cookies] == ["a", "b"]
    for path in ("/echo/a%2Fb", "/echo//x", "/echo/..;/y"):
        raw = visitor.head(f"GET {path} HTTP/1.1", "Connection: close")
        answered = await asyncio.to_thread(visitor.raw, raw)
        assert f'"line": "GET {path} HTTP/1.1"'.encode() in answered


@check("B129")
async def any_port_has_an_address_that_tells_what_is_behind_it(lab: Lab) -> None:
    bench = await lab.bench()
    await bench.ask("write_file", path="app.py", content=APP)
    for port in (3000, 8787, 9229, 50000, 80):
        made, visitor = await share(lab, bench, port)
        assert re.fullmatch(rf"http://{port}-[0-9a-f]{{20}}\.localhost:\d+/", str(made.url))
        page = await ask(visitor, "/", headers=_PAGE)
        assert page.status == 503
        assert f"nothing listens on port {port}".encode() in page.body
        assert b'http-equiv="refresh"' in page.body
        if port == 80:  # of its user the kernel of this machine may let nobody listen there
            continue
        for _ in range(2):  # started, stopped and started again
            started = await bench.ask("run_command", command=f"exec python3 app.py 127.0.0.1 {port}", background=True)
            while (await ask(visitor, "/echo")).status != 200:  # noqa: ASYNC110  a server in a sandbox tells nobody
                await asyncio.sleep(0.05)
            await ask(visitor, "/exit")
            assert started.error is None
            assert (await ask(visitor, "/", headers=_PAGE)).status == 503


@check("B131")
async def previews_are_strangers_to_each_other(lab: Lab) -> None:
    visitors = []
    for _ in range(2):
        bench = await lab.bench()
        await bench.ask("write_file", path="app.py", content=APP)
        visitors.append((await share(lab, bench, 8000, start="exec python3 app.py 127.0.0.1 8000"))[1])
    one, other = visitors
    assert one.host != other.host
    cookies = (await ask(one, "/cookies")).all("Set-Cookie")
    assert not [cookie for cookie in cookies if "domain" in cookie.lower()]
    assert (await ask(one, "/echo", as_visitor=False)).status == 401
    assert (await ask(one, "/echo", headers=other.own, as_visitor=False)).status == 401
    assert (await ask(one, "/echo", host="evil.test")).status == 403
    api = await ask(one, "/sandboxes", host=f"127.0.0.1:{one.port}", headers={"Origin": f"http://{one.host}"})
    assert api.status == 403
    assert api.get("Access-Control-Allow-Origin") is None
