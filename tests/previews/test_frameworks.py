"""Development servers that check by which name they are asked serve as they are, with no setting for it."""

import importlib.util
import io
import json
import re
import shutil
import time
import zipfile
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.previews.visiting import Visitor, read_until

CLIENTS = Path(__file__).with_name("js")
pytestmark = pytest.mark.req("T4.43")
needs_vite = pytest.mark.skipif(
    shutil.which("node") is None or not (CLIENTS / "node_modules/vite").exists(), reason="vite is not installed"
)
DJANGO = ("django", "asgiref", "sqlparse")
needs_django = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in DJANGO), reason="Django is not installed"
)
SITE = """
import sys
from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpResponse
from django.middleware.csrf import get_token
from django.urls import path

def index(request):
    return HttpResponse(f"{request.method} {request.get_host()} {get_token(request)}")

def refused(request, reason=""):
    return HttpResponse(reason, status=403)

settings.configure(
    CSRF_FAILURE_VIEW=f"{__name__}.refused", DEBUG=True, SECRET_KEY="of-a-test", ROOT_URLCONF=__name__, USE_TZ=True,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"],
)
urlpatterns = [path("", index)]
execute_from_command_line([sys.argv[0], "runserver", "--noreload", "--skip-checks", "8000"])
"""


@needs_vite
@pytest.mark.req("T4.12", "T4.44")
def test_vite_serves_its_pages_and_tells_them_of_changes(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    sandbox.upload_folder(str(CLIENTS / "node_modules"), "node_modules")
    sandbox.write_file("index.html", '<p id="total"></p><script type="module" src="/main.js"></script>')
    sandbox.write_file("main.js", 'document.querySelector("#total").textContent = "Total: 120.00"\n')
    preview = client.previews.create(sandbox.id, 5173, start="exec node node_modules/vite/bin/vite.js")
    visitor = Visitor(preview)
    page = visitor.ask("/", headers={"Accept": "text/html"})
    assert page.status == 200, page.body
    assert b"Blocked request" not in page.body
    assert b"/@vite/client" in page.body
    assert b"Total: 120.00" in visitor.ask("/main.js").body
    token = re.search(r'wsToken = "([^"]+)"', visitor.ask("/@vite/client").body.decode())
    assert token is not None
    with visitor.connect() as one:
        more: tuple[str, ...] = (
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
        )
        more += ("Sec-WebSocket-Protocol: vite-hmr", f"Origin: http://{visitor.host}")
        one.sendall(visitor.head(f"GET /?token={token.group(1)} HTTP/1.1", *more))
        assert read_until(one, b'"connected"}').startswith(b"HTTP/1.1 101 ")
        began = time.monotonic()
        sandbox.write_file("main.js", 'document.querySelector("#total").textContent = "Sum: 120.00"\n')
        read_until(one, b'"full-reload"')
        assert time.monotonic() - began < 10
    assert b"Sum: 120.00" in visitor.ask("/main.js").body


@needs_django
def test_django_knows_its_host_and_takes_forms_of_its_own_pages_alone(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    sandbox.upload("site.zip", packed(*DJANGO))
    sandbox.write_file("manage.py", SITE)
    preview = client.previews.create(sandbox.id, 8000, start="PYTHONPATH=site.zip exec python3 manage.py")
    visitor = Visitor(preview)
    page = visitor.ask("/")
    assert page.status == 200, page.body[:2000]
    method, host, token = page.body.decode().split()
    assert (method, host) == ("GET", "localhost:8000")
    cookie = {"Cookie": str(page.get("Set-Cookie")).partition(";")[0], "X-CSRFToken": token}
    for origin, status in ((f"http://{visitor.host}", 200), ("http://evil.test", 403)):
        answer = visitor.ask("/", method="POST", body=b"", headers={**cookie, "Origin": origin})
        assert answer.status == status, answer.body[:2000]


def packed(*packages: str) -> bytes:
    """Their modules, from which Python can import without unpacking them."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in packages:
            found = importlib.util.find_spec(name)
            assert found is not None
            assert found.origin is not None
            folder = Path(found.origin).parent
            for path in folder.rglob("*.py"):
                archive.write(path, path.relative_to(folder.parent))
    return target.getvalue()


def test_the_lock_of_what_these_need_names_no_registry() -> None:
    packages = json.loads((CLIENTS / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert [name for name, one in packages.items() if "resolved" in one] == []
