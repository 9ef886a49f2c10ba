"""An OCI bundle for runc: the machine's own /usr read-only, a writable home, namespaces and no network."""

import json
import os


def make_bundle(path: str) -> str:
    """Write a bundle below *path* and return where it lies."""
    bundle = os.path.join(path, "bundle")
    root = os.path.join(bundle, "rootfs")
    home = os.path.join(path, "home")
    os.makedirs(home)
    for name in ("usr", "proc", "dev", "tmp", "home/user", "etc"):
        os.makedirs(os.path.join(root, name))
    for name in ("bin", "lib", "lib64", "sbin"):
        if os.path.islink(f"/{name}"):
            os.symlink(f"usr/{name}", os.path.join(root, name))
    bind = ["bind", "nosuid"]
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["sleep", "infinity"],
            "env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "cwd": "/home/user",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]},
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": [*bind, "ro"]},
            {"destination": "/home/user", "type": "bind", "source": home, "options": [*bind, "rw"]},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }
    with open(os.path.join(bundle, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return bundle
