"""All scripts that a server may get compile, and define each function and shared variable once."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from typing import Any

import pytest

from tests.support.scripts import DRIVERS, METHODS, methods_of
from tubes.drivers import fifottl
from tubes.redis.scripts.assembly import script
from tubes.redis.scripts.lines import LUA
from tubes.redis.scripts.replies import ANY


def test_each_script_declares_its_reply_types() -> None:
    assert [method for method in METHODS if script(method, fifottl.FifoTtl).reply_types == ANY] == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", DRIVERS)
def test_a_script_compiles(name: str) -> None:
    lua51: Any = import_module("lupa.lua51")  # The module has no type hints.
    compiled = lua51.LuaRuntime(encoding=None).eval(b"function(text) return select(2, loadstring(text)) end")
    driver, settings = DRIVERS[name]
    errors = {method: compiled(script(method, driver, settings).text) for method in methods_of(driver)}
    assert {method: error for method, error in errors.items() if error} == {}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", DRIVERS)
def test_a_script_has_each_function_and_shared_variable_once(name: str) -> None:
    driver, settings = DRIVERS[name]
    library = "".join(file.read_text() for file in (LUA / "lib").iterdir())
    shared = {variable.encode() for variable in re.findall(r"^local (\w+)$", library, re.MULTILINE)}
    assert shared
    for method in methods_of(driver):
        text = script(method, driver, settings).text
        defined = Counter(re.findall(rb"^local function (\w+)", text, re.MULTILINE))
        defined.update(found for found in re.findall(rb"^local (\w+)$", text, re.MULTILINE) if found in shared)
        assert [found for found, times in defined.items() if times > 1] == [], method
