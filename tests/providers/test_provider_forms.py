"""The tables of forms: a misspelled field would say nothing, and a class that is not there fails late."""

import re
from importlib import import_module
from pathlib import Path

from paceline.providers import forms

TABLE = Path(forms.__file__).with_name("dialects.toml").read_text("utf-8")
EXPLAINED = set(re.findall(r"\w+", " ".join(re.findall(r"^# ((?:\w+, )*\w+)  ", TABLE, re.MULTILINE))))


def test_each_field_of_a_dialect_is_explained():
    used = {field for row in forms.table("dialects").values() for field in row}
    assert used == EXPLAINED, "the top of dialects.toml explains each field that a row has, and no other"


def test_each_dialect_has_its_class():
    for row in forms.table("dialects").values():
        module, _, name = row.get("class", "compatible:Compatible").partition(":")
        assert hasattr(import_module(f"paceline.providers.{module}"), name)
