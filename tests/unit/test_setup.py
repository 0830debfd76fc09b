"""What setting up leaves alone, and what it does not show."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import cluster as embedded

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("fails", [False, True])
def test_installing_postgresql_leaves_the_distributions_settings_as_they_were(monkeypatch, tmp_path, fails):
    settings = tmp_path / "createcluster.conf"
    settings.write_text("# of the distribution\ncreate_main_cluster = true\n")
    before, during = settings.read_bytes(), []

    def run(command, **named):
        if command[0] == "apt-get" and embedded.PACKAGES[0] in command:
            during.append(settings.read_text())
            if fails:
                raise subprocess.CalledProcessError(1, command)
        return subprocess.CompletedProcess(command, 0)

    def missing():
        raise embedded.Problem("no server")

    monkeypatch.setattr(embedded, "CREATECLUSTER", settings)
    monkeypatch.setattr(embedded, "pg_config", missing)
    monkeypatch.setattr(embedded.subprocess, "run", run)
    monkeypatch.setattr(embedded.os, "geteuid", lambda: 0)
    monkeypatch.setattr(embedded.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(embedded.Path, "exists", lambda path: False)
    try:
        embedded.install_packages()
    except subprocess.CalledProcessError:
        assert fails
    assert len(during) == 1 and during[0].rstrip().endswith("create_main_cluster = false")
    assert settings.read_bytes() == before


def test_demo_shows_no_password_in_a_command_line():
    shown = subprocess.run(["make", "-n", "demo"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    (line,) = [line for line in shown.splitlines() if "cerebro_udf.client.demo" in line]
    assert line.startswith("CEREBRO_URL=") and "url" not in line.partition("cerebro_udf.client.demo")[2]
