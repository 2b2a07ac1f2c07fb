"""What the model has finished, from bodies as the providers' references have them."""

import json
from types import SimpleNamespace

import pytest

from odd_server import chunk_of, frame_of
from paceline.batch.acceptance import Acceptance
from paceline.batch.endpoints import ENDPOINTS
from paceline.providers.base import Call
from paceline.providers.registry import provider_named
from paceline.responses.errors import blocks
from paceline.responses.finish import FINISHED, FORMS, State, finish_of, form_of, state_of

CUT = "The answer is that the"
HM = "Let me see."
CALL = {"name": "weather", "arguments": {"city": "Rome"}}
IN_TEXT = '{"city": "Rome"}'


OF_CHAT = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": {"total_tokens": 9}}
OF_RESPONSES = {"id": "resp", "object": "response", "error": None, "usage": {"input_tokens": 9}}
OF_CLAUDE = {"id": "msg", "type": "message", "role": "assistant", "model": "m", "usage": {"input_tokens": 9}}


def saying(content, **more):
    return {"role": "assistant", "content": content, **more}


def chat(content, reason="stop", **message):
    return OF_CHAT | {"choices": [{"index": 0, "finish_reason": reason, "message": saying(content, **message)}]}


def responses(*output, status="completed", **more):
    return OF_RESPONSES | {"status": status, "output": list(output)} | more


def said(*content):
    return saying(list(content), type="message", id="msg", status="completed")


def claude(stop, *content):
    return OF_CLAUDE | {"content": list(content), "stop_reason": stop}


def gemini(reason, *parts, **more):
    content = {"content": {"role": "model", "parts": list(parts)}} if parts else {}
    candidate = {"index": 0, "finishReason": reason, **content}
    return {"candidates": [candidate], "usageMetadata": {"totalTokenCount": 9}, "modelVersion": "m"} | more


def cohere(reason, *content, **message):
    return {"id": "c", "finish_reason": reason, "message": saying(list(content), **message), "usage": {}}


def langchain(content, **metadata):
    return {"content": content, "additional_kwargs": {}, "response_metadata": metadata, "type": "ai", "tool_calls": []}


def converse(reason, *content):
    used = {"usage": {"inputTokens": 9}, "metrics": {"latencyMs": 1}}
    return {"output": {"message": saying(list(content))}, "stopReason": reason, **used}


def ollama(content, reason="stop", **message):
    message = saying(content, **message)
    return {"model": "m", "created_at": "2026", "message": message, "done": True, "done_reason": reason}


def conversation(*outputs):
    return {
        "object": "conversation.response",
        "conversation_id": "c",
        "outputs": [*outputs],
        "usage": {"prompt_tokens": 9},
    }


def text(value, kind="text"):
    return {"type": kind, "text": value}


