// Calls through the SDKs for JavaScript with only a base URL changed: node checks.mjs [NAME ...].
// Writes one line of JSON for each. The environment has ROOT, with /openai/v1 and /anthropic below it; TEXT, TOOL and
// ARGUMENTS, which the answers hold; HEADERS as JSON; and RETRIES of Vercel's SDK.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

const { ROOT, TEXT, TOOL, ARGUMENTS, HEADERS, RETRIES } = process.env;
const headers = JSON.parse(HEADERS);
const maxRetries = Number(RETRIES);
const same = (text) => (TEXT ? assert.equal(text, TEXT) : assert.ok(text)); // the emulator's texts differ
const expected = JSON.parse(ARGUMENTS);
const messages = [{ role: "user", content: "Was kostet das?" }];
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };

const openai = new OpenAI({ baseURL: `${ROOT}/openai/v1`, apiKey: "k", defaultHeaders: headers });
const anthropic = new Anthropic({ baseURL: `${ROOT}/anthropic`, apiKey: "k", defaultHeaders: headers });
const vercelOpenAI = createOpenAI({ baseURL: `${ROOT}/openai/v1`, apiKey: "k", headers });
const vercelAnthropic = createAnthropic({ baseURL: `${ROOT}/anthropic/v1`, apiKey: "k", headers });

const gpt = { model: "gpt-5", messages };
const claude = { model: "claude-haiku-4-5", max_tokens: 100, messages };
const chatTools = [{ type: "function", function: { name: TOOL, parameters: schema } }];
const responseTools = [{ type: "function", name: TOOL, parameters: schema, strict: true }];
const claudeTools = [{ name: TOOL, input_schema: schema, cache_control: { type: "ephemeral" } }];
const vercelTools = { [TOOL]: tool({ description: "The weather", inputSchema: jsonSchema(schema) }) };

const openaiChecks = {
  "openai chat": async () => {
    const answer = await openai.chat.completions.create(gpt);
    same(answer.choices[0].message.content);
  },
  "openai chat, streamed": async () => {
    let text = "";
    for await (const chunk of await openai.chat.completions.create({ ...gpt, stream: true }))
      text += chunk.choices[0]?.delta?.content ?? "";
    same(text);
  },
  "openai chat with tools": async () => {
    const answer = await openai.chat.completions.create({ ...gpt, tools: chatTools });
    assert.deepEqual(JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments), expected);
  },
  "openai chat with tools, streamed": async () => {
    const answer = await openai.chat.completions.stream({ ...gpt, tools: chatTools }).finalChatCompletion();
    assert.deepEqual(JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments), expected);
  },
  "openai responses": async () => {
    const answer = await openai.responses.create({ model: "gpt-5", input: "Hi", store: false });
    assert.equal(answer.output_text, TEXT);
  },
  "openai responses, streamed": async () => {
    let text = "";
    for await (const event of await openai.responses.create({ model: "gpt-5", input: "Hi", stream: true }))
      if (event.type === "response.output_text.delta") text += event.delta;
    assert.equal(text, TEXT);
  },
  "openai responses with tools, streamed": async () => {
    const answer = await openai.responses.stream({ model: "gpt-5", input: "Hi", tools: responseTools }).finalResponse();
    assert.deepEqual(JSON.parse(answer.output[0].arguments), expected);
  },
  "openai embeddings": async () => {
    const answer = await openai.embeddings.create({ model: "m", input: ["a"], encoding_format: "float" });
    assert.deepEqual(answer.data[0].embedding, [0.25, -0.5]);
  },
  "openai transcription": async () => {
    const file = await OpenAI.toFile(Buffer.alloc(300_000, 7), "a.wav");
    const answer = await openai.audio.transcriptions.create({ model: "whisper-1", file });
    assert.equal(answer.text, TEXT);
  },
  "openai models": async () => {
    const found = [];
    for await (const model of openai.models.list()) found.push(model.id);
    assert.deepEqual(found, ["gpt-5"]);
  },
};

const anthropicChecks = {
  "anthropic messages": async () => {
    const answer = await anthropic.messages.create(claude);
    same(answer.content[0].text);
  },
  "anthropic messages with tools, streamed": async () => {
    const answer = await anthropic.messages.stream({ ...claude, tools: claudeTools }).finalMessage();
    assert.equal(answer.content[0].text, TEXT);
    assert.deepEqual(answer.content[1].input, expected);
  },
  "anthropic messages, streamed": async () => {
    let text = "";
    for await (const event of await anthropic.messages.create({ ...claude, stream: true }))
      if (event.type === "content_block_delta") text += event.delta.text;
    same(text);
  },
  "anthropic count_tokens": async () => {
    assert.equal((await anthropic.messages.countTokens({ model: claude.model, messages })).input_tokens, 70);
  },
  "anthropic batches": async () => {
    for await (const batch of anthropic.messages.batches.list()) assert.fail(batch);
  },
};

const models = {
  "vercel openai responses": () => vercelOpenAI.responses("gpt-5"),
  "vercel openai chat": () => vercelOpenAI.chat("gpt-5"),
  "vercel anthropic": () => vercelAnthropic("claude-haiku-4-5"),
};
const vercelChecks = {};
for (const [name, model] of Object.entries(models)) {
  vercelChecks[name] = async () => {
    const answer = await generateText({ model: model(), maxRetries, prompt: "Hi" });
    assert.equal(answer.text, TEXT);
  };
  vercelChecks[`${name}, streamed`] = async () => {
    let failed;
    const answer = streamText({ model: model(), maxRetries, prompt: "Hi", onError: ({ error }) => (failed = error) });
    let text = "";
    for await (const part of answer.textStream) text += part;
    if (failed) throw failed;
    assert.equal(text, TEXT);
  };
  vercelChecks[`${name} with tools`] = async () => {
    const answer = await generateText({ model: model(), maxRetries, prompt: "Hi", tools: vercelTools });
    assert.deepEqual(answer.toolCalls[0].input, expected);
  };
  vercelChecks[`${name} with tools, streamed`] = async () => {
    const answer = streamText({ model: model(), maxRetries, prompt: "Hi", tools: vercelTools });
    assert.deepEqual((await answer.toolCalls)[0].input, expected);
  };
}

const checks = { ...openaiChecks, ...anthropicChecks, ...vercelChecks };
const asked = process.argv.slice(2);
for (const name of asked.length ? asked : Object.keys(checks)) {
  try {
    await checks[name]();
    console.log(JSON.stringify({ name, error: null }));
  } catch (error) {
    console.log(JSON.stringify({ name, error: `${error.constructor.name}: ${error.message}`, status: error.status ?? error.statusCode ?? null }));
  }
}
