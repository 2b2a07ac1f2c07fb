"""No page, example, message or default names a model that has ended, or that ends within 60 days of the data set's day."""

from __future__ import annotations

import re
from datetime import date

from pages import ROOT

from paceline import facts
from paceline.facts.lives import END_DAYS

DAY = date.fromisoformat(facts.shipped_day())
ENDS = {
    name.rstrip("*"): row["until"]
    for provider in facts.heads()
    for row in facts.rows(provider, facts.MODELS)
    if "until" in row and (date.fromisoformat(str(row["until"])) - DAY).days <= END_DAYS
    for name in row["match"]
    if name != "*"
}
# A dated snapshot ends with its model. A longer name (gpt-5.1, gpt-5-search-api) is another model.
NAMES = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, ENDS))})(?:-20\d\d-?\d\d-?\d\d)?(?![\w-]|\.\d)")
FILES = [
    file
    for pattern in ("README.md", "docs/**/*.md", "examples/**/*.*", "src/paceline/**/*.py")
    for file in sorted(ROOT.glob(pattern))
    if file.is_file() and file.suffix in {".md", ".py", ".toml", ".yaml", ".yml", ".json", ".jsonl", ".csv"}
    if "providers" not in file.relative_to(ROOT).parts[:-1]  # what they know of older models, too
]


def named_in(text: str) -> list[str]:
    return [f"{found} ends on {ENDS[re.sub('-20[0-9-]+$', '', found)]}" for found in NAMES.findall(text)]


def test_a_name_is_found():
    assert len(ENDS) >= 30
    assert named_in('model="gpt-5", "openai/gpt-5-mini-2025-08-07"') == [
        "gpt-5 ends on 2026-12-11",
        "gpt-5-mini-2025-08-07 ends on 2026-12-11",
    ]
    assert named_in("gpt-5.4, gpt-5-search-api, gpt-6-luna, boto3") == []


def test_no_page_names_a_model_that_ends():
    found = {file.relative_to(ROOT).as_posix(): named_in(file.read_text("utf-8")) for file in FILES}
    assert len(found) > 200
    assert {file: names for file, names in found.items() if names} == {}