CHAT_CALL = [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": IN_TEXT}}]
FILTER = {"hate": {"filtered": True, "severity": "high"}}
HUGGING = {"generated_text": CUT, "details": {"finish_reason": "length", "generated_tokens": 20}}

CASES = {
    # openai: chat, its reasoning in the forms of DeepSeek, OpenRouter and Groq
    "chat": (chat("42"), "complete", "42"),
    "chat, two choices": (chat("42") | {"choices": chat("42")["choices"] + chat("43", "length")["choices"]}, "complete", "42"),
    "chat, cut": (chat(CUT, "length"), "cut_off", CUT),
    "chat, reasoning used all": (chat("", "length"), "cut_off", ""),
    "chat, refusal": (chat(None, refusal="I can't help with that."), "declined", ""),
    "chat, filter": (chat("", "content_filter"), "blocked", ""),
    "chat, null": (chat(None), "empty", ""),
    "chat, blank": (chat("\n "), "empty", "\n "),
    "chat, tool": (chat(None, "tool_calls", tool_calls=CHAT_CALL), "tool_call", ""),
    "chat, function": (chat(None, "function_call", function_call={"name": "weather", "arguments": IN_TEXT}), "tool_call", ""),
    "chat, tool cut": (chat(None, "length", tool_calls=CHAT_CALL), "cut_off", ""),
    "chat, sound": (chat(None, audio={"id": "a", "data": "UklG", "transcript": "42"}), "complete", "42"),
    "chat, broken off": (chat(CUT, "error"), "empty", CUT),
    "deepseek": (chat("42", reasoning_content=HM), "complete", "42"),
    "deepseek, thoughts alone": (chat("", reasoning_content=HM), "empty", ""),
    "deepseek, no resources": (chat(CUT, "insufficient_system_resource"), "empty", CUT),
    "gigachat, filter": (chat("Let us talk of something else.", "blacklist"), "blocked", "Let us talk of something else."),
    "vllm, the same again and again": (chat(CUT, "repetition"), "empty", CUT),
    "deepseek, tags": (chat(f"<think>\n{HM}\n</think>\n\n42"), "complete", "42"),
    "deepseek, tags cut": (chat(f"<think>{HM}", "length"), "cut_off", ""),
    "deepseek, no first tag": (chat(f"{HM}\n</think>\n\n42"), "complete", "42"),
    "a text about a tag": (chat("The tag </think> ends it."), "complete", "The tag </think> ends it."),
    "a text with tags": (chat("It writes\n<think>\nso\n</think>\nthen."), "complete", "It writes\n<think>\nso\n</think>\nthen."),
    "openrouter, image": (chat("", images=[{"type": "image_url", "image_url": {"url": "data:,"}}]), "complete", None),
    "azure, filter": ({"choices": [{"finish_reason": "content_filter", "message": {"role": "assistant"}, "content_filter_results": FILTER}]}, "blocked", ""),
    "mistral, chunks": (chat([{"type": "thinking", "thinking": [text(HM)]}, text("42"), {"type": "reference", "reference_ids": [1]}]), "complete", "42"),
    "mistral, model's length": (chat(CUT, "model_length"), "cut_off", CUT),
    "completions": ({"choices": [{"text": "42", "index": 0, "finish_reason": "stop"}], "usage": {}}, "complete", "42"),
    "completions, cut": ({"choices": [{"text": CUT, "index": 0, "finish_reason": "length"}]}, "cut_off", CUT),
    # openai: responses
    "responses": (responses({"type": "reasoning", "summary": [text(HM, "summary_text")]}, said(text("42", "output_text"))), "complete", "42"),
    "responses, cut": (responses(said(text(CUT, "output_text")), status="incomplete", incomplete_details={"reason": "max_output_tokens"}), "cut_off", CUT),
    "responses, filter": (responses(status="incomplete", incomplete_details={"reason": "content_filter"}), "blocked", ""),
    "responses, refusal": (responses(said({"type": "refusal", "refusal": "I can't help with that."})), "declined", ""),
    "responses, tool": (responses({"type": "function_call", "call_id": "1", "name": "weather", "arguments": IN_TEXT}), "tool_call", ""),
    "chat, own tool": (chat(None, "tool_calls", tool_calls=[{"id": "1", "type": "custom", "custom": {"name": "weather", "input": IN_TEXT}}]), "tool_call", ""),
    "responses, own tool": (responses({"type": "custom_tool_call", "call_id": "1", "name": "weather", "input": IN_TEXT}), "tool_call", ""),
    "responses, approval": (responses({"type": "mcp_approval_request", "id": "1", "name": "weather", "arguments": IN_TEXT, "server_label": "s"}), "tool_call", ""),
    "responses, comments on its work": (responses(said(text(HM, "output_text")) | {"phase": "commentary"}, said(text("42", "output_text")) | {"phase": "final_answer"}), "complete", "42"),
    "responses, in the background": (responses(status="queued"), "paused", ""),
    "responses, not yet whole": (responses(said(text(CUT, "output_text")), status="in_progress"), "paused", CUT),
    "responses, search": (responses({"type": "web_search_call", "status": "completed"}, said(text("42", "output_text"))), "complete", "42"),
    "responses, nothing": (responses(), "empty", ""),
    # anthropic
    "claude": (claude("end_turn", {"type": "thinking", "thinking": HM, "signature": "x"}, text("42")), "complete", "42"),
    "claude, sequence": (claude("stop_sequence", text("42")), "complete", "42"),
    "claude, cut": (claude("max_tokens", text(CUT)), "cut_off", CUT),
    "claude, window": (claude("model_context_window_exceeded", text(CUT)), "cut_off", CUT),
    "claude, thinking used all": (claude("max_tokens", {"type": "thinking", "thinking": HM, "signature": "x"}), "cut_off", ""),
    "claude, refusal": (claude("refusal"), "declined", ""),
    "claude, refusal explained": (claude("refusal") | {"stop_details": {"type": "refusal", "explanation": "It could enable harm."}}, "declined", ""),
    "claude, refusal in the middle": (claude("refusal", text(CUT)), "declined", CUT),
    "claude, pause": (claude("pause_turn", {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {}}), "paused", ""),
    "claude, tool": (claude("tool_use", text(HM), {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Rome"}}), "tool_call", HM),
    "claude, nothing": (claude("end_turn"), "empty", ""),
    "claude, completions": ({"completion": " 42", "stop_reason": "stop_sequence", "stop": "\n"}, "complete", " 42"),
    # google
    "gemini": (gemini("STOP", {"text": HM, "thought": True}, {"text": "4"}, {"text": "2", "thoughtSignature": "eA=="}), "complete", "42"),
    "gemini, cut": (gemini("MAX_TOKENS", {"text": CUT}), "cut_off", CUT),
    "gemini, thinking used all": (gemini("MAX_TOKENS"), "cut_off", ""),
    "gemini, prompt": ({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {}}, "blocked", ""),
    "gemini, other block": ({"promptFeedback": {"blockReason": "OTHER"}, "modelVersion": "m"}, "blocked", ""),
    "gemini, ratings alone": ({"promptFeedback": {"safetyRatings": [{"category": "x", "probability": "LOW"}]}, "usageMetadata": {}}, "empty", ""),
    "gemini, other end": (gemini("OTHER", {"text": CUT}), "empty", CUT),
    "a gateway, unknown end": (chat("42", "other"), "complete", "42"),
    "gemini, usage alone": ({"usageMetadata": {"promptTokenCount": 9}, "modelVersion": "m", "responseId": "r"}, "empty", ""),
    "gemini, to go on": (gemini("CONTINUATION", {"text": CUT}), "paused", CUT),  # a larger maximum changes nothing
    "gemini, no parts": (gemini("STOP"), "empty", ""),
    "gemini, malformed": (gemini("MALFORMED_FUNCTION_CALL", finishMessage="?"), "empty", ""),
    "gemini, tool": (gemini("STOP", {"functionCall": {"name": "weather", "args": {"city": "Rome"}}}), "tool_call", ""),
    "gemini, image": (gemini("STOP", {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}), "complete", None),
    "gemini, sdk": ({"candidates": [{"content": {"parts": [{"text": "42", "thought": None}], "role": "model"}, "finish_reason": "FinishReason.STOP"}]}, "complete", "42"),
    **{f"gemini, {reason}": (gemini(reason), "blocked", "") for reason in ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "SPII", "IMAGE_SAFETY")},
    "vertex predict": ({"predictions": [{"content": "42", "safetyAttributes": {"blocked": False}}]}, "complete", "42"),
    # cohere
    "cohere": (cohere("COMPLETE", {"type": "thinking", "thinking": HM}, text("42")), "complete", "42"),
    "cohere, cut": (cohere("MAX_TOKENS", text(CUT)), "cut_off", CUT),
    "cohere, toxic": (cohere("ERROR_TOXIC"), "blocked", ""),
    "cohere, cancelled": (cohere("USER_CANCEL", text(CUT)), "empty", CUT),
    "cohere, tool": (cohere("TOOL_CALL", tool_plan=HM, tool_calls=CHAT_CALL), "tool_call", ""),
    "cohere v1": ({"text": "42", "generation_id": "g", "chat_history": [], "finish_reason": "COMPLETE", "meta": {}}, "complete", "42"),
    "cohere v1, tool": ({"text": "", "finish_reason": "COMPLETE", "tool_calls": [{"name": "weather", "parameters": {"city": "Rome"}}]}, "tool_call", ""),
    # amazon
    "converse": (converse("end_turn", {"reasoningContent": {"reasoningText": {"text": HM, "signature": "x"}}}, {"text": "42"}), "complete", "42"),
    "converse, cut": (converse("max_tokens", {"text": CUT}), "cut_off", CUT),
    "converse, guardrail": (converse("guardrail_intervened", {"text": "Sorry, the model cannot answer."}), "blocked", "Sorry, the model cannot answer."),
    "converse, filter": (converse("content_filtered"), "blocked", ""),
    "converse, tool": (converse("tool_use", {"toolUse": {"toolUseId": "1", "name": "weather", "input": {"city": "Rome"}}}), "tool_call", ""),
    "titan": ({"inputTextTokenCount": 9, "results": [{"tokenCount": 2, "outputText": "42", "completionReason": "FINISH"}]}, "complete", "42"),
    "titan, cut": ({"inputTextTokenCount": 9, "results": [{"tokenCount": 2, "outputText": CUT, "completionReason": "LENGTH"}]}, "cut_off", CUT),
    "titan, filter": ({"results": [{"tokenCount": 0, "outputText": "", "completionReason": "CONTENT_FILTERED"}]}, "blocked", ""),
    "llama": ({"generation": CUT, "prompt_token_count": 9, "generation_token_count": 9, "stop_reason": "length"}, "cut_off", CUT),
    "deepseek on bedrock, cut": ({"choices": [{"text": CUT, "stop_reason": "length"}]}, "cut_off", CUT),
    "mistral on bedrock, chat, cut": ({"choices": [{"index": 0, "message": {"role": "assistant", "content": CUT}, "stop_reason": "length"}]}, "cut_off", CUT),
    "vllm, a sequence": ({"choices": [{"index": 0, "message": {"content": "42"}, "finish_reason": "stop", "stop_reason": "length"}]}, "complete", "42"),
    "mistral on bedrock": ({"outputs": [{"text": "42", "stop_reason": "stop"}]}, "complete", "42"),
    # others
    "ollama": (ollama("42", thinking=HM), "complete", "42"),
    "ollama, cut": (ollama(CUT, "length"), "cut_off", CUT),
    "ollama, not done": (ollama(CUT, None) | {"done": False}, "empty", CUT),
    "ollama, tool": (ollama("", tool_calls=[{"function": CALL}]), "tool_call", ""),
    "ollama generate": ({"model": "m", "response": "42", "thinking": HM, "done": True, "done_reason": "stop", "context": [1]}, "complete", "42"),
    "ollama generate, nothing": ({"model": "m", "response": "", "done": True, "done_reason": "load"}, "empty", ""),
    "tgi": ({"generated_text": "42"}, "complete", "42"),
    "tgi, listed": ([HUGGING], "cut_off", CUT),
    "watsonx": ({"model_id": "m", "results": [{"generated_text": "42", "stop_reason": "eos_token"}]}, "complete", "42"),
    "watsonx, cut": ({"model_id": "m", "results": [{"generated_text": CUT, "stop_reason": "max_tokens"}]}, "cut_off", CUT),
    "replicate": ({"id": "p", "status": "succeeded", "output": ["4", "2"], "error": None}, "complete", "42"),
    "replicate, failed": ({"id": "p", "status": "failed", "output": None, "input": {"prompt": "?"}, "error": "out of memory"}, "empty", ""),
    "replicate, too slow": ({"id": "p", "status": "processing", "output": ["The"], "error": None}, "paused", "The"),
    "cloudflare, chat": ({"result": chat(CUT, "length"), "success": True, "errors": [], "messages": []}, "cut_off", CUT),
    "llama.cpp, cut": ({"content": CUT, "stop": True, "stop_type": "limit", "tokens_predicted": 9}, "cut_off", CUT),
    "llama.cpp": ({"content": "42", "stop": True, "stop_type": "eos", "tokens_predicted": 9}, "complete", "42"),
    "cloudflare": ({"result": {"response": "42", "tool_calls": []}, "success": True, "errors": []}, "complete", "42"),
    "dashscope": ({"output": {"text": "42", "finish_reason": "stop"}, "usage": {}}, "complete", "42"),
    "dashscope, messages": ({"output": {"choices": [{"finish_reason": "length", "message": {"role": "assistant", "content": CUT}}]}}, "cut_off", CUT),
    "ernie": ({"id": "e", "result": "42", "finish_reason": "normal", "is_truncated": False}, "complete", "42"),
    "aleph alpha": ({"completions": [{"completion": CUT, "finish_reason": "maximum_tokens"}]}, "cut_off", CUT),
    "yandex": ({"result": {"alternatives": [{"message": {"role": "assistant", "text": "42"}, "status": "ALTERNATIVE_STATUS_FINAL"}]}}, "complete", "42"),
    "cohere generate": ({"generations": [{"text": CUT, "finish_reason": "MAX_TOKENS"}], "prompt": "?"}, "cut_off", CUT),
    "interactions": ({"status": "completed", "outputs": [{"type": "thought", "summary": [text(HM)]}, text("42")]}, "complete", "42"),
    "interactions, in steps": ({"id": "i", "status": "completed", "steps": [{"type": "thought", "summary": [text(HM)]}, {"type": "model_output", "content": [text("42")]}]}, "complete", "42"),
    "interactions, in steps, cut": ({"id": "i", "status": "incomplete", "steps": [{"type": "model_output", "content": [text(CUT)]}]}, "cut_off", CUT),
    **{f"interactions, {status}": ({"id": "i", "status": status, "steps": [{"type": "model_output", "content": [text(CUT)]}]}, state, CUT) for status, state in (("requires_continuation", "paused"), ("budget_exceeded", "cut_off"))},
    **{f"interactions, {kind}": ({"id": "i", "status": "completed", "steps": [{"type": "model_output", "content": [{"type": kind, "data": "UklG"}]}]}, "complete", None) for kind in ("audio", "video")},
    "mistral, conversation": (conversation({"type": "tool.execution", "name": "web_search"}, {"type": "message.output", "role": "assistant", "content": [text("42"), {"type": "tool_reference", "tool": "web_search"}]}), "complete", "42"),
    "mistral, conversation, tool": (conversation({"type": "function.call", "tool_call_id": "1", "name": "weather", "arguments": IN_TEXT}), "tool_call", ""),
    "chat, a sound without words": (chat(None, audio={"id": "a", "data": "UklG", "transcript": ""}), "complete", '["UklG"]'),
    "chat, a sound": (chat(None, audio={"id": "a", "data": "UklG", "transcript": "42"}), "complete", "42"),
    "langchain": (langchain("42", finish_reason="stop"), "complete", "42"),
    "langchain, cut": (langchain(CUT, finish_reason="length"), "cut_off", CUT),
    "langchain, of Anthropic, cut": (langchain([text(CUT)], stop_reason="max_tokens"), "cut_off", CUT),
    "langchain, of Bedrock": (langchain("", stopReason="guardrail_intervened"), "blocked", ""),
    "langchain, of Ollama": (langchain(CUT, done_reason="length"), "cut_off", CUT),
    "langchain, responses": (langchain([text(CUT)], status="incomplete", incomplete_details={"reason": "content_filter"}), "blocked", CUT),
    "langchain, refusal": (langchain("", finish_reason="stop") | {"additional_kwargs": {"refusal": "No."}}, "declined", ""),
    "langchain, tool": (langchain([{"type": "tool_use", "id": "1", "name": "weather", "input": CALL["arguments"]}], stop_reason="tool_use") | {"tool_calls": [{"name": "weather", "args": CALL["arguments"], "id": "1", "type": "tool_call"}]}, "tool_call", ""),
    "pydantic-ai, cut": ({"parts": [{"content": HM, "part_kind": "thinking"}, {"content": CUT, "part_kind": "text"}], "finish_reason": "length", "kind": "response"}, "cut_off", CUT),
    "pydantic-ai, tool": ({"parts": [{"tool_name": "weather", "args": IN_TEXT, "tool_call_id": "1", "part_kind": "tool-call"}], "finish_reason": "tool_call", "kind": "response"}, "tool_call", ""),
    "reka": ({"responses": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "42"}}]}, "complete", "42"),
    # what generates no text
    "pictures in some steps": ({"images": ["iVBO"], "steps": 30}, "complete", '{"images": ["iVBO"], "steps": 30}'),
    "embeddings": ({"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "model": "m", "usage": {}}, "complete", '[{"index": 0, "embedding": [0.5]}]'),
    "rerank": ({"id": "r", "results": [{"index": 0, "relevance_score": 0.5}], "meta": {}}, "complete", '[{"index": 0, "relevance_score": 0.5}]'),
    "moderation": ({"id": "m", "model": "m", "results": [{"flagged": False}]}, "complete", '[{"flagged": false}]'),
    "pictures that were filtered": ({"predictions": [{"raiFilteredReason": "violated usage guidelines"}]}, "blocked", ""),
    "pictures, one of two filtered": ({"predictions": [{"bytesBase64Encoded": "iVBO"}, {"raiFilteredReason": "R"}]}, "complete", '[{"bytesBase64Encoded": "iVBO"}, {"raiFilteredReason": "R"}]'),
    "pictures of google-genai": ({"generated_images": [{"image": None, "rai_filtered_reason": "R"}], "sdk_http_response": {}}, "blocked", ""),
    "no pictures": ({"created": 1, "data": []}, "empty", ""),
    "search without hits": ({"results": []}, "complete", "[]"),
    "silence": ({"text": "", "usage": {"type": "duration", "seconds": 3}}, "complete", ""),
    "a text": ("1\n00:00 --> 00:01\nHello", "complete", "1\n00:00 --> 00:01\nHello"),
    "nothing": ({}, "empty", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_finish_of(name):
    body, state, said = CASES[name]
    finish = finish_of(body)
    assert finish.state == state
    if isinstance(body, dict) and body:
        assert state_of(body) == ("complete" if form_of(body) is None else state)
    if said is not None:
        assert finish.text == said
    assert HM in finish.thoughts or HM not in json.dumps(body) or "tool_use" in json.dumps(body)
    if state == State.TOOL_CALL:
        assert json.loads(finish.answer) == [CALL]
    assert bool(finish.problem) == (finish.state not in FINISHED)
    assert CUT not in finish.problem
    for envelope in ('"choices"', '"candidates"', '"usage', '"promptFeedback"', '"stop_reason"'):
        assert envelope not in finish.answer


@pytest.mark.parametrize(
    "name", [name for name, (body, _, _) in CASES.items() if body and isinstance(body, dict) and name != "embeddings"]
)
def test_a_run_records_the_same(name):
    """One by one, and of a batch: the record, what is read of it again, and the row of a table."""
    body, state, _ = CASES[name]
    response = {"status_code": 200, "request_id": "r", "body": body}
    error = Acceptance().error_of(response, None)
    assert (error is None, error and error["code"]) == (state in FINISHED, None if state in FINISHED else state)
    told = Acceptance().told({"response": response, "error": error})
    if state in FINISHED:
        assert (told.value, told.error) == (finish_of(body).answer, None)
    else:
        assert (told.value, told.error.partition(":")[0], told.text) == (None, state, finish_of(body).text or None)
    again = error is not None and state == State.EMPTY
    assert Acceptance().recorded(response, error) == (error is None, "" if error is None else state, again, True)


@pytest.mark.parametrize("provider", ["openai", "azure", "groq", "mistral", "together", "anthropic", "gemini"])
def test_the_results_of_every_batch_api(provider):
    form, kinds = "chat", {
        "anthropic": ("claude", lambda body: {"custom_id": "a", "result": {"type": "succeeded", "message": body}}),
        "gemini": ("gemini", lambda body: {"key": "a", "response": body}),
    }  # fmt: skip

    def line(body):
        response = {"status_code": 200, "request_id": "r", "body": body}
        return {"id": "1", "custom_id": "a", "response": response, "error": None}

    form, line = kinds.get(provider, (form, line))
    ends, seen = ENDPOINTS[provider](SimpleNamespace(account="a")), set()
    for name, (body, state, _) in CASES.items():
        if name.partition(",")[0] == form:
            result = ends.result(line(body))
            error = Acceptance().error_of(result.response, result.error)
            seen.add(state)
            assert (error["code"] if error else state, error is None) == (state, state in FINISHED)
    assert seen >= {"complete", "cut_off", "tool_call"}
    assert seen & {"declined", "blocked"}


def test_each_form_has_a_case():
    """A form behind another one that always fits would never be read."""
    read = {form.has for body, _, _ in CASES.values() if (form := form_of(body)) is not None}
    assert read == {form.has for form in FORMS}


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        [],
        [[0.5]],
        {"choices": "x"},
        {"content": 5},
        {"output": {}},
        {"choices": [None]},
        {"message": {"content": 3}},
    ],
)
def test_malformed_bodies_raise_nothing(value):
    assert finish_of(value).state in State


@pytest.mark.parametrize(
    ("error", "blocked"),
    [
        ({"code": "content_filter", "message": "The response was filtered", "innererror": {"code": "ResponsibleAIPolicyViolation"}}, True),
        ({"type": "invalid_request_error", "message": "Output blocked by content filtering policy"}, True),
        ({"code": "invalid_request_error", "message": "Content Exists Risk"}, True),
        ({"code": "context_length_exceeded", "message": "too long"}, False),
    ],
)  # fmt: skip
def test_errors_of_filters(error, blocked):
    assert blocks({"error": error}) is blocked


def sse(*events):
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()


def chunk(reason=None, **delta):
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def lines(*events):
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def packed(*events):
    return b"".join(map(chunk_of, events))


INVOKED = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 9, "outputTokenCount": 2}}
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}
STREAMS = {
    "chat": ("openai", "chat", sse(chunk(role="assistant", refusal=None), chunk(content="42"), chunk("stop"), USAGE), "complete"),
    "chat, cut": ("openai", "chat", sse(chunk(content=CUT), chunk("length"), USAGE), "cut_off"),
    "chat, refusal": ("openai", "chat", sse(chunk(refusal="I"), chunk(refusal=" can't"), chunk("stop"), USAGE), "declined"),
    "chat, filter": ("azure", "chat", sse(chunk(content=CUT), chunk("content_filter")) + b"data: [DONE]\n\n", "blocked"),
    "chat, tool": ("mistral", "chat", sse(chunk("tool_calls", tool_calls=CHAT_CALL)), "tool_call"),
    "chat, broken off": ("openai", "chat", sse(chunk(content=CUT)), None),
    "responses": ("openai", "responses", sse({"type": "response.completed", "response": responses(said(text("42", "output_text")))}), "complete"),
    "responses, cut": ("openai", "responses", sse({"type": "response.incomplete", "response": responses(status="incomplete", incomplete_details={"reason": "max_output_tokens"})}), "cut_off"),
    "responses, refusal": ("openai", "responses", sse({"type": "response.completed", "response": responses(said({"type": "refusal", "refusal": "No."}))}), "declined"),
    **{
        f"claude, {reason}": ("anthropic", "messages", sse({"type": "message_start", "message": claude(None)}, {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 9}}, {"type": "message_stop"}), state)
        for reason, state in (("end_turn", "complete"), ("tool_use", "tool_call"), ("max_tokens", "cut_off"), ("refusal", "declined"), ("pause_turn", "paused"))
    },
    "gemini": ("gemini", "streamGenerateContent", sse(gemini("", {"text": "4"}), gemini("STOP", {"text": "2"})), "complete"),
    "gemini, safety": ("gemini", "streamGenerateContent", sse(gemini("", {"text": CUT}), gemini("SAFETY")), "blocked"),
    "gemini, prompt": ("gemini", "streamGenerateContent", sse({"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": {"promptTokenCount": 9}}), "blocked"),
    "cohere": ("cohere", "chat", sse({"type": "content-delta", "delta": {"message": {"content": {"text": CUT}}}}, {"type": "message-end", "delta": {"finish_reason": "MAX_TOKENS", "usage": {}}}), "cut_off"),
    "cohere, tool": ("cohere", "chat", sse({"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": {}}}), "tool_call"),
    "cohere, toxic": ("cohere", "chat", sse({"type": "message-end", "delta": {"finish_reason": "ERROR_TOXIC", "usage": {}}}), "blocked"),
    "mistral, cut": ("mistral", "chat", sse(chunk(content=CUT), chunk("model_length")), "cut_off"),
    "ollama": ("ollama", "generate", lines(ollama("42", None), ollama("")), "complete"),
    "ollama, cut": ("ollama", "generate", lines(ollama(CUT, None), ollama("", "length")), "cut_off"),
    "dashscope": ("dashscope", "chat", sse({"output": {"text": CUT, "finish_reason": "null"}}, {"output": {"text": "42", "finish_reason": "stop"}}), "complete"),
    "dashscope, cut": ("dashscope", "chat", sse({"output": {"choices": [{"message": {"content": CUT}, "finish_reason": "null"}]}}, {"output": {"choices": [{"message": {"content": ""}, "finish_reason": "length"}]}}), "cut_off"),
    "dashscope, broken off": ("dashscope", "chat", sse({"output": {"text": CUT, "finish_reason": "null"}}), None),
    "converse, cut": ("bedrock", "converse", frame_of("messageStop", {"stopReason": "max_tokens"}) + frame_of("metadata", {"usage": {}}), "cut_off"),
    "nova by its own API": ("bedrock", "invoke", packed({"messageStart": {"role": "assistant"}}, {"messageStop": {"stopReason": "max_tokens"}}), "cut_off"),
    "claude by its own API": ("bedrock", "invoke", packed({"type": "message_delta", "delta": {"stop_reason": "refusal"}, "usage": {"output_tokens": 2}}), "declined"),
    "titan by its own API": ("bedrock", "invoke", packed({"outputText": CUT, "completionReason": "LENGTH"}, INVOKED), "cut_off"),
    "llama by its own API": ("bedrock", "invoke", packed({"generation": "42", "stop_reason": None}, {"generation": "", "stop_reason": "stop", **INVOKED}), "complete"),
    "converse": ("bedrock", "converse", frame_of("messageStop", {"stopReason": "guardrail_intervened"}) + frame_of("metadata", {"usage": {"inputTokens": 9, "outputTokens": 2}}), "blocked"),
}  # fmt: skip


