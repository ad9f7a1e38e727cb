"""JSON schemas that check the parts of requests, and describe them in `/openapi.json`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

from tubes.drivers.driver import DRIVER_NAME, NAMES, RESERVED, TUBE_NAME, TUBE_NAMES
from tubes.drivers.options import MAX_ATTEMPTS, MAX_COUNT, MAX_PRI, MAX_SECONDS
from tubes.drivers.registry import BUILT_IN
from tubes.errors import Facts, InvalidOption
from tubes.serve.problems import REQUIRED
from tubes.serve.service import Limits

#: A JSON schema as in OpenAPI 3.1.
Schema: TypeAlias = Facts
#: Members of an object, or parameters of a query, with their schemas.
Fields: TypeAlias = Mapping[str, Schema]


def integer(minimum: int = 0, maximum: int = MAX_COUNT) -> Schema:
    """Return the schema of a whole number within bounds."""
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def number(minimum: float = 0, maximum: float = MAX_SECONDS) -> Schema:
    """Return the schema of a number within bounds; the default bounds fit seconds."""
    return {"type": "number", "minimum": minimum, "maximum": maximum}


def one_of(*words: str) -> Schema:
    """Return the schema of a string with these values."""
    return {"type": "string", "enum": list(words)}


def pattern_schema(pattern: str, rule: str) -> Schema:
    """Return the schema of a string that matches a pattern completely; `rule` describes the string."""
    return {"type": "string", "pattern": f"^{pattern}$", "description": rule}


def nullable(schema: Schema) -> Schema:
    kinds = schema["type"]
    return {**schema, "type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}


def list_schema(schema: Schema, maximum: int | None = None, *, minimum: int = 0) -> Schema:
    bounds = {} if maximum is None else {"minItems": minimum, "maxItems": maximum}
    return {"type": "array", "items": schema, **bounds}


def object_schema(members: Fields, *optional: str) -> Schema:
    """Return the schema of an object with these members."""
    return {"type": "object", "properties": dict(members), "required": [m for m in members if m not in optional]}


def map_schema(schema: Schema) -> Schema:
    """Return the schema of an object whose members, with any names, have this schema."""
    return {"type": "object", "additionalProperties": schema}


def request_schema(members: Fields, *required: str, **keywords: Any) -> Schema:
    """Return the schema of an object with some of these members and no others."""
    schema: Schema = {"type": "object", "properties": dict(members), "additionalProperties": False, **keywords}
    return schema | ({"required": list(required)} if required else {})


TEXT: Final[Schema] = {"type": "string"}
NONEMPTY: Final[Schema] = {"type": "string", "minLength": 1}
INTEGER: Final = integer()
COUNT: Final = integer(1)
PRI: Final = integer(0, MAX_PRI)
ATTEMPTS: Final = integer(1, MAX_ATTEMPTS)
SECONDS: Final = number()
#: Number of tasks of a batch or a list, and seconds for which a request may wait.
BATCH: Final = integer(1, Limits.batch)
WAIT: Final = number(0, Limits.wait)
NUMBER: Final[Schema] = {"type": "number"}
MOMENT: Final = NUMBER
FLAG: Final[Schema] = {"type": "boolean"}
#: A flag in a query.
SWITCH: Final = one_of("true", "false", "1", "0")
NAMESPACE: Final = pattern_schema(TUBE_NAME.pattern, TUBE_NAMES)
TUBE_PATTERN: Final = rf"(?!({RESERVED.pattern})(,|$)){TUBE_NAME.pattern}"
TUBE: Final = pattern_schema(TUBE_PATTERN, f"{TUBE_NAMES}, and not a reserved name (tubes.*)")
#: The text is checked when it is decoded, which is faster than a pattern.
BASE64: Final[Schema] = {
    "type": "string",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    "contentEncoding": "base64",
}
DRIVER: Final[Schema] = {**pattern_schema(DRIVER_NAME.pattern, NAMES), "examples": [driver.name for driver in BUILT_IN]}
LEASE: Final = pattern_schema(r"[A-Za-z0-9_.-]{40,}", "a lease: at least 40 letters, digits, -, _ and .")
#: Server-sent events: the schema of each event.
EVENT: Final = object_schema({"event": TEXT, "data": {**TEXT, "contentMediaType": "application/json"}})
#: Any value.
ANY: Final[Schema] = {}


#: The JSON types that a value of a Python class may have.
_TYPES: Final[Mapping[type, frozenset[str]]] = {
    str: frozenset({"string"}),
    **dict.fromkeys((int, float), frozenset({"integer", "number"})),
    bool: frozenset({"boolean"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}
#: JSON types as rules describe them.
_DESCRIPTIONS: Final = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def check(schema: Schema, name: str, value: Any) -> Any:
    """Check the value of a named field, and return it. 5.0 is a whole number in JSON, and returned as an int.

    Raise `InvalidOption`; for an item of a list, the error has its number as `item`. Objects and lists are changed in
    place.
    """
    if not schema:
        return value
    kinds: list[str] = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    rule = None
    if _TYPES[type(value)].isdisjoint(kinds):
        rule = f"must be {' or '.join(map(_DESCRIPTIONS.__getitem__, kinds))}"
    elif isinstance(value, str):
        rule = _broken_by_text(schema, value)
    elif isinstance(value, dict):
        _check_members(schema, cast("Facts", value))
    elif isinstance(value, list):
        _check_items(schema, name, cast("list[object]", value))
    elif "integer" in kinds and isinstance(value, float) and not value.is_integer():
        rule = "must be a whole number"
    elif "minimum" in schema and value is not None:
        value = int(value) if "integer" in kinds else value
        if not schema["minimum"] <= value <= schema["maximum"]:
            rule = f"must be from {schema['minimum']} to {schema['maximum']}"
    if rule:
        raise InvalidOption(option=name, value=value, rule=rule)
    return value  # pyright: ignore[reportUnknownVariableType]


def _broken_by_text(schema: Schema, text: str) -> str | None:
    """Return the rule that a string breaks, if any."""
    if "enum" in schema and text not in schema["enum"]:
        return f"must be one of {', '.join(schema['enum'])}"
    if len(text) < schema.get("minLength", 0):
        return "must not be empty"
    if "pattern" in schema and "contentEncoding" not in schema and not re.fullmatch(schema["pattern"], text):
        return f"must be {schema['description']}"
    return None


def _check_items(schema: Schema, name: str, items: list[object]) -> None:
    minimum, maximum = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not minimum <= len(items) <= maximum:
        raise InvalidOption(option=name, value=f"{len(items)} items", rule=f"must be a list of {minimum} to {maximum}")
    for number, item in enumerate(items):
        try:
            items[number] = check(schema["items"], name, item)
        except InvalidOption as error:
            raise InvalidOption(**error.facts, item=number) from None


def _check_members(schema: Schema, members: Facts) -> None:
    known: Fields = schema.get("properties", {})
    other = schema.get("additionalProperties", ANY)
    for member, value in members.items():
        if member not in known and other is False:
            rule = f"is unknown: {', '.join(known) or 'nothing'} can be given here"
            raise InvalidOption(option=member, value=value, rule=rule)
        members[member] = check(known.get(member, other), member, value)
    for member in schema.get("required", ()):
        if member not in members:
            raise InvalidOption(option=member, value=None, rule=REQUIRED)
    choice = [option["required"][0] for option in schema.get("anyOf", ())]
    if choice and members.keys().isdisjoint(choice):
        raise InvalidOption(option=choice[0], value=None, rule=f"{REQUIRED}, or else {choice[1]}")
    needs: Mapping[str, list[str]] = schema.get("dependentRequired", {})
    excludes = {second: first for first, second in (rule["not"]["required"] for rule in schema.get("allOf", ()))}
    for member, value in members.items():
        if excludes.get(member) in members:
            rule = f"must be left out with {excludes[member]}"
        elif member in needs and not members.keys() >= set(needs[member]):
            rule = f"requires {', '.join(needs[member])}"
        else:
            continue
        raise InvalidOption(option=member, value=value, rule=rule)
