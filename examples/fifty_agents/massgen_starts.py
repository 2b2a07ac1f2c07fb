"""The same with MassGen itself: it starts 50 Gemini agents under ``starts.yaml``, and 5 of a backend without a limit.

python examples/fifty_agents/massgen_starts.py               # real time, about 7 minutes
python examples/fifty_agents/massgen_starts.py --speed 20    # three seconds for a minute

The emulated API answers with text and calls no tools, so every agent gives up after three calls: the example shows the
times of the starts, and that no call is refused. Needs ``pip install massgen==0.1.97`` beside paceline.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from starts import Started, Starts
from starts_file import MODES, StartsFile

import paceline
from paceline.integrations.massgen import pace_starts
from paceline.testing import Emulator

HERE = Path(__file__).parent
MODEL, OTHER = "gemini-2.5-flash", "gpt-4o-mini"
CALLS = "600 requests/min"
"""The limit of the emulated API: each start makes three calls, which are not limited here."""


def agents(root: str) -> dict[str, Any]:
    """MassGen's configuration."""
    gemini = {"type": "gemini", "model": MODEL}
    other = {"type": "chatcompletion", "model": OTHER, "base_url": f"{root}/v1"}
    ids = [(f"agent_{number:02}", gemini) for number in range(1, 51)]
    ids += [(f"helper_{number}", other) for number in range(1, 6)]
    return {"agents": [{"id": name, "backend": backend} for name, backend in ids]}


def start_massgen(config: dict[str, Any]) -> None:
    """Run MassGen's own command in a temporary folder."""
    import massgen.cli

    folder = Path.cwd()
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        try:
            (Path(temporary) / "agents.json").write_text(json.dumps(config))  # JSON is YAML, too
            Path("agents.json").rename("agents.yaml")
            sys.argv = ["massgen", "--config", "agents.yaml", "--automation", "--no-logs", "Say hello."]
            massgen.cli.cli_main()
        except SystemExit:
            pass  # MassGen ends with an error when the agents do not agree on an answer
        finally:
            os.chdir(folder)


def main() -> int:
    """Start MassGen's agents against the emulator."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--speed", type=int, choices=(1, 2, 3, 4, 5, 6, 10, 12, 15, 20), default=1)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what happened as JSON")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("starts").setLevel(logging.INFO)
    starts, started = Starts(StartsFile.load(HERE / "starts.yaml", speed=asked.speed, mode=asked.mode)), list[Started]()

    async def wait(agent: str, backend: str, model: str) -> None:
        started.append(await starts.wait(agent, backend, model))

    api = paceline.Limiter({"gemini/*": CALLS})
    with Emulator({"*": CALLS}) as world:
        os.environ |= {"GOOGLE_GEMINI_BASE_URL": world.base_url, "GEMINI_API_KEY": "any", "OPENAI_API_KEY": "any"}
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # nothing here needs the internet
        with paceline.instrument(api), pace_starts(wait):
            start_massgen(agents(world.base_url))
        tally = world.tally()
    record = {
        "started": [one._asdict() for one in started],
        "admitted": {model: pool["admitted"] for model, pool in tally["pools"].items()},
        "refused": tally["refused_total"],
        "paced": {name: pool["counts"] for name, pool in api.status()["pools"].items()},
    }
    if asked.record:
        asked.record.write_text(json.dumps(record))
    last_s = max(one.at_s for one in started) - min(one.at_s for one in started)
    print(
        f"{len(started)} agents started within {last_s:.1f} s; {record['admitted']} calls, {record['refused']} refused"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