def read_stream(provider, endpoint, body, size):
    """The reader of a stream that came in parts of this size."""
    reader = provider_named(provider).usage_reader(Call(provider, endpoint, "m", 0, stream=True))
    for at in range(0, max(len(body), 1), size):
        reader.feed(body[at : at + size])
    reader.close()
    return reader


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("size", [7, 10_000])
def test_the_finish_of_a_stream(name, size):
    *stream, state = STREAMS[name]
    reader = read_stream(*stream, size)
    assert (reader.state, reader.whole) == (state, state is not None)


@pytest.mark.parametrize(("provider", "body", "whole"), [
    ("anthropic", sse({"type": "message_start", "message": claude(None)}), False),
    ("gemini", sse(gemini("", {"text": "4"})), False),
    ("bedrock", frame_of("contentBlockDelta", {"delta": {"text": "4"}}), False),
    ("bedrock", packed({"outputText": CUT}), False),
    ("openai", sse(chunk(content="4"), chunk(content="2"))[:-9], False),
    ("openai", sse(chunk(content="4")) + b"data: [DONE]", True),
    ("openai", sse(chunk(content="4"), USAGE), True),
    ("openai", sse(chunk(content="4"), {"error": {"message": "The server had an error", "type": "server_error"}}), True),
    ("openai", lines({"message": {"content": "data: 4"}}, {"done": True}), True),
    ("openai", b"", True),
    ("openai", b": PROCESSING\n\n" + sse({"type": "ping"}, chunk(content="4")), False),
    ("openai", b'data: {"choices" : [{"finish_reason" : null}]}\n\ndata: {"choices" : [{"finish_reason" : "stop"}]}\n\n: bye\n\n', True),
    ("openai", b'data: {"type": "response.created"}\n\ndata: {"type": "response.completed", "response": {"output": []}}\n\n', True),
    ("openai", b'data: {"type": "response.created"}\n\ndata: {"type": "response.output_text.delta", "delta": "4"}\n\n', False),
    ("mistral", b'data: {"type": "conversation.response.started"}\n\ndata: {"type": "conversation.response.error", "code": 500}\n\n', True),
    ("gemini", b'data: {"event_type": "interaction.created"}\n\ndata: {"event_type": "interaction.completed"}\n\n', True),
    ("gemini", b'data: {"event_type": "interaction.created"}\n\ndata: {"event_type": "step.delta"}\n\n', False),
    ("ollama", lines({"message": {"content": "4"}, "done": False}, {"message": {"content": "2"}, "done": False}), False),
    ("ollama", lines({"response": "4", "done": False}, {"done": True, "context": [128_000] * 20_000, "eval_count": 2}), True),
    ("ollama", lines({"message": {"content": "4"}, "done": False}, {"done": True})[:-9], False),
    ("ollama", lines({"message": {"content": "4"}, "done": False}, {"error": "the model has crashed"}), True),
    ("cohere", lines({"is_finished": False, "text": "4"}, {"is_finished": True, "finish_reason": "COMPLETE"}), True),
])  # fmt: skip
def test_a_stream_says_where_it_ends(provider, body, whole):
    endpoint = {"ollama": "generate", "cohere": "chat_v1"}.get(provider, "chat")
    assert read_stream(provider, endpoint, body, 10**6).whole == whole


