"""Files of public repositories: each is read, or refused with what to do.

The files in ``public/`` have the form of the file that is named here, with one to three records in other words.
"""

from pathlib import Path

import pytest
from batch_helpers import call

from paceline.batch.forms import Form, as_lines
from paceline.batch.requests import BadLineError
from paceline.core.results import SettingsError

PUBLIC = Path(__file__).parent / "public"
CHAT, GEMINI = "/v1/chat/completions", "/v1beta/models/gemini-2.5-flash:generateContent"
GPT, FLASH = {"model": "gpt-5"}, {"model": "gemini-2.5-flash"}

READ = [
    # batches
    ("openai-cookbook-batch.jsonl", "openai/openai-cookbook", "examples/agent_optimization/outputs/nightly_support_qa_batch.jsonl", {}, "/v1/responses"),
    ("vllm.jsonl", "vllm-project/vllm", "examples/offline_inference/openai_batch/openai_example_batch.jsonl", {}, CHAT),
    ("groq.jsonl", "groq/groq-api-cookbook", "tutorials/01-quickstart/batch-processing/batch_input.jsonl", {}, CHAT),
    ("ai-clients.jsonl", "1tomany/ai-clients", "batch.jsonl", {}, "/v1/responses"),
    ("azure.jsonl", "guygregory/Azure-AI-Samples", "batch.jsonl", {}, "/chat/completions"),
    ("zhipu.jsonl", "jiandanplus/glm-batch-image-caption", "batch_input.jsonl", {}, "/v4/chat/completions"),
    ("fireworks.jsonl", "", "the batches of Fireworks and Volcano Engine", {"model": "llama"}, CHAT),
    ("bedrock-batch.jsonl", "aws-samples/amazon-bedrock-samples", "poc-to-prod/bedrock-batch-orchestrator/pipeline-configs/sample-full-clothing/stage_1_input.jsonl", {"model": "claude-sonnet-4-5"}, "/v1/messages"),
    ("gemini-batch.jsonl", "sotoblanco/medmonics", "data/batch_requests.jsonl", FLASH, GEMINI),
    ("gemini-bodies.jsonl", "GoogleCloudPlatform/generative-ai", "gemini/sample-apps/genai-mlops-tune-and-eval/patient_1_glucose_examples.jsonl", FLASH, GEMINI),
    ("openai-cookbook-parallel.jsonl", "openai/openai-cookbook", "examples/data/example_requests_to_parallel_process.jsonl", {}, "/v1/embeddings"),
    # conversations
    ("mistral-cookbook.jsonl", "mistralai/cookbook", "mistral/observability/data/dataset-import-example.jsonl", GPT, CHAT),
    ("together-cookbook.jsonl", "togethercomputer/together-cookbook", "datasets/small_coqa_10.jsonl", GPT, CHAT),
    ("openai-evals.jsonl", "openai/evals", "build/lib/evals/registry/data/test_match/samples.jsonl", GPT | {"column": "input"}, CHAT),
    ("lm-eval.jsonl", "EleutherAI/lm-evaluation-harness", "lm_eval/tasks/agent_pre_action_control/samples.jsonl", GPT | {"column": "input"}, CHAT),
    ("evalscope-images.jsonl", "modelscope/evalscope", "custom_eval/multimodal/mcq/example_openai.jsonl", GPT, CHAT),
    ("arena-hard.jsonl", "lmarena/arena-hard-auto", "data/arena-hard-v0.1/question.jsonl", GPT | {"template": "{turns[0][content]}"}, CHAT),
    # lines of rows
    ("promptflow.jsonl", "microsoft/promptflow", "examples/flex-flows/chat-basic/data.jsonl", GPT | {"column": "question"}, CHAT),
    ("azureai-samples.jsonl", "Azure-Samples/azureai-samples", "scenarios/evaluate/evaluate_endpoints/data.jsonl", GPT | {"template": "{context} {query}"}, CHAT),
    ("ifeval.jsonl", "google-research/google-research", "instruction_following_eval/data/input_data.jsonl", FLASH, GEMINI),
    ("gsm8k.jsonl", "openai/grade-school-math", "grade_school_math/data/test.jsonl", GPT | {"column": "question"}, CHAT),
    ("kirha.jsonl", "kirha-ai/benchmark", "data/prompts.jsonl", GPT, CHAT),
    ("rlmin.jsonl", "MJ10/rlmin", "data/prompts.jsonl", {"model": "claude-sonnet-4-5"}, "/v1/messages"),
    ("alpaca-seeds.jsonl", "tatsu-lab/stanford_alpaca", "seed_tasks.jsonl", GPT | {"template": "{instruction} {instances[0][input]}"}, CHAT),
    ("axolotl.jsonl", "axolotl-ai-cloud/axolotl", "alpaca-fr.jsonl", GPT | {"template": "{instruction}\n{input}"}, CHAT),
    ("prompts.ndjson", "Alice-creator-tech/gpt-image-2-prompts", "data/prompts.ndjson", GPT, CHAT),
    # one JSON value
    ("big-bench-hard.json", "suzgunmirac/BIG-Bench-Hard", "bbh/ruin_names.json", GPT | {"column": "input"}, CHAT),
    ("mathvista.json", "lupantech/MathVista", "data/testmini.json", GPT | {"column": "question"}, CHAT),
    ("scienceqa.json", "Think-ScienceQA/Think-ScienceQA.github.io", "data/scienceqa/problems.json", GPT | {"template": "{question} {choices}"}, CHAT),
    ("alpaca-5000.json", "tatsu-lab/stanford_alpaca", "data/alpaca_5000.json", GPT | {"template": "{instruction}{input}"}, CHAT),
    ("findver.json", "yilunzhao/FinDVer", "data/testmini.json", GPT | {"column": "statement"}, CHAT),
    ("we-math.json", "We-Math/We-Math", "data/testmini.json", GPT | {"template": "{question} {option}", "key": "question number"}, CHAT),
    ("creditml.json", "javierdecas/creditml-scoring", "batch_requests.json", GPT | {"template": "{age} years, {income}"}, CHAT),
    # tables
    ("promptfoo.csv", "promptfoo/promptfoo", "examples/simple-csv/tests.csv", GPT | {"template": "{language}: {body}"}, CHAT),
    ("promptfoo-no-header.csv", "promptfoo/promptfoo", "examples/csv-prompts/no-header.csv", GPT | {"header": False, "column": "column1"}, CHAT),
    ("mmlu.csv", "HaeChan0305/MLILAB-FedLLM", "data/mmlu/test/anatomy_test.csv", GPT | {"header": False, "template": "{column1} {column2}, {column3}"}, CHAT),
    ("anthropic-cookbook.csv", "anthropics/anthropic-cookbook", "skills/retrieval_augmented_generation/evaluation/promptfoo_datasets/retrieval_dataset.csv", {"model": "claude-sonnet-4-5", "column": "query"}, "/v1/messages"),
    ("awesome-prompts.csv", "f/awesome-chatgpt-prompts", "_site/prompts.csv", GPT, CHAT),
    ("secure-code.csv", "CicaMatt/MetaPromptingSecureCode", "data/questions.csv", GPT | {"template": "{Title}\n{Body}", "key": "ID"}, CHAT),
    ("dogwhistles.tsv", "juliamendelsohn/dogwhistles", "data/prompts.tsv", GPT | {"column": 'Prompt  - Each prompt ends with a mark, newline, and "1." on the next line'}, CHAT),
]  # fmt: skip

