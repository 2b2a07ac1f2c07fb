"""A buffer between two phases: bounded by its watermarks, in the order of arrival, for threads and event loops."""

import asyncio
import threading

import pytest

import paceline
from waits import run_all


def items(buffer):
    return buffer.status()["items"]


async def taken(buffer, order, name, end):
    async with buffer.place():
        order.append(name)
        await end.wait()


async def let_run():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_it_fills_up_to_high_and_again_below_low_in_the_order_of_arrival():
    buffer, order, ends = paceline.Buffer(low=2, high=4), [], [asyncio.Event() for _ in range(9)]
    tasks = [asyncio.create_task(taken(buffer, order, name, end)) for name, end in enumerate(ends)]
    await let_run()
    assert order == [0, 1, 2, 3]
    assert buffer.status() == {"items": 4, "waiting": 5, "filling": False, "low": 2, "high": 4}
    for end in ends[:2]:
        end.set()
    await let_run()
    assert (items(buffer), order) == (2, [0, 1, 2, 3])
    ends[2].set()
    await let_run()
    assert order == [0, 1, 2, 3, 4, 5, 6]
    for end in ends:
        end.set()
    await asyncio.gather(*tasks)
    assert order == list(range(9))
    assert buffer.status()["items"] == buffer.status()["waiting"] == 0


@pytest.mark.parametrize("when", ["waiting", "just after", "inside"])
async def test_a_cancelled_item_leaves(when):
    buffer, order, end = paceline.Buffer(low=1, high=1), [], asyncio.Event()
    first = asyncio.create_task(taken(buffer, order, "first", end))
    await let_run()
    second = asyncio.create_task(taken(buffer, order, "second", asyncio.Event()))
    third = asyncio.create_task(taken(buffer, order, "third", asyncio.Event()))
    await let_run()
    if when == "waiting":
        second.cancel()
        await let_run()
    end.set()
    if when == "inside":
        await let_run()
    else:
        await asyncio.sleep(0)  # the place is the second one's, which has not continued yet
    second.cancel()
    await let_run()
    assert (order[-1], items(buffer)) == ("third", 1)
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert buffer.status()["items"] == buffer.status()["waiting"] == 0


def test_a_place_can_be_given_back_early():
    buffer = paceline.Buffer(low=1, high=1)
    with buffer.place() as place:
        place.release()
        with buffer.place():
            assert items(buffer) == 1
        with place, pytest.raises(RuntimeError, match="for each item"), place:
            pass
    assert items(buffer) == 0


def test_threads_and_loops_share_it():
    buffer, most, lock = paceline.Buffer(low=3, high=5), [], threading.Lock()

    def note():
        with lock:
            most.append(items(buffer))

    def plain():
        for _ in range(50):
            with buffer.place():
                note()

    async def task():
        for _ in range(10):
            async with buffer.place():
                note()
                await asyncio.sleep(0)

    async def loop():
        await asyncio.gather(*[task() for _ in range(10)])

    run_all([plain, plain, lambda: asyncio.run(loop())])
    assert len(most) == 200
    assert max(most) <= 5
    assert items(buffer) == 0


def test_a_loop_that_was_closed_holds_nothing():
    buffer = paceline.Buffer(low=1, high=1)
    loop = asyncio.new_event_loop()
    with buffer.place():
        task = loop.create_task(taken(buffer, [], "lost", asyncio.Event()))
        loop.run_until_complete(let_run())
        loop.close()
    with buffer.place():
        assert items(buffer) == 1
    assert not task.done()
    task.get_coro().close()
    assert buffer.status()["items"] == buffer.status()["waiting"] == 0


@pytest.mark.parametrize(("low", "high"), [(0, 5), (6, 5), (1, 0), (1.5, 5), (True, 5), (1, None), (1, 10**9)])
def test_bad_watermarks(low, high):
    with pytest.raises(paceline.QuotaError, match="of a buffer is"):
        paceline.Buffer(low=low, high=high)