UNKNOWN_ENDS = {
    "Triton": sse({"model_name": "m", "text_output": "4"}),
    "LM Studio": sse({"type": "chat.start"}, {"type": "message.delta", "content": "4"}, {"type": "chat.end", "result": {}}),
    "llama.cpp": sse({"content": "4", "stop": False}, {"content": "", "stop": True, "stop_type": "eos", "tokens_predicted": 2}),
    "TGI": b'data:{"token":{"id":1,"text":"4"},"generated_text":null,"details":null}\n\ndata:{"token":{},"generated_text":"4","details":null}\n\n',
    "Snowflake": sse({"choices": [{"delta": {"content": "4"}}], "usage": {}}),
    "AG-UI": sse({"type": "RUN_STARTED"}, {"type": "TEXT_MESSAGE_CONTENT", "delta": "4"}, {"type": "RUN_FINISHED"}),
    "text": b"data: 4\n\ndata: 2\n\n",
    "odd": b'data: {"choices": [5]}\n\n',
    "odd type": b'data: {"type": ["message"], "usage": {}}\n\n',
    "odd, too": b'data: {"choices": {"0": 5}, "type": [], "event_type": 5}\n\ndata: []\n\n',
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN_ENDS)
@pytest.mark.parametrize("size", [1, 10_000])
def test_a_stream_of_a_form_without_an_end_is_whole(name, size):
    assert read_stream("generic", "chat", UNKNOWN_ENDS[name], size).whole


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("chat, refusal", "the model declined to answer (stop): I can't help with that."),
        ("claude, refusal explained", "the model declined to answer (refusal): It could enable harm."),
        ("gemini, other block", "a filter of the provider blocked the prompt or the answer (OTHER)"),
        ("chat, broken off", "the provider broke off the answer (error)"),
        ("gemini, usage alone", "the answer has no text"),
        ("claude, pause", "the model has not ended its answer (pause_turn)"),
    ],
)
def test_what_is_said_of_it(name, problem):
    assert finish_of(CASES[name][0]).problem == problem


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("computer_call", "action"), ("local_shell_call", "action"), ("shell_call", "action"), ("apply_patch_call", "operation"),
        ("tool_search_call", "arguments"),
    ],
)  # fmt: skip
def test_a_tool_of_the_client_without_a_name_is_called_by_its_type(kind, field):
    done = finish_of(
        responses(
            {"type": kind, "id": "i", "call_id": "1", "status": "completed", field: {"type": "exec", "command": ["ls"]}}
        )
    )
    assert done.state == State.TOOL_CALL
    assert json.loads(done.answer) == [{"name": kind, "arguments": {"type": "exec", "command": ["ls"]}}]


