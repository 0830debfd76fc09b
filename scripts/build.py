#!/usr/bin/python3
"""Build the extension: concatenate migrations/ and sql/ into one script beside a control file.

    scripts/build.py [FOLDER]          (default: build/)

migrations/ holds what runs once, numbered, frozen once released; sql/ holds what may be run again.
Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Files of sql/ that others depend on come first, in this order; the rest follows by name.
ORDER: tuple[str, ...] = ("catalog.sql",)

# Nothing is found by a search path that the installing superuser has: an operator in public, say, is nobody's here.
HEAD = """\\echo Use "{command}" to load this file.\\quit
SET LOCAL search_path = pg_catalog, pg_temp;
"""

CONTROL = """\
comment = 'train Keras models where the rows live: models hop between segments'
default_version = '{version}'
encoding = 'UTF8'
relocatable = false
requires = 'plpython3u'
superuser = true
"""


def version(root: Path = ROOT) -> str:
    """The project's version, from the one place that holds it."""
    text = (root / "cerebro_udf" / "__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if not found:
        raise SystemExit("cerebro_udf/__init__.py holds no __version__")
    return found.group(1)


def migrations(root: Path = ROOT) -> list[Path]:
    """The files that run once, in order; their numbers count up from 001 without a gap."""
    files = sorted((root / "migrations").glob("*.sql"))
    for number, file in enumerate(files, 1):
        if not file.name.startswith("%03d-" % number):
            raise SystemExit("migrations/%s: its name should begin with %03d-" % (file.name, number))
    return files


def functions(root: Path = ROOT) -> list[Path]:
    """The files that may be run again, in the order in which they are installed."""
    files = {file.name: file for file in sorted((root / "sql").glob("*.sql"))}
    missing = [name for name in ORDER if name not in files]
    if missing:
        raise SystemExit("ORDER in scripts/build.py names sql/%s, which does not exist" % missing[0])
    return [files.pop(name) for name in ORDER] + list(files.values())


def frozen(root: Path = ROOT) -> list[tuple[str, str, str]]:
    """What migrations/frozen.txt says of released migrations: (sha256, file name, first release)."""
    lines = (root / "migrations" / "frozen.txt").read_text("utf-8").splitlines()
    return [tuple(line.split()) for line in lines if line.strip() and not line.startswith("#")]


def concatenate(files: list[Path], root: Path = ROOT) -> str:
    """The files' text, each under a line that names it."""
    return "".join(
        "\n-- %s\n%s\n" % (file.relative_to(root), file.read_text("utf-8").rstrip()) for file in files
    )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def build(folder: Path, root: Path = ROOT, development: bool = False) -> None:
    """Write the control file, the script, and an upgrade script from every release so far.

    With `development`, also two scripts that let a server run sql/ again without a new version
    (`ALTER EXTENSION cerebro UPDATE TO 'reload'`, and back).
    """
    folder.mkdir(parents=True, exist_ok=True)
    new = version(root)
    rerun = concatenate(functions(root), root)
    scripts = {"cerebro--%s.sql" % new: concatenate(migrations(root), root) + rerun}

    releases = {file: release for _, file, release in frozen(root)}
    order = sorted(set(releases.values()), key=lambda text: [int(part) for part in text.split(".")])
    for place, old in enumerate(order):
        known = {file for file, release in releases.items() if release in order[: place + 1]}
        if old != new:
            later = [file for file in migrations(root) if file.name not in known]
            scripts["cerebro--%s--%s.sql" % (old, new)] = concatenate(later, root) + rerun
    if development:
        scripts["cerebro--%s--reload.sql" % new] = ""
        scripts["cerebro--reload--%s.sql" % new] = rerun

    for name, text in scripts.items():
        update = name.count("--") == 2
        command = "ALTER EXTENSION cerebro UPDATE" if update else "CREATE EXTENSION cerebro"
        (folder / name).write_text(HEAD.format(command=command) + text, "utf-8")
    (folder / "cerebro.control").write_text(CONTROL.format(version=new), "utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build")
