"""From where to where each act takes a sandbox, as docs/lifecycle.md has it; from anywhere else it is refused."""

ACTS: dict[str, dict[str, str]] = {
    "pause": {"running": "paused", "paused": "paused"},
    "pause_files": {"running": "stopped", "paused": "stopped", "stopped": "stopped"},
    "resume": {"running": "running", "paused": "running", "stopped": "running"},
    "stop": {"running": "stopped", "paused": "stopped", "stopped": "stopped"},
    "start": {"running": "running", "stopped": "running"},
    "extend": {"running": "running", "paused": "paused", "stopped": "stopped"},
    "terminate": dict.fromkeys(("running", "paused", "stopped", "terminated", "lost"), "terminated"),
}
