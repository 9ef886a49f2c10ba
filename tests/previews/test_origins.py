"""A page of one preview, in a real browser that is let in to both, learns nothing of another one and of the API."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation
from tests.previews.visiting import Visitor
from tests.promises.browsing import DRIVER, needs_chromium, visits_of

PATIENCE_S = 100
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_):
        pass
    def do_GET(self):
        name = self.path.partition("?")[0]
        kinds = {"/data.js": "text/javascript", "/worker.js": "text/javascript", "/x.svg": "image/svg+xml"}
        bodies = {
            "/data.js": "window.stolen = 'secret'",
            "/worker.js": "onconnect = event => event.ports[0].postMessage('secret')",
            "/x.svg": "<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>",
            "/seen": str(self.headers.get("Referer")) + " " + str(self.headers.get("Cookie")),
        }
        self.answer(bodies.get(name, "<!doctype html><title>secret</title><p>secret</p>"), kinds.get(name, "text/html"))
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        print("posted", flush=True)
        self.answer("secret", "text/plain")
    def answer(self, text, kind):
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
KEEP = """(async () => {
  document.cookie = "own=secret; path=/";
  localStorage.own = sessionStorage.own = "secret";
  await (await caches.open("own")).put("/kept", new Response("secret"));
  await new Promise((go, no) => {
    const asked = indexedDB.open("own");
    asked.onsuccess = () => { asked.result.close(); go() };
    asked.onerror = no;
  });
  return location.href + " " + document.referrer;
})()"""
"""What a page leaves with its browser."""
PROBES = """(async () => {
  const other = OTHER, found = {};
  const within = (promise, s) => Promise.race([promise, new Promise((_, no) => setTimeout(() => no("late"), s * 1000))]);
  const frame = url => new Promise(go => {
    const made = document.createElement("iframe");
    made.onload = () => go(made);
    made.src = url;
    document.body.append(made);
  });
  const probe = async (name, steps) => {
    try { found[name] = String(await within(steps(), 10)).includes("secret") ? "read" : "nothing" }
    catch (error) { found[name] = "nothing" }
  };
  const framed = await within(frame(other + "/framed"), 20);
  const inner = framed.contentWindow;
  await probe("cookies of a frame", () => inner.document.cookie);
  await probe("local storage of a frame", () => inner.localStorage.own);
  await probe("session storage of a frame", () => inner.sessionStorage.own);
  await probe("caches of a frame", async () => (await inner.caches.match("/kept")).text());
  await probe("databases of a frame", async () =>
    (await inner.indexedDB.databases()).some(one => one.name === "own") ? "secret" : "");
  await probe("content of a frame", () => framed.contentDocument.body.textContent);
  await probe("address of a frame", () => inner.location.href.includes("/framed") ? "secret" : "");
  await probe("request with cookies", async () => (await fetch(other + "/", {credentials: "include"})).text());
  await probe("script of it", () => new Promise((go, no) => {
    const made = document.createElement("script");
    made.onload = () => go(window.stolen);
    made.onerror = no;
    made.src = other + "/data.js";
    document.head.append(made);
  }));
  await probe("shared worker", () => new Promise((go, no) => {
    const worker = new SharedWorker(other + "/worker.js");
    worker.onerror = no;
    worker.port.onmessage = event => go(event.data);
    worker.port.start();
  }));
  await probe("pixels of a picture", () => new Promise((go, no) => {
    const made = new Image(), canvas = document.createElement("canvas");
    made.onerror = no;
    made.onload = () => {
      canvas.getContext("2d").drawImage(made, 0, 0);
      try { canvas.getContext("2d").getImageData(0, 0, 1, 1); go("secret") } catch (error) { no(error) }
    };
    made.src = other + "/x.svg";
  }));
  await probe("form with cookies", async () =>
    (await fetch(other + "/", {method: "POST", mode: "no-cors", credentials: "include", body: "x"})).text());
  return JSON.stringify(found);
})()"""
"""Twelve ways to get at what another address keeps."""
TOSSING = """(() => {
  for (const domain of ["localhost", location.hostname, "." + location.hostname.split(".").slice(1).join(".")])
    document.cookie = `tossed=1; path=/; domain=${domain}`;
  document.cookie = "coldframe_preview=mine; path=/";
  return document.cookie;
})()"""


@needs_chromium
@pytest.mark.req("T4.45")
def test_twelve_ways_from_one_preview_to_another_and_to_the_api_lead_nowhere(
    client: SyncColdframe, sandbox: SyncSandbox, tmp_path: Path, installation: Installation
) -> None:
    with client.sandboxes.create(background=True) as second:
        shown = [shared(client, one) for one in (sandbox, second)]
        (mine, mine_url), (theirs, theirs_url) = shown
        links = [client.previews.link(preview_id).url for preview_id, _ in shown]
        probes = [PROBES.replace("OTHER", json.dumps(url)) for url in (mine_url, theirs_url, installation.url)]
        values = browsed(
            tmp_path,
            (links[1], KEEP),
            (links[0], KEEP),
            *((f"{mine_url}/page", probe) for probe in probes),
            (f"{mine_url}/page", TOSSING),
            (f"{theirs_url}/page", "fetch('/seen').then(one => one.text())"),
            (f"{mine_url}/page", f"fetch('{theirs_url}/seen').then(one => one.text(), () => 'kept out')"),
        )
        own, other, api = (json.loads(value) for value in values[2:5])
        assert len(own) == 12
        assert set(own.values()) == {"read"}, own  # so each of them reads what it may
        assert set(other.values()) == {"nothing"}, other
        assert set(api.values()) == {"nothing"}, api
        assert client.previews.log(theirs) == ()  # no form of the other page has come
        assert client.previews.log(mine) == ("posted",)
        # nothing by which it was let in is in the address, its history, or what a page is told of where it came from
        assert values[0].split() == [f"{theirs_url}/"]
        assert values[1].split() == [f"{mine_url}/"]
        referrer, cookies = values[6].split(" ", 1)
        assert referrer == "http://localhost:8000/page"
        assert (
            cookies == "own=secret"
        )  # and neither the door's nor one that another page has made for all of `localhost`
        assert values[7] == "kept out"


def shared(client: SyncColdframe, sandbox: SyncSandbox) -> tuple[str, str]:
    """Its id and its origin."""
    sandbox.write_file("server.py", SERVER)
    preview = client.previews.create(sandbox.id, 8000, start="exec python3 server.py")
    return preview.preview_id, f"http://{Visitor(preview).host}"


def browsed(folder: Path, *visits: tuple[str, str]) -> list[Any]:
    """Values of the scripts, each run in its page, one after the other, in one browser of this machine."""
    driver = folder / "driver.py"
    driver.write_text(DRIVER, encoding="utf-8")
    assert shutil.which("chromium") is not None
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [sys.executable, str(driver), *flags],
        input=json.dumps(visits),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [one.value for one in visits_of(done.stdout)]
