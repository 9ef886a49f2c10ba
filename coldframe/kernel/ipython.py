"""The Python kernel itself: ipykernel as it is, with what it shows made richer, and nothing kept beyond its life."""

import json
import os
import re
import sys
from typing import Any

from coldframe.kernel import packages

CACHES = {"IPYTHONDIR": "/tmp/.ipython", "MPLCONFIGDIR": "/tmp/.matplotlib"}  # noqa: S108  the box's own

for _name, _path in CACHES.items():
    os.environ.setdefault(_name, _path)
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"

try:
    import zmq
    from ipykernel.iostream import IOPubThread
    from ipykernel.ipkernel import IPythonKernel
    from ipykernel.kernelapp import IPKernelApp
    from jupyter_client.jsonutil import json_default
    from traitlets.config import Config
    from zmq.eventloop.zmqstream import ZMQStream
except ImportError as error:
    raise SystemExit(f"ipykernel is not installed for Python {sys.version.split()[0]}: {error}") from None

from coldframe.kernel import display  # noqa: E402  when it is known that IPython is there

_NO_TEXT = re.compile("[\ud800-\udfff]")
"""Halves of characters."""


class Kernel(IPythonKernel):  # type: ignore[misc]  # it has no types here
    """Tells with each reply which variables there are, so that it can be said what was lost."""

    async def do_execute(self, *args: Any, **kwargs: Any) -> Any:
        reply = await super().do_execute(*args, **kwargs)
        hidden = self.shell.user_ns_hidden
        names = [name for name in self.shell.user_ns if not name.startswith("_") and name not in hidden]
        return {**reply, "coldframe_names": names[:10_000]}


def pack(message: Any) -> bytes:
    """A part of a message; what is printed may be no text that has bytes."""
    text = json.dumps(message, default=json_default, ensure_ascii=False, allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _NO_TEXT.sub("\ufffd", text).encode()


def _use_file(place: str) -> None:
    """Have programs that a cell forks print through a socket in the file system, and not at a port that others see."""

    def listen(thread: Any) -> None:
        thread._pipe_uuid = os.urandom(16)
        pipe = thread.socket.context.socket(zmq.PULL)
        pipe.linger = 0
        pipe.bind(f"ipc://{place}")
        thread._pipe_in = ZMQStream(pipe, thread.io_loop)
        thread._pipe_in.on_recv(thread._handle_pipe_msg)

    def reach(_: Any) -> tuple[Any, Any]:
        context = zmq.Context()
        pipe = context.socket(zmq.PUSH)
        pipe.linger = 3000
        pipe.connect(f"ipc://{place}")
        return context, pipe

    IOPubThread._setup_pipe_in, IOPubThread._setup_pipe_out = listen, reach


def run(connection_file: str) -> None:
    """Be a kernel until it ends."""
    _use_file(f"{connection_file}.pipe")
    config = Config()
    config.IPKernelApp.connection_file = connection_file
    config.IPKernelApp.kernel_class = Kernel
    config.IPKernelApp.log_level = 50
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.history_length = 1000
    config.Session.packer = f"{__name__}.pack"
    config.HistoryManager.enabled = False
    config.PlainTextFormatter.max_seq_length = 0
    app = IPKernelApp.instance(config=config)
    app.initialize([])
    display.install(app.shell)
    packages.hide_own()
    app.start()
