import enum
import json
import math
from collections.abc import Mapping
from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.storage.json_line import encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@settings(max_examples=50)
@given(VALUES)
def test_values_come_back_from_one_line_that_any_program_can_split(value: Any) -> None:
    line = encode(value)
    assert json.loads(line) == finite(value)
    assert line.isascii() and len(line.decode().splitlines()) == 1


class Place(enum.StrEnum):
    HERE = "here"


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"b": 1, "a": (2.5, True)}, b'{"b":1,"a":[2.5,true]}'),
        ([10**30, {1: "a number"}], b'[1000000000000000000000000000000,{"1":"a number"}]'),
        (["\ud800", "line\u2028end"], b'["\\ud800","line\\u2028end"]'),
        ([math.nan, math.inf, np.float64("nan"), np.float64(2)], b"[null,null,null,2.0]"),
        (Place.HERE, b'"here"'),
    ],
)
def test_whatever_json_can_say_it_says(value: Any, line: bytes) -> None:
    assert encode(value) == line


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", date(2026, 11, 22), np.int64(3), object()])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        encode({"value": value})