def test_a_call_in_two_places_of_a_message_is_one():
    done, twice = finish_of(CASES["langchain, tool"][0]), langchain("", finish_reason="tool_calls")
    assert done.calls == (CALL,)
    twice["tool_calls"] = [{"name": "weather", "args": {"city": city}, "id": "1"} for city in ("Rome", "Oslo")]
    assert len(finish_of(twice).calls) == 2  # a server that numbers each call alike


@pytest.mark.parametrize("call_id", ["1", None])
@pytest.mark.parametrize("kind", ["shell_call", "tool_search_call"])
def test_a_call_with_its_output_is_the_provider_s_own(kind, call_id):
    done = {"type": kind, "id": "i", "call_id": call_id, "status": "completed", "arguments": {}}
    output = {
        "type": "tool_search_output" if kind == "tool_search_call" else "shell_call_output",
        "call_id": call_id,
        "output": [],
    }
    assert finish_of(responses(done, output, said(text("42", "output_text")))).state == State.COMPLETE
    assert finish_of(responses(done, output)).state == State.EMPTY
    asked = {"type": "function_call", "call_id": "2", "name": "weather", "arguments": IN_TEXT}
    assert finish_of(responses(done, output, asked)).calls == (CALL,)


def test_a_call_beside_the_output_of_another_one_is_the_client_s():
    asked = {"type": "mcp_approval_request", "id": "i", "name": "weather", "arguments": IN_TEXT}
    output = {"type": "tool_search_output", "call_id": None, "tools": []}
    assert finish_of(responses(output, asked)).calls == (CALL,)


@pytest.mark.parametrize("call_id", [{}, [1]], ids=str)
def test_an_id_of_a_call_that_is_no_text_is_none(call_id):
    call, output = ({"type": kind, "call_id": call_id} for kind in ("shell_call", "shell_call_output"))
    assert finish_of(responses(call, output)).state == State.EMPTY
