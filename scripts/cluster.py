#!/usr/bin/python3
"""The embedded cluster: one coordinator and some segments, real PostgreSQL servers of your own.

It lives in the project's folder `.cerebro/` (or in a folder that the servers' user can read, where that user
cannot enter the project), listens on free loopback ports, asks everybody for a password (scram-sha-256), and
leaves the distribution's clusters and extension folder as they are. Standard library only, Debian's Python.

Names: the coordinator is node 0, segments count from 1; `segment_1` is a foreign server on the coordinator.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Optional

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import build  # noqa: E402

PYTHON = "/usr/bin/python3"  # the interpreter whose library Debian's plpython3u links
SERVER_USER = "cerebro"
ADMIN = "postgres"
DEMO = "demo"
DATABASE = "cerebro"
DEFAULT_SEGMENTS = 2
START_SECONDS = 60
SOCKET_PATH_BYTES = 107  # sun_path, without its final zero

CREATECLUSTER = Path("/etc/postgresql-common/createcluster.conf")
PACKAGES = ("postgresql-15", "postgresql-plpython3-15", "python3-venv")

HBA = """\
# Everybody needs a password, on every way in.
local all all              scram-sha-256
host  all all 127.0.0.1/32 scram-sha-256
"""

SETTINGS = """\
# Written by scripts/cluster.py at each start.
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{sockets}'
unix_socket_permissions = 0700
password_encryption = 'scram-sha-256'
shared_buffers = '128MB'
max_connections = 100
max_wal_size = '1GB'
fsync = {fsync}
full_page_writes = {fsync}
log_line_prefix = '%m [%p] %q%u@%d '
lc_messages = 'C'
timezone = 'UTC'
"""


class Problem(Exception):
    """Something the user has to know; the text says what to do about it."""


class Account(NamedTuple):
    """An operating system user."""

    name: str
    uid: int
    gid: int


def server_account() -> Account:
    """Who runs the servers: the caller, or an unprivileged user when the caller is root.

    Not `postgres`: that user may be the owner, and by peer the superuser, of the distribution's own clusters.
    """
    if os.geteuid() != 0:
        entry = pwd.getpwuid(os.geteuid())
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    try:
        entry = pwd.getpwnam(SERVER_USER)
    except KeyError:
        command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
        subprocess.run([*command, "--shell", "/usr/sbin/nologin", SERVER_USER], check=True)
        entry = pwd.getpwnam(SERVER_USER)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def may(account: Account, path: Path, bits: int) -> bool:
    """Whether the account has the permission bits (4 read, 1 enter) on one file or folder itself."""
    info = path.stat()
    if account.uid == 0:
        return True
    if info.st_uid == account.uid:
        return stat.S_IMODE(info.st_mode) >> 6 & bits == bits
    if info.st_gid == account.gid:
        return stat.S_IMODE(info.st_mode) >> 3 & bits == bits
    return stat.S_IMODE(info.st_mode) & bits == bits


def can_read(account: Account, path: Path) -> bool:
    """Whether the account can enter every parent of an existing path, and read the path."""
    return all(may(account, parent, 1) for parent in path.parents) and may(account, path, 4)


def default_home(account: Account) -> Path:
    """The folder for everything that servers read or write."""
    if "CEREBRO_HOME" in os.environ:
        return Path(os.environ["CEREBRO_HOME"]).resolve()
    if can_read(account, ROOT / "cerebro_udf" / "__init__.py"):
        return ROOT / ".cerebro"
    return Path("/var/lib") / ("cerebro-" + hashlib.sha256(str(ROOT).encode()).hexdigest()[:8])


def default_venv(account: Account) -> Path:
    """The Python environment that servers and tools share."""
    readable = can_read(account, ROOT / "cerebro_udf" / "__init__.py")
    return ROOT / ".venv" if readable else default_home(account) / "venv"


def pg_config() -> Path:
    """The server to use: $PG_CONFIG, else Debian's newest that has plpython3u."""
    if os.environ.get("PG_CONFIG"):
        return Path(os.environ["PG_CONFIG"])
    found = [path for path in Path("/usr/lib/postgresql").glob("*/bin/pg_config") if has_plpython(path)]
    if not found:
        raise Problem("no PostgreSQL server with plpython3u is installed: make env")
    return max(found, key=lambda path: int(path.parent.parent.name))


