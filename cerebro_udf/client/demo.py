"""What `make demo` shows, as an ordinary role and through SQL alone.

    CEREBRO_URL=postgresql://demo:…@127.0.0.1:…/cerebro python -m cerebro_udf.client.demo [--segments N]

The URL holds a password, so it comes by the environment: everybody can read a command line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Optional, Sequence

import psycopg
import sqlalchemy
from sqlalchemy import event, text

from cerebro_udf.client import load

MODEL = "late_mlp"
RUN = "demo"
DEFINITION = {
    "layers": [
        {"Dense": {"units": "$units", "activation": "relu"}},
        {"Dense": {"units": "$classes", "activation": "softmax"}},
    ]
}
# Known before take-off, and the delay when leaving.
FEATURES = ["dep_delay", "distance", "hour", "day", "carrier", "origin", "dest"]
OPTIONS = {
    "epochs": 3,
    "nulls": "skip",
    "seed": 2013,
    "if_exists": "replace",
    "search": {"space": {"units": [32, 64], "learning_rate": [0.003, 0.0003], "batch_size": [256, 1024]}},
}

FIT = """\
select * from cerebro.fit(
    '{run}'
  , 'flights'
  , '{model}'
  , 'late'
  , array[{features}]
  , '{options}'
)"""

PREDICT = """\
select f.carrier, f.origin, f.dest, f.dep_delay, f.late
     , cerebro.predict_class('{run}', f) as predicted
     , cerebro.predict_probabilities('{run}', f) as probabilities
  from (select * from flights_holdout where id % 2000 = 0 and late is not null) f
 order by f.id"""


def engine_for(url: str) -> sqlalchemy.Engine:
    """An engine in autocommit mode that prints the server's NOTICE lines as they come."""
    made = sqlalchemy.create_engine(
        sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )

    @event.listens_for(made, "connect")
    def listen(connection: psycopg.Connection, record: object) -> None:
        connection.add_notice_handler(lambda notice: print("  " + notice.message_primary, flush=True))

    return made


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "%.4f" % value
    if isinstance(value, dict):
        return ", ".join("%s: %s" % (key, shown(part)) for key, part in value.items())
    return str(value)


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as psql would show them."""
    cells = [[shown(value) for value in row] for row in rows]
    widths = [max(len(line[k]) for line in [list(names), *cells]) for k in range(len(names))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in [names, *cells]]
    return "\n".join(" " + line.rstrip() for line in [lines[0], "-+-".join("-" * w for w in widths), *lines[1:]])


def show(connection: sqlalchemy.Connection, statement: str) -> list[Sequence[Any]]:
    """Print a statement, run it, print what it returns."""
    print("\n" + statement + ";", flush=True)
    result = connection.execute(text(statement.replace(":", "\\:")))
    rows = result.fetchall()
    print(table(list(result.keys()), rows), flush=True)
    return rows


def server_message(error: psycopg.Error) -> str:
    """An error as psql shows it."""
    diag = error.diag
    parts = {
        "ERROR": diag.message_primary or str(error),
        "DETAIL": diag.message_detail,
        "HINT": diag.message_hint,
    }
    return "\n".join("%s:  %s" % (name, part) for name, part in parts.items() if part)


def demo(url: str, segments: Optional[int], psql: str) -> None:
    """Load, register, fit, evaluate, predict."""
    started = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        load.load(connection, segments)
    with engine_for(url).connect() as connection:
        show(connection, "select segment, shard, rows_estimate, bytes from cerebro.segments('flights')")
        known = connection.execute(text("select 1 from cerebro.model where model = :m"), {"m": MODEL})
        if not known.fetchall():
            show(connection, "select cerebro.create_model('%s', '%s')" % (MODEL, json.dumps(DEFINITION)))
        features = ", ".join("'%s'" % name for name in FEATURES)
        show(connection, FIT.format(run=RUN, model=MODEL, features=features, options=json.dumps(OPTIONS)))
        show(connection, "select * from cerebro.evaluate('%s', 'flights_holdout', '{\"nulls\": \"skip\"}')" % RUN)
        show(connection, PREDICT.format(run=RUN))
    print("\ndone in %.0f s. Go on with\n\n    %s\n" % (time.monotonic() - started, psql))


def main() -> None:
    parser = argparse.ArgumentParser(description="Cerebro's demonstration.")
    parser.add_argument("--segments", type=int, help="how many segments to shard over (default: all)")
    parser.add_argument("--psql", default='psql "$CEREBRO_URL"', help="the line to go on with (default: %(default)s)")
    given = parser.parse_args()
    if "CEREBRO_URL" not in os.environ:
        parser.error("set CEREBRO_URL: the coordinator, as the role that shall own the tables")
    try:
        demo(os.environ["CEREBRO_URL"], given.segments, given.psql)
    except sqlalchemy.exc.DBAPIError as error:
        sys.exit(server_message(error.orig))


if __name__ == "__main__":
    main()
