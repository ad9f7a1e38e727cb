"""JSON schemas: they check the parts of a request, and describe them in `/openapi.json`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from tubes.drivers.driver import DRIVER_NAME, NAMES, RESERVED, TUBE_NAME, TUBE_NAMES
from tubes.drivers.options import MAX_ATTEMPTS, MAX_COUNT, MAX_PRI, MAX_SECONDS
from tubes.drivers.registry import BUILT_IN
from tubes.errors import InvalidOption
from tubes.serve.problems import REQUIRED
from tubes.serve.service import Limits

#: A JSON schema, as OpenAPI has it.
Schema: TypeAlias = dict[str, Any]
#: Members of an object, or parameters of a query, with their schemas.
Fields: TypeAlias = Mapping[str, Schema]

#: Checks a value, which has this name, and returns it.
Check: TypeAlias = Callable[[str, Any], Any]


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
LEASE: Final = matching(r"[A-Za-z0-9_.-]{40,}", "a lease: at least 40 letters, digits, -, _ and .")
#: Any value.
ANY: Final[Schema] = {}


def compiled(schema: Schema) -> Check:
    """Compile a schema to a function; 5.0 is a whole number in JSON, and returned as an int.

    The function raises `InvalidOption`, for an item of a list with its number as `item`. Objects and lists are
    checked in place.
    """
    if not schema:
        return _accept
    kinds: list[str] = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    checks = {each: make(schema) for kind in kinds for each, make in _TYPES[kind][1].items()}
    rule = f"must be {' or '.join(_TYPES[kind][0] for kind in kinds)}"

    def check(name: str, value: object) -> Any:
        found = checks.get(type(value))
        if found is None:
            raise InvalidOption(option=name, value=value, rule=rule)
        return found(name, value)

    return check


def _accept(name: str, value: Any) -> Any:
    return value


def _anything(schema: Schema) -> Check:
    return _accept


def _bounds(schema: Schema) -> Check:
    if "minimum" not in schema:
        return _accept
    least, most = schema["minimum"], schema["maximum"]

    def check(name: str, value: float) -> float:
        if not least <= value <= most:
            raise InvalidOption(option=name, value=value, rule=f"must be from {least} to {most}")
        return value

    return check


def _whole(schema: Schema) -> Check:
    in_bounds = _bounds(schema)

    def check(name: str, value: float) -> Any:
        if not value.is_integer():
            raise InvalidOption(option=name, value=value, rule="must be a whole number")
        return in_bounds(name, int(value))

    return check


def _text(schema: Schema) -> Check:
    words, least = schema.get("enum"), schema.get("minLength", 0)
    is_checked = "pattern" in schema and "contentEncoding" not in schema
    matches = re.compile(schema["pattern"]).fullmatch if is_checked else None

    def check(name: str, text: str) -> str:
        if words and text not in words:
            rule = f"must be one of {', '.join(words)}"
        elif len(text) < least:
            rule = "must not be empty"
        elif matches and matches(text) is None:
            rule = f"must be {schema['description']}"
        else:
            return text
        raise InvalidOption(option=name, value=text, rule=rule)

    return check


def _items(schema: Schema) -> Check:
    check_item = compiled(schema["items"])
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)

    def check(name: str, items: list[Any]) -> list[Any]:
        if not least <= len(items) <= most:
            rule = f"must be a list of {least} to {most}"
            raise InvalidOption(option=name, value=f"{len(items)} items", rule=rule)
        for number, item in enumerate(items):
            try:
                items[number] = check_item(name, item)
            except InvalidOption as error:
                raise InvalidOption(**error.facts, item=number) from None
        return items

    return check


def _members(schema: Schema) -> Check:
    checks = {name: compiled(member) for name, member in schema.get("properties", {}).items()}
    others = schema.get("additionalProperties", ANY)
    check_other = None if others is False else compiled(others)
    required: list[str] = schema.get("required", [])
    needs: dict[str, list[str]] = schema.get("dependentRequired", {})
    excludes: dict[str, str] = {
        second: first for first, second in (each["not"]["required"] for each in schema.get("allOf", ()))
    }
    choice: list[str] = [each["required"][0] for each in schema.get("anyOf", ())]
    conditional = needs.keys() | excludes.keys()

    def rule_of(name: str, members: Mapping[str, Any]) -> str | None:
        """The rule about this member that the object breaks."""
        if name in excludes and excludes[name] in members:
            return f"must be left out with {excludes[name]}"
        if not members.keys() >= set(needs.get(name, ())):
            return f"is only for a request with {', '.join(needs[name])}"
        return None

    def check(name: str, members: dict[str, Any]) -> dict[str, Any]:
        for member, value in members.items():
            check_member = checks.get(member, check_other)
            if check_member is None:
                rule = f"is not known: {', '.join(checks) or 'nothing'} can be given here"
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


#: The types of JSON: the rule, and per class of their values what compiles the check.
_TYPES: Final[dict[str, tuple[str, dict[type, Callable[[Schema], Check]]]]] = {
    "string": ("a string", {str: _text}),
    "integer": ("a whole number", {int: _bounds, float: _whole}),
    "number": ("a number", {int: _bounds, float: _bounds}),
    "boolean": ("true or false", {bool: _anything}),
    "array": ("a list", {list: _items}),
    "object": ("an object", {dict: _members}),
    "null": ("null", {type(None): _anything}),
}
