"""JSON schemas: they check the parts of a request, and describe them in `/openapi.json`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from tubes.drivers.driver import DRIVER_NAME, NAMES, RESERVED, TUBE_NAME, TUBE_NAMES
from tubes.drivers.options import MAX_ATTEMPTS, MAX_COUNT, MAX_PRI, MAX_SECONDS
from tubes.drivers.registry import BUILT_IN
from tubes.errors import InvalidOption
from tubes.serve.service import Limits

#: A JSON schema, as OpenAPI has it.
Schema: TypeAlias = dict[str, Any]
#: Members of an object, or parameters of a query, with their schemas.
Fields: TypeAlias = Mapping[str, Schema]

#: The types of JSON: the classes of their values, and the rule.
_TYPES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "string": ((str,), "a string"),
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "array": ((list,), "a list"),
    "object": ((dict,), "an object"),
    "null": ((type(None),), "null"),
}


def integer(least: int = 0, most: int = MAX_COUNT) -> Schema:
    """A whole number within bounds."""
    return {"type": "integer", "minimum": least, "maximum": most}


def number(least: float = 0, most: float = MAX_SECONDS) -> Schema:
    """A number within bounds: seconds by default."""
    return {"type": "number", "minimum": least, "maximum": most}


def one_of(*words: str) -> Schema:
    """One of these strings."""
    return {"type": "string", "enum": list(words)}


def matching(pattern: str, rule: str) -> Schema:
    """A string that matches a pattern as a whole; `rule` describes it."""
    return {"type": "string", "pattern": f"^{pattern}$", "description": rule}


def maybe(schema: Schema) -> Schema:
    """This, or null."""
    kinds = schema["type"]
    return {**schema, "type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}


def a_list(schema: Schema, most: int | None = None, *, least: int = 0) -> Schema:
    """A list of these."""
    bounds = {} if most is None else {"minItems": least, "maxItems": most}
    return {"type": "array", "items": schema, **bounds}


def an_object(members: Fields, *optional: str) -> Schema:
    """An object with these members."""
    return {"type": "object", "properties": dict(members), "required": [m for m in members if m not in optional]}


def a_map(schema: Schema) -> Schema:
    """An object whose members, of any name, are all like this."""
    return {"type": "object", "additionalProperties": schema}


def a_request(members: Fields, *required: str, **more: Any) -> Schema:
    """An object with some of these members and no others."""
    shown: Schema = {"type": "object", "properties": dict(members), "additionalProperties": False, **more}
    return shown | ({"required": list(required)} if required else {})


TEXT: Final[Schema] = {"type": "string"}
NONEMPTY: Final[Schema] = {"type": "string", "minLength": 1}
WHOLE: Final = integer()
COUNT: Final = integer(1)
PRI: Final = integer(0, MAX_PRI)
ATTEMPTS: Final = integer(1, MAX_ATTEMPTS)
SECONDS: Final = number()
#: Tasks of a batch or of a list, and seconds for which a request may wait.
BATCH: Final = integer(1, Limits.batch)
WAIT: Final = number(0, Limits.wait)
MOMENT: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
#: A flag in a query.
SWITCH: Final = one_of("true", "false", "1", "0")
NAMESPACE: Final = matching(TUBE_NAME.pattern, TUBE_NAMES)
TUBE: Final = matching(
    rf"(?!({RESERVED.pattern})$){TUBE_NAME.pattern}", f"{TUBE_NAMES}, and not a name of the library's own (tubes.*)"
)
#: Its text is checked where it is decoded, which is faster than a pattern.
BASE64: Final[Schema] = {
    "type": "string",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    "contentEncoding": "base64",
}
DRIVER: Final[Schema] = {**matching(DRIVER_NAME.pattern, NAMES), "examples": [driver.name for driver in BUILT_IN]}
#: Any value.
ANY: Final[Schema] = {}


def check(name: str, value: Any, schema: Schema) -> Any:
    """Check a value, and return it; 5.0 is a whole number in JSON, and returned as one.

    Raises `InvalidOption`, for an item of a list with its number as `item`.
    """
    if not schema:
        return value
    kinds: list[str] = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if "integer" in kinds and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kinds:
        _check_type(name, value, kinds)
    if isinstance(value, str):
        _check_text(name, value, schema)
    elif isinstance(value, dict):
        check_members(value, schema)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list):
        _check_items(name, value, schema)  # pyright: ignore[reportUnknownArgumentType]
    elif "minimum" in schema and value is not None and not schema["minimum"] <= value <= schema["maximum"]:
        raise InvalidOption(option=name, value=value, rule=f"must be from {schema['minimum']} to {schema['maximum']}")
    return value


def _check_type(name: str, value: Any, kinds: list[str]) -> None:
    # A bool is an int in Python, not in JSON.
    if not any(isinstance(value, _TYPES[kind][0]) and (kind == "boolean") == isinstance(value, bool) for kind in kinds):
        rule = " or ".join(_TYPES[kind][1] for kind in kinds)
        raise InvalidOption(option=name, value=value, rule=f"must be {rule}")


def _check_text(name: str, text: str, schema: Schema) -> None:
    rule = None
    if "enum" in schema and text not in schema["enum"]:
        rule = f"must be one of {', '.join(schema['enum'])}"
    elif len(text) < schema.get("minLength", 0):
        rule = "must not be empty"
    elif "pattern" in schema and "contentEncoding" not in schema and re.fullmatch(schema["pattern"], text) is None:
        rule = f"must be {schema['description']}"
    if rule:
        raise InvalidOption(option=name, value=text, rule=rule)


def _check_items(name: str, items: list[Any], schema: Schema) -> None:
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(items))
    if not least <= len(items) <= most:
        raise InvalidOption(option=name, value=f"{len(items)} items", rule=f"must be a list of {least} to {most}")
    if item_schema := schema.get("items"):
        for number, item in enumerate(items):
            try:
                items[number] = check(name, item, item_schema)
            except InvalidOption as error:
                raise InvalidOption(**error.facts, item=number) from None


def check_members(members: dict[str, Any], schema: Schema) -> None:
    """Check the members of an object, in place. An error names the member."""
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", ANY)
    for name, value in members.items():
        if name not in known and others is False:
            raise InvalidOption(option=name, value=value, rule=not_known(known))
        members[name] = check(name, value, known.get(name, others))
    for name in schema.get("required", ()):
        if name not in members:
            raise InvalidOption(option=name, value=None, rule="is required")
    for name, needed in schema.get("dependentRequired", {}).items():
        if name in members and not members.keys() >= set(needed):
            raise InvalidOption(
                option=name, value=members[name], rule=f"is only for a request with {', '.join(needed)}"
            )
    for never in schema.get("allOf", ()):
        both = never["not"]["required"]
        if members.keys() >= set(both):
            raise InvalidOption(option=both[1], value=members[both[1]], rule=f"must be left out with {both[0]}")
    if (choice := schema.get("anyOf")) and not any(one["required"][0] in members for one in choice):
        names = [one["required"][0] for one in choice]
        raise InvalidOption(option=names[0], value=None, rule=f"is required, or else {names[1]}")


def not_known(known: Fields) -> str:
    """The rule for a name that is not one of these."""
    return f"is not known: {', '.join(known) or 'nothing'} can be given here"
