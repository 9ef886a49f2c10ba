"""A small application in Node as an agent is given it: fourteen files with its lock, one wrong line, five tests of which one fails.

It depends on `leftbox@1.0.0`, which the registry of the small world has. Its development server tells open pages of changes
over a web socket.
"""

import os
import subprocess
import tempfile
from pathlib import Path

PORT = 5173
WRONG, RIGHT = "price - price * tax", "price + price * tax"
FAILING = "tax is added"
SERVER = """\
const { createHash } = require("node:crypto")
const { watch } = require("node:fs")
const http = require("node:http")
const { execFileSync } = require("node:child_process")

const page = () => execFileSync(process.execPath, ["src/page.js"]).toString() // as the files are now
const client = `<script>
new WebSocket(location.origin.replace("http", "ws") + "/live").onmessage = async () => {
  const text = await (await fetch("/text")).text()
  document.querySelector("p").textContent = text
}
</script>`
const server = http.createServer((request, answer) => {
  if (request.url === "/healthz") return answer.end("ok")
  if (request.method === "POST") { console.log(request.url); return answer.end() }
  if (request.url === "/text") return answer.end(page())
  answer.setHeader("Content-Type", "text/html")
  answer.end(`<!doctype html><title>totals</title><p>${page()}</p>${client}`)
})
const open = new Set()
server.on("upgrade", (request, socket) => {
  const key = request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
  const accept = createHash("sha1").update(key).digest("base64")
  socket.write(`HTTP/1.1 101 Switching\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: ${accept}\\r\\n\\r\\n`)
  open.add(socket)
  console.log(request.url)
  for (const end of ["close", "error"]) socket.on(end, () => open.delete(socket))
})
watch("src", () => { for (const socket of open) socket.write(Buffer.from([0x81, 6, ...Buffer.from("reload")])) })
server.listen(5173, "127.0.0.1", () => console.log("serves"))
"""
TESTS = f"""\
const test = require("node:test")
const assert = require("node:assert")
const {{ total }} = require("../src/total")
const {{ format }} = require("../src/format")
const label = require("../src/label")

test("nothing costs nothing", () => assert.equal(total([], 0.2), 0))
test("prices are summed", () => assert.equal(total([60, 40], 0), 100))
test("{FAILING}", () => assert.equal(total([100], 0.2), 120))
test("cents are shown", () => assert.equal(format(120), "120.00"))
test("there is a label", () => assert.ok(label))
"""
FILES = {
    "package.json": '{"name": "totals", "version": "1.0.0", "dependencies": {"leftbox": "1.0.0"}, "scripts":'
    ' {"test": "node --test", "dev": "node server.js"}}\n',
    ".gitignore": "node_modules\n*.log\nPOSTINSTALL.txt\n",
    "README.md": "# Totals\n\n`npm ci`, `npm test`, `npm run dev` on port 5173.\n",
    "server.js": SERVER,
    "src/total.js": 'require("leftbox")\n\nexports.total = (prices, tax) => {\n'
    f"  const price = prices.reduce((sum, one) => sum + one, 0)\n  return {WRONG}\n}}\n",
    "src/format.js": "exports.format = (number) => number.toFixed(2)\n",
    "src/label.js": 'module.exports = "Total"\n',
    "src/page.js": 'const { total } = require("./total")\nconst { format } = require("./format")\nconst label = require("./label")\n\n'
    'const prices = require("./prices.json")\nprocess.stdout.write(`${label}: ${format(total(prices, 0.2))}`)\n',
    "src/prices.json": "[60, 40]\n",
    "test/totals.test.js": TESTS,
    "docs/prices.md": "Prices are whole euros.\n",
    "docs/tax.md": "Tax is a fifth, and is added.\n",
    "LICENSE": "For tests alone.\n",
}


def repository(lock: str) -> dict[str, bytes]:
    """Its bare repository with that `package-lock.json`, by path, for a server that runs no program of Git."""
    with tempfile.TemporaryDirectory(prefix="cf-app-", dir="/tmp") as folder:
        work, bare = Path(folder, "work"), Path(folder, "app.git")
        for path, text in {**FILES, "package-lock.json": lock}.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text, encoding="utf-8")
        settings = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": folder,
            "PATH": os.environ["PATH"],
        }
        who = ["-c", "user.name=A person", "-c", "user.email=person@example.com"]
        for words in (
            ["init", "-q", "-b", "main", "."],
            ["add", "."],
            [*who, "commit", "-q", "-m", "Begin"],
            ["clone", "-q", "--bare", ".", str(bare)],
            ["--git-dir", str(bare), "update-server-info"],
        ):
            subprocess.run(["git", *words], cwd=work, env=settings, check=True, capture_output=True)
        return {str(one.relative_to(folder)): one.read_bytes() for one in bare.rglob("*") if one.is_file()}
