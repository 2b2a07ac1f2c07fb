"""Of a large grid `make test` runs a sample."""

import pytest

from grids import sample

GRID = """
import pytest

@pytest.mark.sample(3)
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("number", range(5))
def test_grid(number, flag):
    pass
"""


@pytest.mark.parametrize(("asked", "kept"), [("", ["0-False", "2-False", "4-True"]), ("3-True", ["3-True"])])
def test_the_ends_of_each_axis_are_in_the_sample_and_one_that_is_asked_for_by_its_name_runs(
    request, tmp_path, asked, kept
):
    file = tmp_path / f"test_of_{len(kept)}.py"
    file.write_text(GRID)
    items = [one for one in pytest.Module.from_parent(request.session, path=file).collect() if asked in one.name]
    sample(items)
    assert [one.callspec.id for one in items if not one.get_closest_marker("long")] == kept
