"""What the workers of all engines do: it is imported by them, or comes to them by value."""

import os

import openai

import paceline


async def ask(row, client):
    answer = await client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": row["text"]}])
    return answer.choices[0].message.content


def answered(rows):
    return paceline.partition(rows, ask, client=openai.AsyncOpenAI, journal=os.environ["JOURNAL"], key="id")


def rows(count):
    return [{"id": number, "text": f"row {number}"} for number in range(count)]
