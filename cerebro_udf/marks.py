"""How tables of predictions are told from all others: by a mark in their COMMENT, which only their owner can write."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import List, Optional

from cerebro_udf.errors import NotSupported

_GRANTS = """
select pg_catalog.format(
    'grant %s on %s to %s%s', a.privilege_type, $2
  , coalesce((select pg_catalog.quote_ident(r.rolname) from pg_catalog.pg_roles r where r.oid = a.grantee), 'public')
  , case when a.is_grantable then ' with grant option' else '' end) as command
from pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a
where c.oid = $1::text::pg_catalog.regclass and a.grantee <> c.relowner
"""

_POLICIES = "select c.relrowsecurity as policies from pg_catalog.pg_class c where c.oid = $1::text::pg_catalog.regclass"


@dataclass(frozen=True)
class Mark:
    """Who made a table of predictions.

    Attributes:
        run, source, target, key: Of the call.
        coordinator: Names the database that the call was made in.
        transaction: Number of the call's transaction there.
        name: Of the marked table when it was made; one that still has it and that nothing refers to is a leftover.
        left: Servers that hold tables of the targets before it, and that the call itself had nothing to do with.
    """

    run: str
    source: str
    target: str
    key: List[str]
    coordinator: str
    transaction: int
    name: Optional[str] = None
    left: List[str] = field(default_factory=list)

    PREFIX = "cerebro.predict_table "

    def named(self, name: str) -> "Mark":
        return dataclasses.replace(self, name=name)

    def text(self) -> str:
        return self.PREFIX + json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def of(cls, comment: Optional[str]) -> Optional["Mark"]:
        """Read a table's comment; None if it is no mark."""
        if comment is None or not comment.startswith(cls.PREFIX):
            return None
        try:
            return cls(**json.loads(comment[len(cls.PREFIX) :]))
        except (ValueError, TypeError):
            return None


def copy_grants(plpy, old: str, new: str) -> None:
    """Grant on one relation what is granted on another; both quoted and qualified.

    Raises:
        NotSupported: the other has row security, without which its grants would show more.
    """
    if plpy.execute(plpy.prepare(_POLICIES, ["text"]), [old])[0]["policies"]:
        raise has_policies(old)
    for row in plpy.execute(plpy.prepare(_GRANTS, ["text", "text"]), [old, new]):
        plpy.execute(row["command"])


def has_policies(relation: str) -> NotSupported:
    return NotSupported(
        "table %s has row security" % relation,
        "Its policies would go with it, and its grants then show every row.",
        'Set options.if_exists to "append"; or drop the table, and set the policies on the new one.',
    )
