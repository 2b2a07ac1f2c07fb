"""Media by their bytes: base64 in any field, and the seconds of recordings."""

from __future__ import annotations

import base64
import io
import json
import math
import random
import struct
import wave

import httpx
import pytest

import paceline
from paceline.estimation.media import media_in, seconds_of
from paceline.http.describe import body_of
from paceline.providers.openai import MEDIA
from paceline.providers.prompt import prompt_tokens
from paceline.providers.registry import provider_named

RANDOM = random.Random(1).randbytes(30_000)
PNG, JPEG, PDF = b"\x89PNG\r\n\x1a\n" + RANDOM, b"\xff\xd8\xff\xe0" + RANDOM, b"%PDF-1.7\n" + RANDOM
MP3 = b"ID3\x04\0\0\0\0\0\0\xff\xfb\x90\x00" + RANDOM


def b64(data, mime=""):
    return (f"data:{mime};base64," if mime else "") + base64.b64encode(data).decode()


def tokens(part):
    return prompt_tokens([part], None, "o200k", MEDIA)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"role": "user", "content": "hi", "images": [b64(PNG)]}, "image"),  # Ollama
        ([b64(JPEG, "image/jpeg")], "image"),  # Cohere, nvclip
        ({"content": [{"type": "image_base64", "image_base64": b64(PNG, "image/png")}]}, "image"),  # Voyage
        ({"image": b64(JPEG)}, "image"),  # Jina
        ({"image": base64.urlsafe_b64encode(PNG).decode().rstrip("=")}, "image"),
        ({"image": base64.encodebytes(PNG).decode()}, "image"),  # in lines
        ({"role": "user", "content": f'what? <img src="{b64(PNG, "image/png")}" />'}, "image"),  # NIM
        ({"role": "user", "content": f"![a picture]({b64(PNG, 'image/png')}) of what?"}, "image"),
        ({"content": [{"image": b64(PNG, "image/png;charset=utf-8")}, {"text": "x"}]}, "image"),  # DashScope
        ({"content": [{"video": b64(b"\0\0\0\x18ftypmp42" + RANDOM)}]}, "file"),
        ({"role": "user", "parts": [{"inline_data": {"data": b64(MP3), "mime_type": "audio/mpeg"}}]}, "audio"),
        ({"input_audio": {"data": b64(MP3), "format": "mp3"}}, "audio"),  # without a type
        ({"document": b64(PDF)}, "file"),
        ({"pcm": b64(bytes(30_000))}, "file"),  # silence
        ({"raw": b64(RANDOM)}, "file"),
        ("data:image/svg+xml,%3Csvg%20" + "x%20" * 1_000, "image"),
        ("data:;base64," + b64(PNG), "image"),  # RFC 2397: the type may be left out
        ({"content": f"![a picture](data:;base64,{b64(PNG)}) of what?"}, "image"),
        (b64(JPEG, "application/octet-stream"), "image"),  # Replicate
        (b64(RANDOM, "application/octet-stream"), "file"),
        ("data:;base64," + "=" * 2_000, "file"),
        ({"prompt": "what?", "image": list(JPEG)}, "image"),  # Workers AI
        ({"audio": list(MP3)}, "audio"),
        ({"pcm": list(RANDOM)}, "file"),
    ],
)
def test_bytes_under_any_name_are_one_medium(part, kind):
    constant = getattr(MEDIA, kind)
    assert constant <= tokens(part) <= constant + 30


@pytest.mark.parametrize(
    ("provider", "path", "body"),
    [
        ("ollama", "/api/generate", {"prompt": "what?", "images": [b64(PNG)]}),
        ("generic", "/v1/completions", {"prompt": "what?", "image_data": [{"data": b64(PNG), "id": 1}]}),
        ("bedrock", "/model/amazon.titan-embed-image-v1/invoke", {"inputText": "x", "inputImage": b64(PNG)}),
        ("bedrock", "/model/cohere.embed-v4/invoke", {"images": [b64(PNG, "image/png")]}),
        (
            "bedrock",
            "/model/amazon.nova/invoke",
            {"messages": [{"content": [{"image": {"source": {"bytes": b64(PNG)}}}]}]},
        ),
        (
            "mistral",
            "/v1/chat/completions",
            {"messages": [{"content": [{"type": "input_audio", "input_audio": b64(MP3)}]}]},
        ),
        ("gemini", "/v1beta/models/g:embedContent", {"content": {"parts": [{"inline_data": {"data": b64(PNG)}}]}}),
    ],
)
def test_media_beside_the_text_count_once(provider, path, body):
    assert 600 <= provider_named(provider).describe(path, {"model": "m", **body}).input_tokens <= 1_700


def test_several_media_and_the_words_between_them_count():
    picture, words = b64(PNG, "image/png"), "what is the difference of these? " * 20
    assert tokens(f'<img src="{picture}"> {words} <img src="{picture}">') - 2 * MEDIA.image == pytest.approx(
        tokens(words), abs=20
    )


