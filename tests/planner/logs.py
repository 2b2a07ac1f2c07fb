"""The same three requests as each program's log has them: one served, one refused, one failed; and what stands for many requests."""

import json

from paceline.batch.reading import read_rows
from paceline.planner.logs import OWN, read_log

SECRET = "the patient's secret"
"""Prompts, which stand in most exports, and must not stand in a message."""

T, LATER, END = "2026-11-01T10:00:00Z", "2026-11-01T10:00:30Z", "2026-11-01T10:00:02Z"
T_S, LATER_S = 1_793_527_200, 1_793_527_230


def written(folder, content, name="log.json"):
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def read(path):
    """As the command reads it."""
    with read_rows(str(path), cut=OWN) as rows:
        return read_log(rows, str(path))


def lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def otlp(*spans):
    return {
        "resourceSpans": [
            {"resource": {"attributes": []}, "scopeSpans": [{"scope": {"name": "openai"}, "spans": list(spans)}]}
        ]
    }


def span(start_s, seconds, *, status=None, events=(), **attributes):
    return {
        "name": "chat gpt-5", "startTimeUnixNano": str(start_s * 10**9), "endTimeUnixNano": str((start_s + seconds) * 10**9),
        "attributes": [{"key": key.replace("__", "."), "value": {"intValue" if isinstance(value, int) else "stringValue": str(value)}}
                       for key, value in attributes.items()],
        "events": list(events), "status": status or {},
    }  # fmt: skip


NAMED = {"gen_ai__operation__name": "chat", "gen_ai__provider__name": "openai", "gen_ai__request__model": "gpt-5"}
SPANS = (
    span(T_S, 2, **NAMED, gen_ai__usage__input_tokens=12, gen_ai__usage__output_tokens=7, gen_ai__prompt=SECRET),
    span(T_S, 9, gen_ai__operation__name="invoke_agent", gen_ai__request__model="gpt-5", gen_ai__usage__input_tokens=24),
    span(LATER_S, 1, **NAMED, error__type="RateLimitError", status={"code": 2, "message": f"Error code: 429 {SECRET}"}),
    span(LATER_S, 1, **NAMED, status={"code": 2}, events=[
        {"name": "exception", "attributes": [{"key": "exception.type", "value": {"stringValue": "APITimeoutError"}}]}
    ]),
)  # fmt: skip