REFUSED = [
    ("gemini-embeddings.jsonl", "AnshumanSakhare/gemini-embeddings-2", "batch_input.jsonl", {}, "embeddings of Gemini's own API are not supported"),
    ("natural-instructions.json", "allenai/natural-instructions", "tasks/task046_miscellaneous_question_typing.json", GPT | {"column": "input"}, """e.g. jq '.["Instances"]' natural-instructions.json | paceline run - --model gpt-5 --column input"""),
    ("llama-factory.json", "hiyouga/LLaMA-Factory", "data/glaive_toolcall_en_demo.json", GPT | {"column": "conversations"}, "a message of its prompt has the fields from, value: it must have role and content"),
    ("mt-bench.jsonl", "lm-sys/FastChat", "fastchat/llm_judge/data/mt_bench/question.jsonl", GPT | {"column": "turns"}, "one of the list is --template '{turns[0]}'"),
    ("mmlu.csv", "HaeChan0305/MLILAB-FedLLM", "data/mmlu/test/anatomy_test.csv", GPT, "if its first line is no header, paceline run mmlu.csv --model gpt-5 --column column1 --no-header"),
    ("promptfoo-space.csv", "promptfoo/promptfoo", "examples/csv-prompts/single-column.csv", GPT, "line 3: ',' expected after"),
]  # fmt: skip

TWICE = [
    ("litellm.jsonl", "BerriAI/litellm", "cookbook/litellm_proxy_server/batch_api/bedrock/bedrock_batch_completions.jsonl"),
    ("indented.jsonl", "khoa16122004/API_Material", "batch.jsonl"),
]  # fmt: skip
"""Their ids are not unique: that is found when all requests are read."""


def requests_in(name, form):
    """The requests of a file, as the command reads them."""
    with (PUBLIC / name).open("rb") as file:
        given = as_lines(file, name, Form(**form))
        with given.file:
            return [given.read(number, line) for number, line in given.lines()]


@pytest.mark.parametrize(
    ("name", "form", "path"), [(name, form, path) for name, _, _, form, path in READ], ids=[one[0] for one in READ]
)
def test_it_is_read(name, form, path):
    found = requests_in(name, form)
    assert {request.path for request in found} == {path}
    assert len({request.custom_id for request in found}) == len(found)
    assert all(len(str(request.body)) > 40 for request in found)


@pytest.mark.parametrize(
    ("name", "form", "message"),
    [(name, form, said) for name, _, _, form, said in REFUSED],
    ids=[one[0] for one in REFUSED],
)
def test_it_is_refused_with_what_to_do(name, form, message):
    with pytest.raises((SettingsError, BadLineError)) as caught:
        requests_in(name, form)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", [one[0] for one in TWICE])
def test_ids_that_come_twice_are_named(name, tmp_path):
    """Requests are of a program: one that cannot be sent stops all."""
    source = tmp_path / name
    source.write_bytes((PUBLIC / name).read_bytes())
    _, said = call(source, base_url="http://127.0.0.1:9", code=2)
    unit = "line" if name == "litellm.jsonl" else "row"
    assert f"custom_id is already in {unit} 1: it must be unique" in said


def test_rows_without_a_header_keep_their_first_one():
    first, second = requests_in("mmlu.csv", {"model": "m", "header": False, "column": "column1"})
    assert first.body["messages"][0]["content"] == "Which of the two bones is longer?"
    assert second.body["messages"][0]["content"] == "In men, where is the gland?"


def test_rows_by_their_identity_have_it():
    found = requests_in("mathvista.json", {"model": "m", "column": "question"})
    assert [one.custom_id for one in found] == ["999", "1000"]


def test_each_file_has_a_test():
    tested = {one[0] for one in (*READ, *REFUSED, *TWICE)}
    assert tested == {path.name for path in PUBLIC.iterdir()}
    assert len({repository for _, repository, *_ in (*READ, *REFUSED, *TWICE) if repository}) >= 37
