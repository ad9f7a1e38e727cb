"""Tables of Spark's catalog: their options are in their schema, since Spark passes them to no read and no write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tubes.backend.url import redact_url
from tubes.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: What Spark adds to the options of CREATE TABLE: the data source, and each option once more, with this prefix.
_PROVIDER: Final = "provider"
_PREFIX: Final = "option."
#: The column whose metadata have the options. Every read and every INSERT has it.
_COLUMN: Final = "data"
_KEY: Final = "tubes"


def options_of_create(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options that the user has given in CREATE TABLE, without properties; None if this is none."""
    if _PROVIDER not in options:
        return None
    if "location" in options:
        raise InvalidOption(option="LOCATION", value=options["location"], rule="is for files: a table names its tube")
    given = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    if "writeid" in given:
        rule = "names one write: a second INSERT would put nothing"
        raise InvalidOption(option="writeId", value=given["writeid"], rule=rule)
    return given


def keep(schema: StructType, options: Mapping[str, str]) -> StructType:
    """This schema for a table with these options. DESCRIBE and SHOW CREATE TABLE show the comment, and no options."""
    comment = f"tube {options['tube']} on {redact_url(options['url'])}"
    schema[_COLUMN].metadata = {_KEY: dict(options), "comment": comment}
    return schema


def recall(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """The options of the table whose schema this is; none if the query names a server or a tube itself."""
    if options.keys() & {"url", "tube"} or _COLUMN not in schema.names:
        return {}
    kept: dict[str, str] = schema[_COLUMN].metadata.get(_KEY, {})
    return kept
