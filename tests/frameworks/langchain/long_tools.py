"""Two tools with long results, and a model of OpenAI's API that calls them."""

import json

from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def long_text() -> str:
    """Read a long document."""
    return "word " * 10_000


@tool
def long_json() -> str:
    """Read a long table."""
    return json.dumps({"rows": [{"id": row, "text": "x" * 300} for row in range(200)]})


class Calls(ChatOpenAI):
    """Asks for both tools first; then the API answers."""

    def _first(self, messages):
        if messages[-1].type == "tool":
            return None
        calls = [{"name": name, "args": {}, "id": name} for name in ("long_text", "long_json")]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=calls))])

    def _generate(self, messages, *args, **options):
        return self._first(messages) or super()._generate(messages, *args, **options)

    async def _agenerate(self, messages, *args, **options):
        return self._first(messages) or await super()._agenerate(messages, *args, **options)
