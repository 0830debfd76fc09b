#!/usr/bin/python3
"""Build the extension: concatenate migrations/ and sql/ into one script beside a control file.

    scripts/build.py [FOLDER]          (default: build/)
    scripts/build.py --release         keep this version's script in releases/, and freeze it and its migrations

migrations/ holds what runs once, numbered, frozen once released; sql/ holds what may be run again; releases/ holds the
scripts of former versions, which are installed too: a dump of one of them is restored into that version, and then updated.
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

# What drives a run holds locks that an update waits for, and its ledger would then wait for the update.
GUARD = """
DO $do$
DECLARE
    driven record;
BEGIN
    SELECT r.name, r.owner, r.driver_pid INTO driven
    FROM cerebro_internal.run r
    JOIN pg_catalog.pg_locks l ON l.pid = r.driver_pid AND l.objid::int8 = r.lock_key
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::int8 = 1128616514
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'run "%" is being driven', driven.name
        USING ERRCODE = '55006'
          , DETAIL = pg_catalog.format('It belongs to role "%s"; the session of process %s drives it.', driven.owner, driven.driver_pid)
          , HINT = pg_catalog.format(
                'Wait for it, or cancel it (cerebro.resume goes on with it then): select pg_cancel_backend(%s);', driven.driver_pid);
    END IF;
END
$do$;
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
    """What migrations/frozen.txt says of what was released: (sha256, file, the release that brought it)."""
    lines = (root / "migrations" / "frozen.txt").read_text("utf-8").splitlines()
    return [tuple(line.split()) for line in lines if line.strip() and not line.startswith("#")]


def released(root: Path = ROOT) -> list[str]:
    """The versions that were released, oldest first."""
    return sorted({release for _, _, release in frozen(root)}, key=lambda text: [int(part) for part in text.split(".")])


def script_of(release: str) -> str:
    """Where the script of a released version is kept."""
    return "releases/cerebro--%s.sql" % release


def concatenate(files: list[Path], root: Path = ROOT) -> str:
    """The files' text, each under a line that names it."""
    return "".join(
        "\n-- %s\n%s\n" % (file.relative_to(root), file.read_text("utf-8").rstrip()) for file in files
    )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def header(command: str) -> str:
    return HEAD.format(command=command)


def whole(root: Path = ROOT) -> str:
    """The script that creates the extension as it is now."""
    return header("CREATE EXTENSION cerebro") + concatenate(migrations(root), root) + concatenate(functions(root), root)


def update(later: list[Path], root: Path = ROOT) -> str:
    """A script that brings the extension up to date from where only these migrations are missing."""
    return header("ALTER EXTENSION cerebro UPDATE") + GUARD + concatenate(later, root) + concatenate(functions(root), root)


def build(folder: Path, root: Path = ROOT, development: bool = False) -> None:
    """Write the control file, the script, those of every release so far, and an update script from each.

    With `development`, also two scripts that let a server run sql/ again without a new version
    (`ALTER EXTENSION cerebro UPDATE TO 'reload'`, and back).
    """
    folder.mkdir(parents=True, exist_ok=True)
    new, known, releases = version(root), frozen(root), released(root)
    scripts = {"cerebro--%s.sql" % new: whole(root)}
    for place, old in enumerate(releases):
        had = {file for _, file, release in known if release in releases[: place + 1]}
        if old != new:
            later = [file for file in migrations(root) if str(file.relative_to(root)) not in had]
            scripts["cerebro--%s--%s.sql" % (old, new)] = update(later, root)
            scripts["cerebro--%s.sql" % old] = (root / script_of(old)).read_text("utf-8")
    if development:
        scripts["cerebro--%s--reload.sql" % new] = header("ALTER EXTENSION cerebro UPDATE")
        scripts["cerebro--reload--%s.sql" % new] = update([], root)
    for name, text in scripts.items():
        (folder / name).write_text(text, "utf-8")
    (folder / "cerebro.control").write_text(CONTROL.format(version=new), "utf-8")


def release(root: Path = ROOT) -> None:
    """Keep the script of this version, and freeze it with the migrations that it brings."""
    new = version(root)
    if new in released(root):
        raise SystemExit("%s is released already: raise __version__ in cerebro_udf/__init__.py" % new)
    script = root / script_of(new)
    script.parent.mkdir(exist_ok=True)
    script.write_text(whole(root), "utf-8")
    had = {file for _, file, _ in frozen(root)}
    with open(root / "migrations" / "frozen.txt", "a", encoding="utf-8") as kept:
        for file in [*migrations(root), script]:
            name = str(file.relative_to(root))
            if name not in had:
                kept.write("%s %s %s\n" % (digest(file.read_text("utf-8")), name, new))


if __name__ == "__main__":
    if sys.argv[1:] == ["--release"]:
        release()
    else:
        build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build")