@pytest.mark.parametrize(
    "text",
    [
        "x" * 5_000,
        "=" * 5_000,
        "GATTACA" * 1_000,
        "gattacaGATTACA" * 1_000,
        "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQ" * 60,
        "0123456789" * 500,
        "deadbeef0" * 600,
        "HelloWorld" * 500,
        "\n".join(["Alice1", "Bob", "Charlotte"] * 500),
        "日本語" * 1_000,
        "def f(x):\n    return x + 1\n" * 300,
        "decode this: " + b64(RANDOM),  # a model reads it so
        "data: the word, not a URL " * 200,
        "data:words,and more words " * 200,
        "x" * 3_000 + ";base64,abc",
    ],
)
def test_a_text_stays_a_text(text):
    assert media_in(text) == ([], text)


@pytest.mark.parametrize(
    "ids", [[7] * 1_000, [7] * 1_000 + [-1] * 24, [7, 50_000] * 1_000], ids=["few", "one is no byte", "ids"]
)
def test_token_ids_count_one_each(ids):
    assert tokens(ids) == len(ids)


def wav(seconds, rate=16_000):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, rate, 0, "NONE", ""))
        out.writeframes(bytes(2 * int(rate * seconds)))
    return file.getvalue()


def flac(samples, rate):
    return b"fLaC\0\0\0\x22" + bytes(10) + (rate << 44 | 1 << 41 | 15 << 36 | samples).to_bytes(8) + bytes(100)


def mp3(bytes_, tag=b"ID3\x04\0\0\0\0\0\x0a" + bytes(10)):  # 128 kbit/s
    return tag + b"\xff\xfb\x90\x00" + bytes(bytes_ - 4)


XING = b"\xff\xfb\x90\x00" + bytes(32) + b"Xing\0\0\0\1" + (1_000).to_bytes(4) + bytes(90_000)
OPUS = b"OggS" + bytes(24) + b"OpusHead" + bytes(500) + b"OggS\0\4" + struct.pack("<Q", 48_000 * 7) + bytes(20)
VORBIS = OPUS.replace(b"OpusHead", b"\x01vorbis\0\0\0\0\1" + struct.pack("<I", 24_000))
M4A = b"\0\0\0\x18ftypM4A " + bytes(90_000) + b"mvhd" + struct.pack(">IIIII", 0, 0, 0, 1_000, 12_500) + bytes(80)


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (wav(12.5), 12.5),
        (flac(44_100 * 9, 44_100), 9),
        (mp3(16_000 * 5), 5),
        (XING, 1_000 * 1_152 / 44_100),
        (OPUS, 7),
        (VORBIS, 14),
        (M4A, 12.5),
        (b"\x1aE\xdf\xa3" + bytes(80_000), 10),  # by its size
        (bytes(80_000), 10),
        (b"RIFF....WAVEfmt ", 0.002),  # broken
        (b"fLaC", 0.0005),
        (b"OggS", 0.0005),
        (b"", 0),
        (PNG, 0),
    ],
)
def test_the_seconds_of_a_recording(data, seconds):
    assert seconds_of(memoryview(data)) == pytest.approx(seconds, rel=0.01)


def test_bytes_that_are_cut_anywhere_never_raise():
    for whole in (
        wav(0.01),
        flac(9, 44_100),
        mp3(200),
        XING[:200],
        OPUS[:700],
        VORBIS[:700],
        M4A[-200:],
        M4A[:40] + M4A[-120:],
    ):
        for end in range(min(len(whole), 700)):
            assert math.isfinite(seconds_of(memoryview(whole[:end])))


AUDIO = "7200 audio_seconds/hour"
URL = "https://api.groq.com/openai/v1/audio/transcriptions"


def uploaded(answer):
    """The seconds that are charged for the upload of a minute with this answer, and those that were held meanwhile."""
    seen = []

    def look():
        seen.append(7_200 - limiter.status()["pools"]["groq/whisper-large-v3"]["quotas"][0]["remaining"])

    def send(request):
        look()
        return answer

    limiter = paceline.Limiter({"groq/*": AUDIO})
    with httpx.Client(transport=httpx.MockTransport(send)) as client:
        limiter.attach(client)
        client.post(URL, data={"model": "whisper-large-v3"}, files={"file": ("a.wav", wav(60))}).read()
    look()
    return seen


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ({"text": "hi"}, 60),
        ({"text": "hi", "duration": 42.5}, 42.5),
        ({"text": "hi", "duration": "42.5", "segments": [{"text": "x" * 200_000}]}, 42.5),
        ({"text": "hi", "usage": {"type": "duration", "seconds": 43}}, 43),
        ({"text": "hi", "duration": -1}, 60),
    ],
)
def test_an_upload_is_charged_by_its_header_and_corrected_by_the_answer(answer, seconds):
    held, charged = uploaded(httpx.Response(200, json=answer))
    assert held == pytest.approx(60, abs=2)
    assert charged == pytest.approx(seconds, abs=2)


def test_the_file_may_stand_before_the_other_fields():
    form = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    form += wav(30) + b'\r\n--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--B--\r\n'
    for name, path, seconds in (("openai", "/v1/audio/translations", 30), ("openai", "/v1/images/edits", 0)):
        call = provider_named(name).describe(path, body_of(form))
        assert (call.model, call.audio_s) == ("whisper-1", pytest.approx(seconds, abs=0.01))


def test_a_body_cannot_state_its_seconds_wrongly():
    for value in ("a", True, None, 1e300, [1]):
        call = provider_named("groq").describe(
            "/v1/audio/transcriptions", json.loads(json.dumps({"model": "w", "audio_seconds": value}))
        )
        assert call.audio_s == 0
