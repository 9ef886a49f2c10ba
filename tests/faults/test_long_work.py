"""Work that takes longer than a turn goes on without its client, over a restart of the product and three quarters of an hour."""

import os
import time

import pytest

from coldframe.contract.sandbox import Limits
from tests.chaos.patience import connected
from tests.faults.jumping import JumpingInstallation
from tests.installation import wait_until

BUILD = """
import compileall, os
os.makedirs("src")
open("src/one.py", "w").write("x = 1")
compileall.compile_dir("src", quiet=1)
print(len(os.listdir("src/__pycache__")))
"""
TEST = """
import sys, unittest
class Sums(unittest.TestCase):
    def test_it(self):
        self.assertEqual(1, 2)
unittest.main(testRunner=unittest.TextTestRunner(sys.stdout))
"""
CRAWLER = """
import http.server, re, threading, urllib.request
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
for name, link in (("a", "b"), ("b", "c"), ("c", "a")):
    open(name + ".html", "w").write(f"<a href={link}.html>")
site = http.server.HTTPServer(("127.0.0.1", 8098), Quiet)
threading.Thread(target=site.serve_forever, daemon=True).start()
seen, todo = set(), ["a.html"]
while todo:
    page = todo.pop()
    if page not in seen:
        seen.add(page)
        text = urllib.request.urlopen("http://127.0.0.1:8098/" + page).read().decode()
        todo += re.findall("href=([a-z.]+)", text)
print(*sorted(seen))
"""
MIGRATION = """
import sqlite3
with sqlite3.connect("data.db") as data:
    data.execute("CREATE TABLE t (a)")
    data.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(1000)])
    data.execute("ALTER TABLE t ADD COLUMN b")
    print(data.execute("SELECT count(*) FROM t WHERE b IS NULL").fetchone()[0])
"""
TRAINING = """
weight = 0.0
for step in range(1000):
    weight -= 0.02 * (weight - 3)
    if step % 250 == 0:
        print("step", step, flush=True)
print(round(weight, 3))
"""
EVALUATION = """
print(sum(n % 3 == 0 for n in range(300)))
raise SystemExit(4)
"""
KINDS = {
    "build": (BUILD, 0, "1"),
    "test": (TEST, 1, "FAILED (failures=1)"),
    "crawler": (CRAWLER, 0, "a.html b.html c.html"),
    "migration": (MIGRATION, 0, "1000"),
    "training": (TRAINING, 0, "3.0"),
    "evaluation": (EVALUATION, 4, "100"),
}
"""Of each kind a program, its exit code, and what it says at last."""
WAITS = "touch begun-{name}; until [ -e go ]; do sleep 0.05; done; exec python3 {name}.py"


@pytest.mark.req("T4.26")
def test_work_of_six_kinds_outlives_its_client_the_product_and_three_quarters_of_an_hour(
    killable: JumpingInstallation,
) -> None:
    with connected(killable) as client:
        sandbox = client.sandboxes.create("long")
        for name, (program, _, _) in KINDS.items():
            sandbox.write_file(f"{name}.py", program)
        jobs = {name: sandbox.start(WAITS.format(name=name)).id for name in KINDS}
    try:
        killable.kill()
        killable.start()
        killable.jump(45 * 60)
        with connected(killable) as client:
            again = client.sandboxes.get(sandbox.id)
            listed = {one.name for one in again.list_directory().entries}
            assert {f"begun-{name}" for name in KINDS} <= listed
            assert all(again.job(one).info().result is None for one in jobs.values())
            again.write_file("go", "")
            for name, (_, code, last) in KINDS.items():
                job = again.job(jobs[name])
                result = job.wait(60).result
                assert result is not None, name
                assert (result.exit_code, job.output().decode().splitlines()[-1]) == (code, last), name
            steps = again.job(jobs["training"]).output().decode().splitlines()
            assert steps == ["step 0", "step 250", "step 500", "step 750", "3.0"]
            again.terminate()
    finally:
        killable.jump(0)


@pytest.mark.req("T4.26")
@pytest.mark.skipif(not os.environ.get("COLDFRAME_SLOW"), reason="it takes ten minutes")
@pytest.mark.timeout(900)
def test_a_job_of_ten_minutes_ends_with_its_code_though_its_client_left_at_once(killable: JumpingInstallation) -> None:
    with connected(killable) as client:
        sandbox = client.sandboxes.create("ten-minutes", limits=Limits(wall_s=1200))
        job = sandbox.start("for n in $(seq 60); do echo $n; sleep 10; done; exit 9", timeout_s=1200).id
    ends_at = time.monotonic() + 600

    def is_over() -> bool:
        with connected(killable) as client:
            return time.monotonic() > ends_at and client.sandboxes.get(sandbox.id).job(job).info().result is not None

    wait_until(is_over, "it has ended", timeout_s=800)
    with connected(killable) as client:
        result = client.sandboxes.get(sandbox.id).job(job).info().result
        assert result is not None
        assert result.exit_code == 9
        assert client.sandboxes.get(sandbox.id).job(job).output().split() == [str(n).encode() for n in range(1, 61)]
        client.sandboxes.get(sandbox.id).terminate()