CONSOLE = [
    {"name": "chat", "context": {"trace_id": "0x1", "span_id": "0x2"}, "start_time": T, "end_time": END, "events": [], "status": {"status_code": "UNSET"},
     "attributes": {"gen_ai.system": "openai", "gen_ai.request.model": "gpt-5", "gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 7}},
    {"name": "chat", "context": {"trace_id": "0x1", "span_id": "0x3"}, "start_time": LATER, "end_time": LATER,
     "status": {"status_code": "ERROR", "description": SECRET}, "attributes": {"gen_ai.system": "openai", "gen_ai.request.model": "gpt-5"},
     "events": [{"name": "exception", "attributes": {"exception.type": "openai.RateLimitError"}}]},
    {"name": "chat", "context": {"trace_id": "0x1", "span_id": "0x4"}, "start_time": LATER, "end_time": LATER, "events": [],
     "status": {"status_code": "ERROR"}, "attributes": {"gen_ai.system": "openai", "gen_ai.request.model": "gpt-5", "error.type": "timeout"}},
]  # fmt: skip

INFERRED = {
    "openinference__span__kind": "LLM",
    "llm__system": "openai",
    "llm__invocation_parameters": '{"model": "gpt-5", "stop": null}',
}
INFERENCES = (
    span(T_S, 2, **INFERRED, llm__model_name="gpt-5-2025-08-07", llm__token_count__prompt=12, llm__token_count__completion=7, input__value=SECRET),
    span(LATER_S, 1, **INFERRED, status={"code": 2, "message": f"RateLimitError: Error code: 429 {SECRET}"}),
    span(LATER_S, 1, **INFERRED, status={"code": 2, "message": "BadRequestError: Error code: 400"}),
)  # fmt: skip

AI = {"gen_ai__system": "openai.chat", "gen_ai__request__model": "gpt-5", "ai__prompt": SECRET}
VERCEL = (
    span(T_S, 3, ai__model__id="gpt-5", ai__model__provider="openai.chat"),
    span(T_S, 2, **AI, gen_ai__usage__input_tokens=12, gen_ai__usage__output_tokens=7),
    span(LATER_S, 1, **AI, status={"code": 2, "message": "Rate limit reached for gpt-5 in organization org-abc"}),
    span(LATER_S, 1, **AI, status={"code": 2, "message": "Invalid 'messages'"}),
)

OBSERVED = {"langfuse__observation__type": "generation", "langfuse__observation__model__name": "openai/gpt-5"}
OBSERVATIONS = (
    span(T_S, 3, langfuse__observation__type="span", langfuse__observation__input=SECRET),
    span(T_S, 2, **OBSERVED, langfuse__observation__usage_details='{"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}'),
    span(LATER_S, 1, **OBSERVED, status={"code": 2, "message": "Error code: 429 - Rate limit reached"}),
    span(LATER_S, 1, **OBSERVED, status={"code": 2, "message": "Error code: 400"}),
)  # fmt: skip

LANGFUSE = [
    {"id": "1", "traceId": "t", "type": "SPAN", "name": "chain", "startTime": T, "endTime": END, "model": None, "level": "DEFAULT",
     "statusMessage": None, "input": SECRET, "usageDetails": {}},
    {"id": "2", "traceId": "t", "type": "GENERATION", "name": "llm", "startTime": T, "endTime": END, "model": "openai/gpt-5", "level": "DEFAULT",
     "statusMessage": None, "input": SECRET, "usageDetails": {"input": 9, "input_cached_tokens": 3, "output": 7, "total": 19},
     "modelParameters": {"max_tokens": "inf"}},
    {"id": "3", "traceId": "t", "type": "GENERATION", "name": "llm", "startTime": LATER, "endTime": LATER, "model": "openai/gpt-5",
     "level": "ERROR", "statusMessage": "Error code: 429 - Rate limit reached", "input": SECRET, "usageDetails": {}},
    {"id": "4", "traceId": "t", "type": "GENERATION", "name": "llm", "startTime": LATER, "endTime": LATER, "model": "openai/gpt-5",
     "level": "ERROR", "statusMessage": "the connection broke", "input": SECRET, "usageDetails": {}},
]  # fmt: skip

LANGFUSE_CSV = (
    "id,trace_id,type,start_time,end_time,provided_model_name,level,status_message,usage_details,input\n"
    f'1,t,GENERATION,2026-11-01 10:00:00.000000,2026-11-01 10:00:02.000000,openai/gpt-5,DEFAULT,,"{{""input"":12,""output"":7}}",{SECRET}\n'
    f"2,t,GENERATION,2026-11-01 10:00:30.000000,2026-11-01 10:00:30.000000,openai/gpt-5,ERROR,RateLimitError,{{}},{SECRET}\n"
    f"3,t,GENERATION,2026-11-01 10:00:30.000000,2026-11-01 10:00:30.000000,openai/gpt-5,ERROR,a timeout,{{}},{SECRET}\n"
)

MODEL = {"metadata": {"ls_provider": "openai", "ls_model_name": "gpt-5", "ls_max_tokens": None}}
LANGSMITH = [
    {"id": "1", "name": "agent", "run_type": "chain", "start_time": T, "end_time": END, "inputs": {"q": SECRET}, "extra": {}, "total_tokens": 19},
    {"id": "2", "name": "ChatOpenAI", "run_type": "llm", "start_time": T, "end_time": END, "inputs": {"q": SECRET}, "extra": MODEL,
     "prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19, "status": "success", "error": None},
    {"id": "3", "name": "ChatOpenAI", "run_type": "llm", "start_time": LATER, "end_time": LATER, "extra": MODEL, "status": "error",
     "error": f"RateLimitError(429) {SECRET}", "prompt_tokens": 0, "completion_tokens": 0},
    {"id": "4", "name": "ChatOpenAI", "run_type": "llm", "start_time": LATER, "end_time": LATER, "extra": MODEL, "status": "error",
     "error": "ValueError()", "prompt_tokens": 0, "completion_tokens": 0},
]  # fmt: skip


def helicone(at, status, *tokens, **more):
    return {"request_id": "r", "request_created_at": at, "request_path": "https://api.openai.com/v1/chat/completions", "response_status": status,
            "request_model": "gpt-5", "response_model": "gpt-5-2025-08-07", "provider": "OPENAI", "delay_ms": 2000, "request_body": SECRET,
            **dict(zip(("prompt_tokens", "completion_tokens"), tokens, strict=False)), **more}  # fmt: skip


HELICONE = [
    helicone("2026-11-01 10:00:00.000", 200, 12, 7, cache_reference_id="00000000-0000-0000-0000-000000000000"),
    helicone("2026-11-01 10:00:01.000", 200, 12, 7, cache_reference_id="6f1c1a34-0000-4000-8000-000000000000"),
    helicone("2026-11-01 10:00:30.000", 429),
    helicone("2026-11-01 10:00:30.000", 500),
]


HELICONE_CSV = (
    "response_id,response_created_at,response_status,request_created_at,request_body,model,prompt_tokens,completion_tokens,latency\n"
    f'"1","{END}","200","{T}","{{""""a"""":""""{SECRET}""""}}","openai/gpt-5","12","7",\n'
    f'"2","{LATER}","429","{LATER}","{SECRET}","openai/gpt-5",,,\n'
    f'"3","{LATER}","-3","{LATER}","{SECRET}","openai/gpt-5",,,\n'
)
"""As its export tool writes it, which doubles the quotes of JSON twice."""


def spend(at, end, status, *tokens, **more):
    return {"request_id": "r", "call_type": "acompletion", "api_key": "88dc28d0f030c55ed4ab77ed8faf098196cb1c05", "startTime": at, "endTime": end,
            "model": "gpt-5", "model_group": "smart", "custom_llm_provider": "openai", "status": status, "messages": SECRET,
            **dict(zip(("prompt_tokens", "completion_tokens"), tokens, strict=False)), **more}  # fmt: skip


def unserved(at, end, **more):
    return spend(at, end, "failure", 0, 0, **more)


LITELLM_SPEND = [
    spend("2026-11-01T10:00:00.000Z", "2026-11-01T10:00:02.000Z", "success", 12, 7, cache_hit="None"),
    spend("2026-11-01T10:00:01.000Z", "2026-11-01T10:00:01.000Z", "success", 12, 7, cache_hit="True"),
    unserved(LATER, LATER, metadata={"error_information": {"error_code": "429", "error_class": "RateLimitError"}}),
    unserved(LATER, LATER, metadata={"error_information": {"error_code": "", "error_class": "Timeout"}}),
]
NOTHING = {"cache_hit": None, "error_information": None, "model_parameters": {"max_tokens": None}}
REFUSED = {"error_str": "litellm.AuthenticationError", "error_information": {"error_code": "401"}}
LITELLM_PAYLOAD = [
    spend(float(T_S), T_S + 2.0, "success", 12, 7, **NOTHING),
    unserved(float(LATER_S), LATER_S + 1.0, error_str=f"litellm.RateLimitError: {SECRET}"),
    unserved(float(LATER_S), LATER_S + 1.0, **REFUSED),
]

PLAIN_ARRAY = [
    {"start": T, "model": "openai/gpt-5", "input_tokens": 12, "output_tokens": 7, "seconds": 2},
    {"start": LATER_S, "model": "openai/gpt-5", "input_tokens": 0, "status": 429},
    {"start": LATER_S * 1000, "model": "openai/gpt-5", "input_tokens": 0, "status": 400},
]

ONE_EACH = {
    "OTLP, an object": json.dumps(otlp(*SPANS)),
    "OTLP, lines": lines(otlp(*SPANS[:2]), {"resourceMetrics": []}, otlp(*SPANS[2:])),
    "OTLP of OpenInference": json.dumps(otlp(*INFERENCES)),
    "OTLP of Vercel's ai": json.dumps(otlp(*VERCEL)),
    "OTLP of Langfuse's SDK": json.dumps(otlp(*OBSERVATIONS)),
    "spans of the console exporter": "\n".join(json.dumps(one, indent=4) for one in CONSOLE),
    "Langfuse, an array": json.dumps(LANGFUSE),
    "Langfuse, its API": json.dumps({"data": LANGFUSE, "meta": {"page": 1}}, indent=1),
    "Langfuse, CSV of blob storage": LANGFUSE_CSV,
    "LangSmith, lines": lines(*LANGSMITH),
    "LangSmith, a tree": json.dumps({**LANGSMITH[0], "child_runs": LANGSMITH[1:]}),
    "Helicone, an array": json.dumps(HELICONE),
    "Helicone, its tool": "[\n" + "".join(f"{json.dumps(one, indent=2)},\n" for one in HELICONE) + "]\n",
    "Helicone, CSV of its tool": HELICONE_CSV,
    "litellm, spend logs": json.dumps(LITELLM_SPEND),
    "litellm, payloads": lines(*LITELLM_PAYLOAD),
    "a JSON array": json.dumps(PLAIN_ARRAY),
}
"""Logs of one request of 12 tokens that gave 7 in 2 s, and of a refused and a failed one, half a minute later."""

USAGE = {
    "OpenAI's usage, CSV": (
        "start_time,end_time,start_time_iso,end_time_iso,project_id,num_model_requests,user_id,api_key_id,model,batch,input_tokens,output_tokens\n"
        f"{T_S},{T_S + 60},{T},2026-11-01T10:01:00Z,proj,4,,key_abc,gpt-5,False,10,6\n"
        f"{T_S},{T_S + 60},{T},2026-11-01T10:01:00Z,proj,9,,key_abc,gpt-5,True,900,90\n"
        f"{T_S + 60},{T_S + 120},2026-11-01T10:01:00Z,2026-11-01T10:02:00Z,proj,1,,key_abc,gpt-5,False,5,1\n"
    ),
    "OpenAI's usage, its API": json.dumps({"object": "page", "has_more": False, "data": [
        {"object": "bucket", "start_time": T_S, "end_time": T_S + 60, "results": [
            {"object": "organization.usage.completions.result", "input_tokens": 10, "output_tokens": 6, "num_model_requests": 4, "model": "gpt-5", "batch": False},
            {"object": "organization.usage.completions.result", "input_tokens": 900, "output_tokens": 90, "num_model_requests": 9, "model": "gpt-5", "batch": True},
        ]},
        {"object": "bucket", "start_time": T_S + 60, "end_time": T_S + 120, "results": [
            {"object": "organization.usage.completions.result", "input_tokens": 5, "output_tokens": 1, "num_model_requests": 1, "model": "gpt-5", "batch": None},
        ]},
    ]}),
    "OpenAI's older activity, CSV": (
        "organization_id,n_requests,operation,n_context_tokens_total,n_generated_tokens_total,usage_type,model,timestamp,user\n"
        f"org,4,completion,10,6,text,gpt-5,{T_S},a@example.com\norg,1,completion,5,1,text,gpt-5,{T_S + 60},a@example.com\n"
    ),
    "a CSV of sums": f"start,end,model,requests,input_tokens,output_tokens\n{T},2026-11-01T10:01:00Z,openai/gpt-5,4,10,6\n"
                     "2026-11-01T10:01:00Z,2026-11-01T10:02:00Z,openai/gpt-5,1,5,1\n",
}  # fmt: skip
"""Logs of four requests in a minute and one in the next; where the form has batches, also of nine in a batch."""
