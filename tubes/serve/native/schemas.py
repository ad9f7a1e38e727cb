"""JSON schemas that check the parts of requests, and describe them in `/openapi.json`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

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

#: A function that checks the value of a named field, and returns it.
Check: TypeAlias = Callable[[str, Any], Any]


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


def compile_schema(schema: Schema) -> Check:
    """Compile a schema to a function that checks a value. 5.0 is a whole number in JSON, and returned as an int.

    The function raises `InvalidOption`; for an item of a list, the error has its number as `item`. Objects and lists
    are changed in place.
    """
    if not schema:
        return _accept
    kinds: list[str] = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    checks = {python_type: make(schema) for kind in kinds for python_type, make in _TYPES[kind][1].items()}
    rule = f"must be {' or '.join(_TYPES[kind][0] for kind in kinds)}"

    def check(name: str, value: object) -> object:
        type_check = checks.get(type(value))
        if type_check is None:
            raise InvalidOption(option=name, value=value, rule=rule)
        return type_check(name, value)

    return check


def _accept(name: str, value: object) -> object:
    return value


def _accept_anything(schema: Schema) -> Check:
    return _accept


def _bounds(schema: Schema) -> Check:
    if "minimum" not in schema:
        return _accept
    minimum, maximum = schema["minimum"], schema["maximum"]

    def check(name: str, value: float) -> float:
        if not minimum <= value <= maximum:
            raise InvalidOption(option=name, value=value, rule=f"must be from {minimum} to {maximum}")
        return value

    return check


def _check_whole_number(schema: Schema) -> Check:
    in_bounds = _bounds(schema)

    def check(name: str, value: float) -> object:
        if not value.is_integer():
            raise InvalidOption(option=name, value=value, rule="must be a whole number")
        return in_bounds(name, int(value))

    return check


def _text(schema: Schema) -> Check:
    words, minimum = schema.get("enum"), schema.get("minLength", 0)
    is_checked = "pattern" in schema and "contentEncoding" not in schema
    matches = re.compile(schema["pattern"]).fullmatch if is_checked else None

    def check(name: str, text: str) -> str:
        if words and text not in words:
            rule = f"must be one of {', '.join(words)}"
        elif len(text) < minimum:
            rule = "must not be empty"
        elif matches and matches(text) is None:
            rule = f"must be {schema['description']}"
        else:
            return text
        raise InvalidOption(option=name, value=text, rule=rule)

    return check


def _items(schema: Schema) -> Check:
    check_item = compile_schema(schema["items"])
    minimum, maximum = schema.get("minItems", 0), schema.get("maxItems", math.inf)

    def check(name: str, items: list[object]) -> list[object]:
        if not minimum <= len(items) <= maximum:
            rule = f"must be a list of {minimum} to {maximum}"
            raise InvalidOption(option=name, value=f"{len(items)} items", rule=rule)
        for number, item in enumerate(items):
            try:
                items[number] = check_item(name, item)
            except InvalidOption as error:
                raise InvalidOption(**error.facts, item=number) from None
        return items

    return check


def _members(schema: Schema) -> Check:
    checks = {name: compile_schema(member) for name, member in schema.get("properties", {}).items()}
    other_schema = schema.get("additionalProperties", ANY)
    check_other = None if other_schema is False else compile_schema(other_schema)
    required: list[str] = schema.get("required", [])
    needs: dict[str, list[str]] = schema.get("dependentRequired", {})
    excludes: dict[str, str] = {
        second: first for first, second in (rule["not"]["required"] for rule in schema.get("allOf", ()))
    }
    choice: list[str] = [option["required"][0] for option in schema.get("anyOf", ())]
    conditional = needs.keys() | excludes.keys()

    def rule_of(name: str, members: Mapping[str, object]) -> str | None:
        """Return the rule about this member that the object breaks, if any."""
        if name in excludes and excludes[name] in members:
            return f"must be left out with {excludes[name]}"
        if not members.keys() >= set(needs.get(name, ())):
            return f"requires {', '.join(needs[name])}"
        return None

    def check(name: str, members: dict[str, object]) -> dict[str, object]:
        for member, value in members.items():
            check_member = checks.get(member, check_other)
            if check_member is None:
                rule = f"is unknown: {', '.join(checks) or 'nothing'} can be given here"
                raise InvalidOption(option=member, value=value, rule=rule)
            members[member] = check_member(member, value)
        for member in required:
            if member not in members:
                raise InvalidOption(option=member, value=None, rule=REQUIRED)
        if choice and members.keys().isdisjoint(choice):
            raise InvalidOption(option=choice[0], value=None, rule=f"{REQUIRED}, or else {choice[1]}")
        if not conditional.isdisjoint(members):
            for member in filter(conditional.__contains__, members):
                broken = rule_of(member, members)
                if broken:
                    raise InvalidOption(option=member, value=members[member], rule=broken)
        return members

    return check


#: JSON types: the description in rules, and by Python class of the value, the function that compiles the check.
_TYPES: Final[dict[str, tuple[str, dict[type, Callable[[Schema], Check]]]]] = {
    "string": ("a string", {str: _text}),
    "integer": ("a whole number", {int: _bounds, float: _check_whole_number}),
    "number": ("a number", {int: _bounds, float: _bounds}),
    "boolean": ("true or false", {bool: _accept_anything}),
    "array": ("a list", {list: _items}),
    "object": ("an object", {dict: _members}),
    "null": ("null", {type(None): _accept_anything}),
}
