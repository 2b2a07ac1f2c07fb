"""An event loop whose tasks wait for permits, in a program that gevent patches before all else."""

from gevent import monkey

monkey.patch_all()

import asyncio  # noqa: E402

import paceline  # noqa: E402

limiter = paceline.Limiter({"jobs": "1200 requests/min burst 2"})


async def work(number):
    async with limiter.acquire("jobs"):
        await asyncio.sleep(0.01)
    return number


async def main():
    return await asyncio.gather(*[work(number) for number in range(12)])


assert asyncio.run(main()) == list(range(12))
assert paceline.map_sync(work, range(12), progress=False) == list(range(12))
