"""A copy of the project that a test may change, and its own embedded cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import psycopg

from scripts import cluster as embedded

PARTS = ("scripts", "cerebro_udf", "migrations", "sql", "releases")


class Project:
    """What the extension is built from, copied into a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        os.chmod(folder, 0o755)  # the servers' user goes through
        for name in PARTS:
            if (embedded.ROOT / name).exists():
                shutil.copytree(embedded.ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def run(self, *arguments: str, check: bool = True, script: str = "cluster.py") -> str:
        environment = {key: value for key, value in os.environ.items() if key != "CEREBRO_HOME"}
        done = subprocess.run(
            ["/usr/bin/python3", "scripts/" + script, *arguments],
            cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout
        return done.stdout

    def query(self, text: str):
        with psycopg.connect(self.run("admin-url").strip()) as connection:
            return connection.execute(text).fetchall()

    def close(self) -> None:
        self.run("clean", check=False)
        shutil.rmtree(self.folder)

    @property
    def ports(self) -> list[int]:
        lines = self.run("status").splitlines()
        return [int(line.split("127.0.0.1:")[1].split()[0]) for line in lines if "127.0.0.1" in line]
