"""A port of a sandbox has an address that stays, whichever way its server stands there."""

import shutil
import subprocess
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation, wait_until
from tests.previews.visiting import APP, Visitor, serve
from tests.promises.browsing import needs_chromium

pytestmark = pytest.mark.req("T4.43")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_a_server_is_found_on_each_address_without_any_setting(
    client: SyncColdframe, sandbox: SyncSandbox, address: str
) -> None:
    visitor = Visitor(serve(client, sandbox, 5173, address=address))
    assert visitor.ask("/echo").status == 200


def test_ports_are_listed_with_their_process_and_what_started_it_soon_after_they_begin(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    sandbox.write_file("app.py", APP)
    jobs = {
        port: sandbox.run_command(f"exec python3 app.py {address} {port}", background=True).command_id
        for port, address in ((5173, "127.0.0.1"), (5174, "::1"), (5175, "0.0.0.0"))
    }

    def listed() -> dict[int, tuple[str | None, str]]:
        return {
            port.port: (one.command_id, port.address)
            for one in sandbox.processes()
            for port in one.ports
            if port.protocol == "tcp"
        }

    wait_until(lambda: len(listed()) == 3, "all three listen", timeout_s=10)
    assert listed() == {5173: (jobs[5173], "127.0.0.1"), 5174: (jobs[5174], "::1"), 5175: (jobs[5175], "0.0.0.0")}


@pytest.mark.req("T3.19")
def test_a_result_that_is_a_preview_has_address_health_port_and_process(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    preview = client.previews.get(serve(client, sandbox, 8000).preview_id)
    assert preview.url == f"http://8000-{sandbox.id.removeprefix('sbx_')}.localhost:{Visitor(preview).port}/"
    assert preview.status is not None
    assert (preview.port, preview.status.state, preview.status.http_status) == (8000, "healthy", 200)
    (process,) = [one for one in sandbox.processes() if any(port.port == 8000 for port in one.ports)]
    assert process.command_id == preview.command_id == preview.status.command_id


def test_an_address_stays_over_restart_stop_and_rebuild(client: SyncColdframe, still: SyncSandbox) -> None:
    sandbox = still
    preview = serve(client, sandbox, 5173)
    visitor = Visitor(preview)
    urls = {preview.url, client.previews.restart(preview.preview_id).url}
    sandbox.stop()
    urls.add(client.previews.restart(preview.preview_id).url)
    rebuilt = client.previews.rebuild(preview.preview_id)
    urls.add(rebuilt.url)
    assert urls == {preview.url}
    assert visitor.ask("/echo").status == 200
    client.sandboxes.get(rebuilt.sandbox_id).terminate(discard=True)


@pytest.mark.parametrize("port", [3000, 8787, 9229, 50000, 65535])
def test_any_port_can_be_shared(client: SyncColdframe, sandbox: SyncSandbox, port: int) -> None:
    assert Visitor(serve(client, sandbox, port)).ask("/echo").status == 200


PAGE = """<!doctype html><title>begun</title><script>
document.cookie = "own=1"
const ws = new WebSocket(location.origin.replace("http", "ws") + "/ws")
ws.onopen = () => ws.send("abc")
ws.onmessage = async (message) => {
  const word = typeof message.data === "string" ? message.data : await message.data.text()
  const api = await fetch("http://127.0.0.1:API/v1/sandboxes").then(() => "read", () => "kept out")
  fetch("/done", {method: "POST", body: [word, document.cookie, api].join(" ")})
}
</script>"""
WEB_SOCKET_SERVER = """
import base64, hashlib, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_):
        pass
    def do_POST(self):
        print("done:", self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(204)
        self.end_headers()
    def do_GET(self):
        if self.path != "/ws":
            body = open("page.html", "rb").read()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        head = self.rfile.read(2)
        mask, text = self.rfile.read(4), self.rfile.read(head[1] & 127)
        text = bytes(b ^ mask[i % 4] for i, b in enumerate(text)).upper()
        self.connection.sendall(bytes([0x81, len(text)]) + text)
        self.rfile.read(1)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


@needs_chromium
def test_a_browser_opens_a_link_with_web_sockets_and_cookies_and_does_not_reach_the_api(
    client: SyncColdframe, sandbox: SyncSandbox, tmp_path: Path, installation: Installation
) -> None:
    sandbox.write_file("page.html", PAGE.replace("http://127.0.0.1:API", installation.url))
    sandbox.write_file("server.py", WEB_SOCKET_SERVER)
    preview = client.previews.create(sandbox.id, 8000, start="exec python3 server.py")
    link = client.previews.link(preview.preview_id).url
    chromium = shutil.which("chromium")
    assert chromium is not None
    line = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    line += [f"--user-data-dir={tmp_path}", "--remote-debugging-port=0", link]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        try:
            wait_until(
                lambda: "done: ABC own=1 kept out" in client.previews.log(preview.preview_id),
                "the page has done its work",
                timeout_s=40,
            )
        finally:
            browser.terminate()
            browser.wait(20)