def has_plpython(config: Path) -> bool:
    folder = config.parent.parent
    return (folder / "bin/postgres").exists() and (folder / "lib/plpython3.so").exists()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def literal(text: str) -> str:
    """A string constant for SQL with standard_conforming_strings on."""
    return "'%s'" % text.replace("'", "''")


def identifier(text: str) -> str:
    return '"%s"' % text.replace('"', '""')


class Node:
    """One server of a cluster."""

    def __init__(self, cluster: "Cluster", number: int, entry: dict):
        self.cluster = cluster
        self.number = number
        self.entry = entry  # port, passwords by role, digests of the installed extension
        self.name = "coordinator" if number == 0 else "segment_%d" % number
        self.data = cluster.home / "nodes" / self.name
        self.log = cluster.home / "nodes" / (self.name + ".log")

    @property
    def port(self) -> int:
        return self.entry["port"]

    def pid(self) -> Optional[int]:
        """The running server's process id, else None."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
            # A process id is reused: only this folder's own server counts.
            if os.path.realpath("/proc/%d/cwd" % pid) == os.path.realpath(self.data):
                return pid
        except (OSError, ValueError):
            pass
        return None

    def password(self, role: str) -> str:
        try:
            return self.entry["passwords"][role]
        except KeyError:
            raise Problem("%s has no role %s from this script: make cluster" % (self.name, role)) from None

    def url(self, role: str = DEMO, database: str = DATABASE) -> str:
        return "postgresql://%s:%s@127.0.0.1:%d/%s" % (role, self.password(role), self.port, database)

    def sql(self, text: str, database: str = DATABASE) -> str:
        """Run SQL as superuser; returns psql's unaligned output."""
        command = [self.cluster.tool("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-f", "-"]
        command += ["-h", "127.0.0.1", "-p", str(self.port), "-U", ADMIN, "-d", database]
        environment = {"PGPASSWORD": self.password(ADMIN), "PATH": os.environ.get("PATH", "")}
        done = subprocess.run(command, input=text, text=True, capture_output=True, env=environment)
        if done.returncode:
            raise Problem("%s: %s" % (self.name, done.stderr.strip()))
        return done.stdout

    def create(self) -> None:
        """Make the data folder; the superuser has its password from the first moment."""
        if (self.data / "PG_VERSION").exists():
            return
        shutil.rmtree(self.data, ignore_errors=True)
        descriptor, pwfile = tempfile.mkstemp(dir=self.cluster.home / "nodes")
        try:
            os.write(descriptor, self.password(ADMIN).encode())
            self.cluster.give(Path(pwfile))
            self.cluster.command(
                "initdb", "-D", self.data, "-U", ADMIN, "--pwfile", pwfile, "--encoding", "UTF8",
                "--locale", "C.UTF-8", "--auth", "scram-sha-256", "--no-sync", "--no-instructions",
            )  # fmt: skip
        finally:
            os.close(descriptor)
            os.unlink(pwfile)
        with open(self.data / "postgresql.conf", "a") as file:
            file.write("\ninclude = 'cerebro.conf'\n")

    def configure(self, fsync: bool) -> bool:
        """Write settings and host-based authentication; returns whether anything changed."""
        sockets = self.cluster.home / "run"
        fits = len(os.fsencode(str(sockets / ".s.PGSQL.65535.lock"))) <= SOCKET_PATH_BYTES
        text = SETTINGS.format(
            port=self.port,
            fsync="on" if fsync else "off",
            sockets=str(sockets).replace("'", "''") if fits else "",
        )
        changed = False
        for name, wanted in (("cerebro.conf", text), ("pg_hba.conf", HBA)):
            file = self.data / name
            if not file.exists() or file.read_text() != wanted:
                file.write_text(wanted)
                self.cluster.give(file)
                changed = True
        return changed

    def start(self, fsync: bool) -> None:
        """Start the server, on another port if its own was taken meanwhile."""
        running = self.pid() is not None
        if not running and not port_is_free(self.port):
            self.entry["port"] = free_port()
        changed = self.configure(fsync)
        if running:
            if changed:
                self.cluster.command("pg_ctl", "reload", "-s", "-D", self.data)
            return
        try:
            self.cluster.command(
                "pg_ctl", "start", "-s", "-w", "-t", START_SECONDS, "-D", self.data, "-l", self.log
            )
        except Problem as problem:
            tail = self.log.read_text(errors="replace").splitlines()[-15:] if self.log.exists() else []
            raise Problem("\n".join([str(problem), "the end of %s:" % self.log, *tail])) from None

    def stop(self, mode: str = "fast") -> None:
        if self.pid() is not None:
            self.cluster.command("pg_ctl", "stop", "-s", "-w", "-m", mode, "-D", self.data)

    def provision(self) -> None:
        """Create the database, the extension and the roles that this node lacks."""
        found = "SELECT 1 FROM pg_catalog.pg_database WHERE datname = %s" % literal(DATABASE)
        if not self.sql(found, "postgres"):
            self.sql("CREATE DATABASE %s" % identifier(DATABASE), "postgres")
        self.sql("SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS postgres_fdw")
        self.extension()
        for role in self.cluster.roles:
            self.add_role(role)

    def extension(self) -> None:
        """Create the extension, update it from a released version, or run its functions again where they changed since."""
        wanted = self.cluster.digests()
        had = self.entry.get("extension", {})
        there = self.sql("SELECT e.extversion FROM pg_catalog.pg_extension e WHERE e.extname = 'cerebro'").strip()
        if there in build.released() and there != build.version():
            self.sql("ALTER EXTENSION cerebro UPDATE")
        elif there and had.get("version", build.version()) == build.version() and had.get("migrations") != wanted["migrations"]:
            raise Problem(
                "%s: migrations/ changed since the extension was created here. Start afresh with\n"
                "`make clean`, or `scripts/cluster.py recreate` (drops runs and models, keeps tables)."
                % self.name
            )
        elif not there:
            self.sql("SET client_min_messages = warning; CREATE EXTENSION cerebro CASCADE")
        elif had != wanted:
            self.sql(
                "BEGIN; ALTER EXTENSION cerebro UPDATE TO 'reload';"
                "ALTER EXTENSION cerebro UPDATE TO %s; COMMIT" % literal(build.version())
            )
        self.entry["extension"] = wanted

    def add_role(self, role: str) -> None:
        """Create an ordinary role, with a password of its own on this node."""
        passwords = self.entry["passwords"]
        passwords.setdefault(role, secrets.token_urlsafe(24))
        name = identifier(role)
        found = "SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s" % literal(role)
        verb = "ALTER" if self.sql(found) else "CREATE"
        self.sql("%s ROLE %s LOGIN PASSWORD %s" % (verb, name, literal(passwords[role])))
        self.sql("GRANT CREATE ON DATABASE %s TO %s" % (identifier(DATABASE), name))
        if self.number == 0 and role == DEMO:
            self.sql("ALTER DATABASE %s OWNER TO %s" % (identifier(DATABASE), name))

    def link(self, server: str, target: "Node", roles: list[str]) -> None:
        """Point a foreign server of this node at the target, with a user mapping per role."""
        name = identifier(server)
        found = "SELECT coalesce(srvoptions, '{}') FROM pg_catalog.pg_foreign_server WHERE srvname = %s"
        options = self.sql(found % literal(server)).strip()
        wanted = {"host": "127.0.0.1", "port": str(target.port), "dbname": DATABASE}
        if not options:
            pairs = ", ".join("%s %s" % (key, literal(value)) for key, value in wanted.items())
            self.sql("CREATE SERVER %s FOREIGN DATA WRAPPER postgres_fdw OPTIONS (%s)" % (name, pairs))
        else:
            pairs = ", ".join(
                "%s %s %s" % ("SET" if key + "=" in options else "ADD", key, literal(value))
                for key, value in wanted.items()
            )
            self.sql("ALTER SERVER %s OPTIONS (%s)" % (name, pairs))
        for role in roles:
            who, password = identifier(role), literal(target.password(role))
            self.sql(
                "SET client_min_messages = warning; GRANT USAGE ON FOREIGN SERVER {server} TO {who};"
                "CREATE USER MAPPING IF NOT EXISTS FOR {who} SERVER {server}"
                " OPTIONS (user {user}, password {password});"
                "ALTER USER MAPPING FOR {who} SERVER {server}"
                " OPTIONS (SET user {user}, SET password {password})".format(
                    server=name, who=who, user=literal(role), password=password
                )
            )


class Cluster:
    """A coordinator and its segments in one folder.

    Args:
        home: The folder; created by `start`. Everything in it belongs to the cluster.
        venv: The Python environment that the servers import packages from.
    """

    def __init__(self, home: Optional[Path] = None, venv: Optional[Path] = None):
        self.account = server_account()
        self.home = Path(home) if home else default_home(self.account)
        self.venv = Path(venv) if venv else default_venv(self.account)
        self._load()

    # The state file: ports, passwords, what is installed where.

    def _load(self) -> None:
        file = self.home / "state.json"
        self.state = {"nodes": [], "roles": [], "fsync": True}
        if file.exists():
            self.state = json.loads(file.read_text())
        self.nodes = [Node(self, number, entry) for number, entry in enumerate(self.state["nodes"])]

    def _save(self) -> None:
        descriptor, name = tempfile.mkstemp(dir=self.home, prefix="state.")  # mkstemp: mode 600
        with os.fdopen(descriptor, "w") as file:
            json.dump(self.state, file, indent=1)
        os.replace(name, self.home / "state.json")

    @contextlib.contextmanager
    def _lock(self):
        """One command at a time changes a cluster."""
        self.home.mkdir(parents=True, exist_ok=True)
        with open(self.home / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._load()
            yield

    @property
    def coordinator(self) -> Node:
        if not self.nodes:
            raise Problem("there is no cluster yet: make cluster")
        return self.nodes[0]

    @property
    def segments(self) -> list[Node]:
        return self.nodes[1:]

    @property
    def roles(self) -> list[str]:
        return self.state["roles"]

    # The servers' own installation.

    @property
    def _prefix(self) -> dict[str, Path]:
        """Where the private copy of the server's installation keeps bin, share and lib."""
        config = pg_config()
        options = ["--bindir", "--sharedir", "--pkglibdir"]
        asked = subprocess.run([config, *options], text=True, capture_output=True, check=True).stdout
        real = dict(zip(("bin", "share", "lib"), map(Path, asked.splitlines())))
        common = os.path.commonpath(list(real.values()))
        self._real = real
        return {key: self.home / "prefix" / path.relative_to(common) for key, path in real.items()}

    def tool(self, name: str) -> str:
        """The full path of one of the server's programs."""
        if not hasattr(self, "_bin"):
            self._bin = self._prefix["bin"]
        return str(self._bin / name)

    def command(self, name: str, *arguments: object) -> None:
        """Run one of the server's programs as the servers' user."""
        environment = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self.home / "run"),
            "KERAS_HOME": str(self.home / "run"),
            "PYTHONPATH": "%s:%s" % (self.home / "package", self.site_packages()),
        }
        as_user = {}
        if os.geteuid() == 0:
            as_user = {"user": self.account.uid, "group": self.account.gid, "extra_groups": []}
        with tempfile.TemporaryFile() as errors:
            # A file, not a pipe: a started server inherits it and would keep a pipe open.
            done = subprocess.run(
                [self.tool(name), *map(str, arguments)], env=environment, cwd="/", umask=0o077,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, **as_user,
            )  # fmt: skip
            if done.returncode:
                errors.seek(0)
                raise Problem("%s failed: %s" % (name, errors.read().decode(errors="replace").strip()))

    def give(self, path: Path) -> None:
        """Make a file or folder the servers' user's own, closed to others."""
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
        if os.geteuid() == 0:
            os.chown(path, self.account.uid, self.account.gid)

    def site_packages(self) -> Path:
        done = subprocess.run([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                              text=True, capture_output=True, check=True)  # fmt: skip
        return self.venv / "lib" / ("python" + done.stdout.strip()) / "site-packages"

    def _install(self) -> None:
        """Refresh the private installation: programs, extension, Python package."""
        prefix = self._prefix
        for key in ("bin", "share"):
            prefix[key].mkdir(parents=True, exist_ok=True)
        for name in ("postgres", "initdb", "pg_ctl", "pg_config"):
            # Copies: a program finds share and lib relative to its own real path.
            source, target = self._real["bin"] / name, prefix["bin"] / name
            if not target.exists() or target.stat().st_mtime != source.stat().st_mtime:
                shutil.copy2(source, target.with_suffix(".new"))
                os.replace(target.with_suffix(".new"), target)
        links = [(prefix["lib"], self._real["lib"])]
        links += [(prefix["bin"] / file.name, file) for file in self._real["bin"].iterdir()]
        extension = prefix["share"] / "extension"
        extension.mkdir(exist_ok=True)
        links += [(prefix["share"] / file.name, file) for file in self._real["share"].iterdir()]
        links += [(extension / file.name, file) for file in (self._real["share"] / "extension").iterdir()]
        for link, target in links:
            if not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(target)

        for file in extension.glob("cerebro*"):
            file.unlink()
        build.build(extension, development=True)

        package = self.home / "package"
        package.mkdir(exist_ok=True)
        target = package / "cerebro_udf"
        source = ROOT / "cerebro_udf"
        if can_read(self.account, source / "__init__.py"):
            if not target.is_symlink():
                target.symlink_to(source)
        else:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))

    def digests(self) -> dict[str, str]:
        """What the built extension consists of, to see later whether it changed."""
        return {
            "migrations": build.digest(build.concatenate(build.migrations())),
            "functions": build.digest(build.concatenate(build.functions())),
            "version": build.version(),
        }

    # What the commands do.

    def start(self, segments: Optional[int] = None, fsync: Optional[bool] = None) -> None:
        """Start what is not running, create what is missing; segments are added, never removed."""
        old_mask = os.umask(0o022)
        try:
            with self._lock(), ThreadPoolExecutor() as pool:
                if fsync is not None:
                    self.state["fsync"] = fsync
                if not self.roles:
                    self.roles.append(DEMO)
                for folder in ("nodes", "run"):
                    (self.home / folder).mkdir(exist_ok=True)
                    self.give(self.home / folder)
                self._install()
                wanted = 1 + (segments or len(self.segments) or DEFAULT_SEGMENTS)
                while len(self.nodes) < wanted:
                    entry = {"port": free_port(), "passwords": {ADMIN: secrets.token_urlsafe(24)}}
                    self.state["nodes"].append(entry)
                    self.nodes.append(Node(self, len(self.nodes), entry))
                self._save()  # before any server exists that only this file has the password of
                list(pool.map(lambda node: node.create(), self.nodes))
                list(pool.map(lambda node: node.start(self.state["fsync"]), self.nodes))
                self._save()
                self._provision(pool)
        finally:
            os.umask(old_mask)

    def _provision(self, pool: ThreadPoolExecutor) -> None:
        wanted = build.digest(repr((self.digests(), [node.port for node in self.nodes], self.roles)))
        if self.state.get("provisioned") == wanted:
            return
        try:
            list(pool.map(lambda node: node.provision(), self.nodes))
        finally:
            self._save()
        self._links(self.roles)
        self.state["provisioned"] = wanted
        self._save()

    def _links(self, roles: list[str]) -> None:
        for node in self.segments:
            self.coordinator.link(node.name, node, roles)
        self.coordinator.link("cerebro_self", self.coordinator, roles)

    def add_role(self, role: str) -> None:
        """Create an ordinary role on every node, and its user mappings on the coordinator."""
        with self._lock():
            for node in self.nodes:
                node.add_role(role)
            self._links([role])
            if role not in self.roles:
                self.roles.append(role)
            self._save()

    def recreate(self) -> None:
        """Drop and create the extension: runs and models are lost."""
        with self._lock():
            self._install()
            for node in self.nodes:
                node.sql("SET client_min_messages = warning; DROP EXTENSION IF EXISTS cerebro CASCADE")
            self.state.pop("provisioned", None)
            self._save()
        self.start()

    def stop(self, mode: str = "fast") -> None:
        """Stop every server of this cluster."""
        if self.nodes:
            with self._lock(), ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: node.stop(mode), self.nodes))

    def clean(self) -> None:
        """Stop and remove the cluster; the Python environment stays."""
        self.stop()
        for name in ("nodes", "run", "prefix", "package"):
            shutil.rmtree(self.home / name, ignore_errors=True)
        for name in ("state.json", "lock"):
            (self.home / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.home.rmdir()
        self._load()

    def status(self) -> str:
        lines = ["folder       %s" % self.home, "servers' user %s" % self.account.name]
        for node in self.nodes:
            pid = node.pid()
            state = "running, process %d" % pid if pid else "stopped"
            lines.append("%-12s 127.0.0.1:%d  %s  %s" % (node.name, node.port, state, node.log))
        return "\n".join(lines)


# The environment: system packages and the Python packages that requirements*.txt pin.


def install_packages() -> None:
    """Install the server where it is missing; as root, else say what to run."""
    missing = []
    try:
        pg_config()
    except Problem:
        missing += PACKAGES[:2]
    if subprocess.run([PYTHON, "-c", "import ensurepip, venv"], capture_output=True).returncode:
        missing += PACKAGES[2:]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        command = "apt-get install -y --no-install-recommends " + " ".join(missing)
        raise Problem("these are missing; as root, on Debian 12:\n    " + command)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    apt = ["apt-get", "-q", "-y", "--no-install-recommends"]
    subprocess.run([*apt, "update"], env=environment, check=True)
    file, before = CREATECLUSTER, None
    if PACKAGES[0] in missing and not Path("/usr/lib/postgresql/15/bin/postgres").exists():
        # Else the package would create and start a server of the distribution's.
        subprocess.run([*apt, "install", "postgresql-common"], env=environment, check=True)
        before = file.read_bytes()
        file.write_bytes(before + b"\n# While cerebro's scripts/cluster.py installs\ncreate_main_cluster = false\n")
    try:
        subprocess.run([*apt, "install", *missing], env=environment, check=True)
    finally:
        if before is not None:
            file.write_bytes(before)


def install_venv(venv: Path, development: bool) -> None:
    """Create the environment and install what is pinned; nothing to do when the stamp matches."""
    names = ["requirements.txt"] + (["requirements-dev.txt"] if development else [])
    if not (venv / "bin/python").exists():
        subprocess.run([PYTHON, "-m", "venv", venv], check=True)
    for name in names:
        text = (ROOT / name).read_text()
        stamp = venv / (".installed-" + name)
        if stamp.exists() and stamp.read_text() == text:
            continue
        # --no-deps: the files pin everything, and the data package asks for pandas to read its own CSV.
        pip = [venv / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, "--no-deps", "--use-pep517", "-r", ROOT / name], check=True)
        stamp.write_text(text)


