"""Tables in Spark's catalog.

Spark does not pass the options of a table to reads and writes, so they are stored in the table's schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tubes.backend.url import redact_url
from tubes.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Spark adds to the options of CREATE TABLE: the name of the data source, and a copy of each option with this prefix.
_PROVIDER: Final = "provider"
_PREFIX: Final = "option."
#: The column whose metadata store the options. Every read and every INSERT has it.
_COLUMN: Final = "data"
_KEY: Final = "tubes"


def options_of_create(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the OPTIONS of a CREATE TABLE, without its properties. Return None for other statements."""
    if _PROVIDER not in options:
        return None
    if "location" in options:
        raise InvalidOption(option="LOCATION", value=options["location"], rule="is for files: a table names its tube")
    created = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    if "writeid" in created:
        rule = "names one write: a second INSERT would put nothing"
        raise InvalidOption(option="writeId", value=created["writeid"], rule=rule)
    return created


def keep(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Store the options in a table's schema. DESCRIBE and SHOW CREATE TABLE show the comment, but not the options."""
    tube = f"tube {options['tube']}" if "tube" in options else f"tubes {options['tubes']}"
    comment = f"{tube} on {redact_url(options['url'])}"
    schema[_COLUMN].metadata = {_KEY: dict(options), "comment": comment}
    return schema


def recall(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options stored in a table's schema, or {} if the query names a server or tubes itself."""
    if options.keys() & {"url", "tube", "tubes"} or _COLUMN not in schema.names:
        return {}
    kept: dict[str, str] = schema[_COLUMN].metadata.get(_KEY, {})
    return kept
