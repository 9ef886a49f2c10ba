"""The Model Context Protocol, spoken by somebody who does not know it, or knows it too well.

With the token of a viewer: what is looked for is in the reading of messages, headers, arguments and addresses, and a fake machine
would start what an owner's token could ask for.
"""

import json
import random
import shutil
import tempfile
from typing import Any

from coldframe.contract.errors import catalogue
from coldframe.contract.policy import Role
from tests.fronts.served import Served
from tests.fuzz.target import Fault, odd_value, spoil
from tests.mcp.speaking import CURRENT, PREVIOUS, Raw

WORDS = (
    "tools/call", "tools/list", "resources/read", "resources/subscribe", "subscriptions/listen", "tasks/get", "initialize",
    "ping", "server/discover", "name", "arguments", "uri", "cursor", "notifications", "taskId", "progressToken", "_meta",
    "sandbox_id", "workspace", "command_id", "list_sandboxes", "read_logs", "read_file", "get_contract", "compare", "path",
    "coldframe://sandboxes/sbx_1/files/../../etc/passwd", "coldframe://receipts/%2e%2e", "coldframe://sandboxes//commands/",
    "cmd_1", "wait_s", "max_bytes", "offset", "io.modelcontextprotocol/tasks", CURRENT, PREVIOUS,
)  # fmt: skip
METHODS = (*(word for word in WORDS if "/" in word and ":" not in word), "ping", "initialize", "nothing")
STATUSES = frozenset({200, 202, 400, 401, 403, 404, 406, 413, 415})
CODES = frozenset({-32700, -32600, -32601, -32602, -32603, -32002, -32020, -32021, -32022})


class Mcp:
    name = "mcp"

    def __init__(self) -> None:
        from tests.fakes.host import FakeHost

        self._folder = tempfile.mkdtemp(prefix="cf-fuzz-")
        self._served = Served(self._folder, FakeHost)
        self._served.start()
        self._token = self._served.token(Role.VIEWER)
        self._tools = [one["name"] for one in Raw(self._served).ask("tools/list")[1]["result"]["tools"]]

    def close(self) -> None:
        self._served.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def make(self, random: random.Random) -> Any:
        method = random.choice(METHODS)
        params: Any = {}
        for name in random.sample(("name", "arguments", "uri", "cursor", "notifications", "taskId", "_meta"), 3):
            params[name] = odd_value(random, WORDS)
        if random.random() < 0.6:
            params["name"] = random.choice(self._tools)
            params["arguments"] = {random.choice(WORDS): odd_value(random, WORDS) for _ in range(3)}
        if random.random() < 0.3:
            params["uri"] = spoil(random, random.choice(WORDS[21:27]), WORDS)
        headers: dict[str, str] = {}
        if random.random() < 0.7:
            named = params.get("uri" if method == "resources/read" else "name")
            headers = {"Mcp-Protocol-Version": CURRENT, "Mcp-Method": method}
            headers |= {"Mcp-Name": named} if isinstance(named, str) and named.isascii() and named.isprintable() else {}
            params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": CURRENT,
                "io.modelcontextprotocol/clientCapabilities": odd_value(random, WORDS),
            }
        message: Any = {"jsonrpc": "2.0", "id": random.choice([1, "a", 2**70, None, 1.5]), "method": method}
        message["params"] = params if random.random() < 0.9 else odd_value(random, WORDS)
        body = json.dumps(message)
        return {"headers": headers, "body": spoil(random, body, WORDS) if random.random() < 0.3 else body}

    def check(self, value: Any) -> None:
        raw = Raw(self._served, self._token)
        body = value["body"].encode("utf-8", "surrogatepass")
        if b"subscriptions/listen" in body:
            return  # which has no end of its own
        status, _, answer = raw.post(body, headers=value["headers"])
        if status not in STATUSES:
            raise Fault(f"status {status}")
        if status == 202:
            return
        if not isinstance(answer, dict):
            raise Fault(f"an answer that is no message: {str(answer)[:100]}")
        if "error" in answer and "jsonrpc" not in answer:
            self._check_known(answer["error"])
        elif "error" in answer:
            if answer["error"]["code"] not in CODES:
                raise Fault(f"code {answer['error']['code']}")
            if answer["error"].get("data", {}).get("code") == "INTERNAL":
                raise Fault(f"a fault of ours: {answer['error']['message']}")
        elif answer["result"].get("isError"):
            self._check_known(answer["result"]["structuredContent"]["error"])

    def _check_known(self, error: dict[str, Any]) -> None:
        if error["code"] == "INTERNAL" or error["code"] not in catalogue():
            raise Fault(f"error {error['code']}: {error['message']}")