def positive(text: str) -> int:
    if not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError("between 1 and 64")
    return int(text)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description="The embedded cluster.")
    top.add_argument("--home", type=Path, help="the cluster's folder (default: .cerebro in the project)")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    add("env", "install what is missing").add_argument("--dev", action="store_true", help="test tools too")
    start = add("start", "start the cluster, creating what is missing")
    start.add_argument("--segments", type=positive, help="how many; more are added (default: 2)")
    start.add_argument("--no-fsync", dest="fsync", action="store_false", default=None, help="for tests")
    start.add_argument("--fsync", dest="fsync", action="store_true", help="the default")
    add("stop", "stop the cluster")
    add("clean", "remove the cluster and its data")
    add("recreate", "drop and create the extension (runs and models are lost)")
    add("status", "show the servers")
    add("python", "print the path of the environment's Python")
    add("url", "print the demo role's connection string")
    add("admin-url", "print the superuser's connection string")
    psql = add("psql", "open psql as the demo role; other arguments are psql's")
    psql.add_argument("--admin", action="store_true", help="as superuser")
    psql.add_argument("--node", type=int, default=0, help="0: the coordinator, 1: segment_1, …")
    return top


def main() -> None:
    given, rest = parser().parse_known_args()
    if rest and given.command != "psql":
        parser().error("unknown: %s" % " ".join(rest))
    if given.command == "env":
        install_packages()
    cluster = Cluster(given.home.resolve() if given.home else None)
    if given.command == "env":
        old_mask = os.umask(0o022)
        cluster.venv.parent.mkdir(parents=True, exist_ok=True)
        install_venv(cluster.venv, given.dev)
        os.umask(old_mask)
        print("Python environment: %s" % cluster.venv)
    elif given.command == "start":
        cluster.start(given.segments, given.fsync)
        print("cluster: %s (servers run as %s)" % (cluster.home, cluster.account.name))
    elif given.command == "url":
        print(cluster.coordinator.url())
    elif given.command == "admin-url":
        print(cluster.coordinator.url(ADMIN))
    elif given.command == "python":
        print(cluster.venv / "bin/python")
    elif given.command == "status":
        print(cluster.status())
    elif given.command == "psql":
        node = ([cluster.coordinator] + cluster.segments)[given.node]
        role = ADMIN if given.admin else DEMO
        os.environ["PGPASSWORD"] = node.password(role)
        where = ["-h", "127.0.0.1", "-p", str(node.port), "-U", role, "-d", DATABASE]
        os.execv(cluster.tool("psql"), ["psql", *where, *rest])
    else:
        getattr(cluster, given.command)()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        main()
    except Problem as problem:
        sys.exit("cluster.py: %s" % problem)
    except subprocess.CalledProcessError as failed:
        sys.exit("cluster.py: failed: %s" % " ".join(map(str, failed.cmd)))
