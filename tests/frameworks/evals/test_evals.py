"""lm-eval over requests and over aiohttp, and inspect-ai, whose limit of working time counts no wait for a permit."""

import json

import inspect_ai
import lm_eval
import pytest
from harness import row
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.solver import generate
from lm_eval.tasks import TaskManager

import paceline
from paceline.pacing.permit import around_waits

SLOTS = ["100k requests/min", "10M tokens/min", "4 concurrency"]
POOL = "openai/gpt-5"


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits={"gpt-5": SLOTS}, latency_s=0.2)


@pytest.fixture
def limiter():
    limiter = paceline.Limiter({"openai/*": SLOTS})
    limiter.limits.provider = "openai"  # what a provider's host tells, loopback does not
    return limiter


@pytest.fixture
def task(tmp_path):
    """A task of 24 questions, with data and without a model hub."""
    lines = [json.dumps({"question": f"What is {i} plus 1?", "answer": str(i + 1)}) for i in range(24)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    (tmp_path / "sums.yaml").write_text(f"""
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path}/sums.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8}}
metric_list: [{{metric: exact_match}}]
""")
    return tmp_path


@pytest.mark.parametrize(("at_once", "library"), [(1, "requests"), (16, "aiohttp")])
def test_lm_eval(world, limiter, task, monkeypatch, tmp_path, at_once, library):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    url = f"{world.base_url}/v1/chat/completions"
    options = {"model": "gpt-5", "base_url": url, "num_concurrent": at_once, "max_retries": 1}
    with paceline.instrument(limiter, provider="openai"):
        results = lm_eval.simple_evaluate(
            "local-chat-completions",
            model_args=options,
            tasks=["sums"],
            task_manager=TaskManager(include_path=str(task), include_defaults=False),
            apply_chat_template=True,
            bootstrap_iters=0,
        )
    assert results["results"]["sums"]["exact_match,none"] == 0.0  # the emulator's answers are random words
    figures = row("lm-eval", f"{at_once} at once, through {library}", limiter, world, "gpt-5", POOL)
    assert figures["attempts"] == 24


@pytest.mark.parametrize("told", [True, False])
def test_inspect_ai(paceline_emulator, tmp_path, monkeypatch, told):
    slots = [*SLOTS[:2], "1 concurrency"]
    world = paceline_emulator(limits={"gpt-5": slots}, latency_s=0.4)  # 20 samples take 8 s
    limiter = paceline.Limiter({"openai/*": slots})
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path))
    samples = [Sample(input=f"What is {i} plus 1?", target=str(i + 1)) for i in range(20)]
    task = inspect_ai.Task(dataset=samples, solver=generate(), config=GenerateConfig(max_tokens=8))
    model = get_model("openai/gpt-5", base_url=f"{world.base_url}/v1", api_key="k", responses_api=False)
    with paceline.instrument(limiter, provider="openai"):
        kept = around_waits.copy()
        if not told:
            around_waits.clear()  # as if inspect-ai had not been told of the waits
        (log,) = inspect_ai.eval(
            task,
            model=model,
            max_samples=20,
            max_connections=20,
            working_limit=4,
            display="none",
            log_dir=str(tmp_path),
        )
        around_waits[:] = kept
    cut = [sample for sample in log.samples if sample.limit is not None]
    if not told:
        assert len(cut) >= 5  # of the 10 samples that wait for more than 4 s
        return
    assert log.status == "success"
    assert cut == []
    assert sum(sample.working_time < 4 < sample.total_time for sample in log.samples) >= 5
    figures = row("inspect-ai", "20 samples at once", limiter, world, "gpt-5", POOL)
    assert figures["attempts"] == 20
