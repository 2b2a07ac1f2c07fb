"""The events of a stream of Anthropic's API, and an error in its place."""

MESSAGE = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 1}}  # fmt: skip
START, PING = {"type": "message_start", "message": MESSAGE}, {"type": "ping"}
OPEN = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
WORD = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello."}}
STOP = {"type": "message_stop"}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
