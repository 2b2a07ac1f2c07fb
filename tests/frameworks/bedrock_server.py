"""A server of Bedrock's API, which the emulator does not have, for boto3 and aiobotocore."""

from harness import service_row

from odd_server import JSON, Gate, OddServer, frame_of

ANSWER = {
    "output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 12, "outputTokens": 30, "totalTokens": 42},
    "metrics": {"latencyMs": 5},
}
CALL = {
    "modelId": "amazon.nova-lite-v1:0",
    "messages": [{"role": "user", "content": [{"text": "hello"}]}],
    "inferenceConfig": {"maxTokens": 100},
}
KEYS = {"aws_access_key_id": "k", "aws_secret_access_key": "k", "region_name": "us-east-1"}
START = frame_of("messageStart", {"role": "assistant"})
END = frame_of("metadata", {name: ANSWER[name] for name in ("usage", "metrics")})


class Bedrock(OddServer):
    """Refuses the first request; keeps the time of each signature. Clear ``go`` to stop streams at their first event."""

    def __init__(self):
        super().__init__(self.respond)
        self.signed, self.go = [], Gate()
        self.go.set()

    def respond(self, number, _):
        self.signed.append(self.headers[number]["x-amz-date"])
        if len(self.signed) == 1:
            return 429, JSON | {"x-amzn-errortype": "ThrottlingException"}, {"message": "Too many requests"}
        if self.paths[number].endswith("-stream"):
            return 200, {"content-type": "application/vnd.amazon.eventstream"}, [START, self.go, END]
        return 200, JSON, ANSWER


def only_pool(limiter):
    """The status of the one pool that a limiter has."""
    (pool,) = limiter.status()["pools"].values()
    return pool


def answer(path, body):
    """A :class:`~harness.Service`'s answer to boto3 and aiobotocore, and its tokens."""
    assert path.endswith("/converse")
    return ANSWER, ANSWER["usage"]["inputTokens"], ANSWER["usage"]["outputTokens"]


def bedrock_row(package, over, calls):
    """A crowd before a service of Bedrock's API, and its row."""
    service_row(package, over, f"bedrock/{CALL['modelId']}", answer, {"message": "Too many requests"}, calls)
