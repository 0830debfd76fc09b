"""The container's files say what the scripts do (hadolint checks the Dockerfile's style in `make lint`)."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent


def test_compose_file_builds_this_folder_and_keeps_the_cluster():
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    demo = compose["services"]["demo"]
    assert demo["build"] == "."
    volume, target = demo["volumes"][0].split(":")
    assert volume in compose["volumes"]
    workdir = re.search(r"^WORKDIR (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE).group(1)
    assert target == workdir + "/.cerebro"


def test_dockerfile_copies_and_runs_what_exists():
    text = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (\S+) ", text, re.MULTILINE)
    started = re.findall(r"scripts/[a-z]+\.(?:py|sh)", text)
    assert copied and started
    for name in copied + started:
        assert (ROOT / name).exists(), name


def test_no_file_names_a_registry():
    # Where packages come from is the machine's business.
    pattern = re.compile(r"index-url|https?://[^ ]*(?:pypi|docker\.io|ghcr)", re.IGNORECASE)
    names = ("Dockerfile", "docker-compose.yml", "Makefile", "requirements.txt", "requirements-dev.txt")
    files = [ROOT / name for name in names] + list((ROOT / "scripts").glob("*.*"))
    assert not [file for file in files if pattern.search(file.read_text("utf-8"))]
