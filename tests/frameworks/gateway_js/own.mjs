// Programs that know nothing of a gateway: each SDK finds its server and its key by itself.
import { anthropic } from "@ai-sdk/anthropic";
import { openai } from "@ai-sdk/openai";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const messages = [{ role: "user", content: "Hello" }];
const model = "claude-haiku-4-5";
const own = { openai: new OpenAI({ maxRetries: 0 }), anthropic: new Anthropic({ maxRetries: 0 }) };
const calls = [
  async () => {
    const stream = await own.openai.chat.completions.create({ model: "gpt-5", messages, stream: true });
    let parts = 0;
    for await (const _ of stream) parts += 1;
    return parts;
  },
  async () => (await own.anthropic.messages.create({ model, messages, max_tokens: 20 })).content,
  async () => (await generateText({ model: openai.chat("gpt-5"), messages, maxRetries: 0 })).text,
  async () => await streamText({ model: anthropic(model), messages, maxRetries: 0 }).text,
];
const answers = await Promise.all(Array.from({ length: 40 }, (_, number) => calls[number % 4]()));
console.log(JSON.stringify({ answered: answers.filter(Boolean).length, key: process.env.OPENAI_API_KEY }));
