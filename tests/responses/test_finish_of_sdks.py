"""`paceline.finish_of` reads the answers of SDKs as they return them."""

import io
import json
from types import SimpleNamespace

import httpx
import pytest
from anthropic.types import Message
from google.genai.types import GenerateContentResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from test_finish import CASES, CUT

import paceline

SDKS = [
    (ChatCompletion, "chat"),
    (ChatCompletion, "chat, cut"),
    (ChatCompletion, "chat, refusal"),
    (ChatCompletion, "chat, tool"),
    (Response, "responses, cut"),
    (Message, "claude"),
    (Message, "claude, refusal"),
    (GenerateContentResponse, "gemini"),
    (GenerateContentResponse, "gemini, SAFETY"),
    (GenerateContentResponse, "gemini, tool"),
]


@pytest.mark.parametrize(("kind", "name"), SDKS)
def test_answers_of_sdks(kind, name):
    body, state, text = CASES[name]
    answer = kind.model_validate(body) if kind is GenerateContentResponse else kind.construct(**body)
    finish = paceline.finish_of(answer)
    assert (finish.state, finish.text) == (state, text)


def test_an_image_of_an_sdk_is_as_the_api_sends_it():
    part = {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}
    body = {"candidates": [{"finishReason": "STOP", "content": {"parts": [part]}}]}
    (image,) = json.loads(paceline.finish_of(GenerateContentResponse.model_validate(body)).whole())
    assert image["data"] == "iVBORw=="


def test_what_an_sdk_says_of_a_reason():
    body = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "no such tool"}]}
    assert paceline.finish_of(GenerateContentResponse.model_validate(body)).words == "no such tool"


def test_an_http_response_and_a_mapping():
    body = CASES["converse, cut"][0]
    assert paceline.finish_of(body).state == "cut_off"
    assert paceline.finish_of(httpx.Response(200, json=body)).text == CUT


class Dumped:
    """An object of a framework that dumps itself."""

    def __init__(self, body, **more):
        self.body = body
        vars(self).update(more)

    def model_dump(self):
        return self.body


MESSAGE = Dumped(CASES["langchain, cut"][0], response_metadata={"finish_reason": "length"})
RUN = SimpleNamespace(all_messages=list, output=CUT, response=SimpleNamespace(**CASES["pydantic-ai, cut"][0]))
FRAMEWORKS = {
    "langchain": MESSAGE,
    "langgraph": {"messages": [Dumped({"content": "?"}), MESSAGE]},
    "pydantic-ai": RUN,
    "llama-index, chat": Dumped({"message": {"role": "assistant", "blocks": []}}, raw=Dumped(CASES["chat, cut"][0])),
    "llama-index, completion": Dumped({"text": CUT}, raw=Dumped(CASES["chat, cut"][0])),
    "bytes of boto3": json.dumps(CASES["claude, cut"][0]).encode(),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_frameworks_return(name):
    finish = paceline.finish_of(FRAMEWORKS[name])
    assert (finish.state, finish.text) == ("cut_off", CUT)


CHUNK = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": CUT}}]}
NO_ANSWERS = {
    "a stream": iter([CHUNK]),
    "its chunks": [CHUNK, CHUNK],
    "Anthropic's events": [{"type": "message_start", "message": {}}, {"type": "message_stop"}],
    "a response with events": httpx.Response(
        200, headers={"content-type": "text/event-stream"}, content=b"data: {}\n\n"
    ),
    "an unread body of boto3": {"ResponseMetadata": {}, "contentType": "application/json", "body": io.BytesIO(b"{}")},
    "a run of agents": SimpleNamespace(input="?", new_items=[], raw_responses=[], final_output=CUT),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_what_is_no_answer_is_not_taken_for_a_finished_one(name):
    with pytest.raises(TypeError, match=r"^finish_of: .* is a stream|does not say what the model has finished"):
        paceline.finish_of(NO_ANSWERS[name])


def test_objects_without_a_text_are_answers():
    found = paceline.finish_of(SimpleNamespace(embeddings=[[0.5]], total_tokens=2))
    assert (found.state, json.loads(found.text)["embeddings"]) == ("complete", [[0.5]])


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        ({"choices": None, "error": {"message": "Provider returned error", "code": 502}}, "empty", "returned error"),
        ({"choices": [], "error": {"message": "Provider returned error", "code": 502}}, "empty", "returned error"),
        ({"choices": [{"error": {"message": "it was filtered", "code": "content_filter"}}]}, "blocked", "filtered"),
        ({"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}, "empty", "rate limit"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "empty", "Overloaded"),
        ({"error": {"message": "it was filtered", "code": "content_filter"}}, "blocked", "it was filtered"),
    ],
)
def test_an_error_with_status_200_is_no_text(error, state, words):
    """OpenRouter's and MiniMax's, as the SDK returns them, and Anthropic's and Azure's."""
    body = {"id": "g", "object": "chat.completion", "created": 1, "model": "m"} | error if "choices" in error else error
    for answer in (body, httpx.Response(200, json=body), ChatCompletion.construct(**body)):
        finish = paceline.finish_of(answer)
        assert (finish.state, finish.text) == (state, "")
        with pytest.raises(paceline.UnfinishedError, match=words):
            finish.whole()


def test_an_error_in_a_list_is_no_text():
    """Google's, of a stream that is no server-sent events. The vectors of Hugging Face's servers are a list, too."""
    body = [{"error": {"code": 429, "message": "Quota exceeded", "status": "RESOURCE_EXHAUSTED"}}]
    assert (paceline.finish_of(body).state, paceline.finish_of([[0.1]]).text) == ("empty", "[[0.1]]")
    with pytest.raises(paceline.UnfinishedError, match="Quota exceeded"):
        paceline.finish_of(body).whole()


def test_an_object_by_its_attributes():
    class Plain:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    choice = Plain(message=Plain(role="assistant", content="42"), finish_reason="stop")
    assert paceline.finish_of(Plain(choices=[choice])).whole() == "42"


def test_what_is_not_finished_is_raised():
    with pytest.raises(paceline.UnfinishedError) as caught:
        paceline.finish_of(CASES["chat, cut"][0]).whole()
    assert str(caught.value) == "cut_off: the answer reached the maximum of tokens (length)"
    assert (caught.value.state, caught.value.text) == ("cut_off", CUT)
    assert json.loads(paceline.finish_of(CASES["chat, tool"][0]).whole())[0]["name"] == "weather"
