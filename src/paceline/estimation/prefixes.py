"""Which prompts a provider still has in its cache, and how far that has proved true.

A request of a conversation has the model, the tools, the system prompt and the first message of the one before, and one of
its last messages ends the prompt of that one. So a *key* of each finds what the last answer has reported of the cache. A key
is a hash of a few short samples, salted by Python for each process: no text is kept.

Time is an argument, in nanoseconds. A table is bounded, and all of it is in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from paceline.core.quota import NS

KEYS_MAX: Final = 65_536
"""Keys that are kept: 17 MB. The one that was written longest ago is dropped first."""

LOOKBACK: Final = 20
"""How many messages before the last one may end the earlier prompt: Anthropic looks at 20 blocks."""

SAMPLE: Final = 24
"""The characters of a sample, at the start, in the middle and at the end of a text."""

DEPTH_MAX: Final = 6
"""The deepest part of a message that is sampled: nothing is recursive without a bound."""

LEARNING: Final = 0.1
"""The weight of the last answer in the hit ratio."""

DOUBT, DOUBT_KEPT = 0.05, 0.99
"""The weight of the last answer in the miss ratio, which ends the order after 14 misses in a row; and what is left of that
ratio after an answer of whose prompt nothing was expected. Without the order prompts are lost in the queue, and nothing would
show that it is of use again."""

ORDERED_FROM: Final = 0.5
"""A request goes before others if the cache has this part of its prompt, and has had this part of what was expected."""

EARLY_NS: Final = NS
"""So long before the end of its life a prompt counts as lost: the request takes a moment to arrive."""

WHOLE_NS, WHOLE_MAX_NS = 300 * NS, 3_600 * NS
"""How long whole prompts are reserved after the first refusal of an attempt that reserved less, and after many."""

AWAY_NS: Final = 3_600 * NS
"""A follow-up that comes later than this after its prompt was lost counts as a new conversation."""

_IDS: Final = ("id", "tool_use_id", "tool_call_id", "call_id")
_TEXTS: Final = (
    "content",
    "text",
    "parts",
    "tool_calls",
    "input",
    "output",
    "arguments",
    "function",
    "thinking",
    "name",
)
"""The fields of a message, or of a block, in which it differs from others; the first that is there."""


_SHARED: Final = ("system", "instructions", "systemInstruction", "tools", "toolConfig")
"""The fields of a body that many conversations may have alike."""

TOOL: Final = 400
"""The characters of a tool, about."""

SHARED_MIN: Final = 4_096
"""The characters of a prefix that is worth a wait: providers cache none of less than about a thousand tokens."""

AWAY_SHARE: Final = 0.2
"""The part of the input that is worth a line in the log, if it was lost before follow-ups came."""


class Cached(NamedTuple):
    """What a cache is expected to hold of a prompt, in tokens, and when it is lost; 0 for nothing."""

    tokens: int = 0
    lost_ns: int = 0


NOTHING: Final = Cached()


class Keys(NamedTuple):
    """Where the prompt of a request is looked for.

    Attributes:
        own: The key of the whole prompt.
        earlier: The keys of the prompts that end with an earlier message.
        root: The key of what many conversations share: the model, the tools and the system prompt.
        base: The key of the conversation.
        length: The number of messages.
        shared: The characters of the system prompt, and about as many as the tools have.
        scope: What has a cache of its own.
        follows: Whether ``own`` is the key of an earlier answer, which the request names in place of its messages.
        before: The tokens that the provider adds to the messages of the request; ``None``: some, and it is not known how many.
    """

    own: int
    earlier: tuple[int, ...]
    root: int
    base: int
    length: int = 0
    shared: int = 0
    scope: Hashable = ""
    follows: bool = False
    before: int | None = 0


def keys_of(cache: PromptCache, scope: Hashable, body: Mapping[str, Any]) -> Keys | None:
    """The keys of the prompt in the ``body`` of a request; ``None`` for one without messages.

    Args:
        cache: What is known of the cache that the request goes to first.
        scope: What has a cache of its own: the model.
        body: The JSON value of the body, in the form of any API.
    """
    answer = body.get("previous_response_id")
    if named := answer or body.get("conversation"):  # the provider has the earlier messages
        keys = named_keys(scope, _sample(named))
        return keys._replace(follows=bool(answer), before=cache.size(keys.own) or None)
    messages = _messages(body)
    if not messages:
        return None
    end, system = len(messages), 0
    while system < end - 1 and _is_system(messages[system]):
        system += 1
    shared = [(name, part) for name in _SHARED if (part := body.get(name))]
    root = hash((scope, *[(name, _sample(part)) for name, part in shared], *map(_sample, messages[:system])))
    first_sample = _sample(messages[system])
    base = hash((root, first_sample))

    def key(length: int) -> int:
        return hash((base, length, first_sample if length == system + 1 else _sample(messages[length - 1])))

    def earlier() -> Iterator[int]:
        """The keys of the earlier prompts of the conversation, the longest first, until one is cached."""
        last, first = cache.known.get(base, NOTHING).tokens, max(end - LOOKBACK, system + 1)
        if first <= last < end and cache.get(latest := key(last)).tokens:
            yield latest
        elif last:  # several conversations begin alike
            for length in range(end - 1, first - 1, -1):
                if not _is_answer(messages[length - 1]):  # no prompt ends with one
                    yield (found := key(length))
                    if cache.get(found).tokens:
                        break

    size = sum([_size(one.get("content")) for one in messages[:system]])
    for name, part in shared:
        size += TOOL * len(part) if name == "tools" and isinstance(part, list) else _size(part)
    return Keys(key(end), tuple(earlier()), root, base, end, size, scope)


def prompt_of(
    cache: PromptCache, scope: Hashable, body: Mapping[str, Any], again: Callable[[], Mapping[str, Any]] | None = None
) -> Prompt | None:
    """The prompt of a request, before ``cache``; ``None`` for one without messages.

    As long as nothing is known to be cached, its keys are made when they are needed: providers cache no short prompts.

    Args:
        cache: As for :func:`keys_of`, like the next two.
        scope: What has a cache of its own.
        body: The JSON value of the body.
        again: Returns ``body`` once more, which is not kept; ``None``: the keys are made at once.
    """
    named = body.get("previous_response_id") or body.get("conversation")
    if again is not None and not cache.known and _messages(body) and not named:
        return Prompt(cache, None, lambda: keys_of(cache, scope, again()))
    keys = keys_of(cache, scope, body)
    return None if keys is None else Prompt(cache, keys)


def _messages(body: Mapping[str, Any]) -> list[Any]:
    messages = body.get("messages") or body.get("contents") or body.get("input") or body.get("prompt")
    if isinstance(messages, str):
        return [messages]
    return messages if isinstance(messages, list) else []


def named_keys(scope: Hashable, name: Hashable) -> Keys:
    """The keys of a conversation that has a name."""
    own = hash((scope, name))
    return Keys(own, (), hash((scope, "")), own, scope=scope)


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ("assistant", "model")


def _sample(value: Any, depth: int = DEPTH_MAX) -> Hashable:
    """A few characters of a part of a body, and its length."""
    if isinstance(value, str):
        size = len(value)
        if size <= 3 * SAMPLE:
            return value
        middle = size // 2
        return size, value[:SAMPLE], value[middle : middle + SAMPLE], value[-SAMPLE:]
    if not value or not depth:
        return None
    if isinstance(value, list):
        last = _sample(value[-1], depth - 1)
        return last if len(value) == 1 else (len(value), last)
    if isinstance(value, dict):
        own, text = _first(value, _IDS), _sample(_first(value, _TEXTS) or list(value.values()), depth - 1)
        return (own, text) if isinstance(own, str) else text
    return None


def _size(value: Any) -> int:
    """The characters of a system prompt: a text, or a list of blocks."""
    if isinstance(value, list):
        return sum(
            [len(text) for block in value if isinstance(block, dict) and isinstance(text := block.get("text"), str)]
        )
    return len(value) if isinstance(value, str) else 0


def _first(value: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name in value and (found := value[name]):
            return found
    return None


class Prefixes(OrderedDict[int, Cached]):
    """What was last reported of the prompts of all pools, and of the lengths of conversations, by their keys."""

    def put(self, key: int, tokens: int, lost_ns: int) -> None:
        """Note what an answer has reported; each step is atomic, because threads share the table."""
        self.pop(key, None)
        self[key] = Cached(tokens, lost_ns)
        if len(self) > KEYS_MAX:
            self.popitem(last=False)


@dataclass(slots=True)
class Reported:
    """What the answers of a pool have reported of their input, in tokens.

    Attributes:
        input: All of it.
        read: The part of it that was read from the cache.
        written: The part of it that was written to the cache.
    """

    input: int = 0
    read: int = 0
    written: int = 0

    @property
    def is_cached(self) -> bool:
        """Whether a token was read from the cache or written to it."""
        return bool(self.read or self.written)

    def tokens_cached(self, input_tokens: int, read: int, written: int) -> int:
        """How many tokens of a prompt are cached after its answer.

        Where the provider names no written ones and has read some, it caches all of a prompt.
        """
        if self.written:
            return read + written
        return input_tokens if self.read else 0


class PromptCache:
    """What the answers of one pool have shown of the cache of its provider.

    Args:
        known: What is known to be cached, at any pool of the limiter.
        pool: The name of the pool.

    Attributes:
        hit_ratio: The part of the expected tokens that was really read, over the last answers, from 0 on.
        miss_ratio: The part that was not, over more answers, from 0 on as well.
        fresh_tokens: What the last follow-ups that found their prompt had beside it, on average.
        whole_until_ns: Until when whole prompts are reserved, because an attempt that reserved less was refused.
        reported: The input that answers have reported.
        lost_waiting_tokens: Cached tokens that were lost while their request waited in the queue.
        lost_away_tokens: Cached tokens that were lost before the follow-up came.
    """

    def __init__(self, known: Prefixes, pool: str) -> None:
        self.known, self._salt = known, hash(pool)
        self.hit_ratio = self.miss_ratio = self.fresh_tokens = 0.0
        self.whole_until_ns = self._whole_ns = 0
        self.reported = Reported()
        self.lost_waiting_tokens = self.lost_away_tokens = 0
        # The beginning of this hour, and what was asked and lost before it.
        self._hour: tuple[int, int, int] | None = None

    def lost_in_an_hour(self, now_ns: int) -> int:
        """At the end of an hour, the tokens that were lost before follow-ups came, if they are a fifth of its input; else 0."""
        began_ns, asked, lost = self._hour or (None, 0, 0)
        if began_ns is not None and now_ns < began_ns + 3_600 * NS:
            return 0
        self._hour = now_ns, self.reported.input, self.lost_away_tokens
        asked, lost = self.reported.input - asked, self.lost_away_tokens - lost
        return lost if lost > AWAY_SHARE * asked and began_ns is not None else 0

    def get(self, key: int) -> Cached:
        """What was last reported under ``key``, also if it is lost by now."""
        return self.known.get(key ^ self._salt, NOTHING)

    def put(self, key: int, tokens: int, lost_ns: int) -> None:
        """Note what is cached under ``key``, and until when."""
        self.known.put(key ^ self._salt, tokens, lost_ns)

    def size(self, own: int) -> int:
        """The tokens of a conversation that has a name, with its last answer; 0: not known."""
        return self.get(hash((own, "size"))).tokens

    def put_size(self, own: int, tokens: int) -> None:
        """Note the tokens of a conversation that has a name, with its last answer."""
        self.put(hash((own, "size")), tokens, 0)

    @property
    def orders(self) -> bool:
        """Whether requests are ordered by what is cached: most of what was expected was really read."""
        return self.miss_ratio <= ORDERED_FROM

    def compare(self, expected: int, read: int) -> None:
        """Learn from an answer that has ``read`` tokens from the cache, where some were ``expected``."""
        share = min(1.0, read / expected)
        self.hit_ratio += LEARNING * (share - self.hit_ratio)
        self.miss_ratio += DOUBT * (1.0 - share - self.miss_ratio)

    def refused(self, now_ns: int) -> None:
        """An attempt that reserved less than its whole prompt was refused: reserve whole ones, for twice as long each time."""
        if now_ns >= self.whole_until_ns:
            self._whole_ns = min(2 * self._whole_ns, WHOLE_MAX_NS) or WHOLE_NS
            self.whole_until_ns = now_ns + self._whole_ns

    def status(self, now_ns: int) -> dict[str, Any]:
        """The state as JSON values."""
        return {
            "input_tokens": self.reported.input,
            "read_tokens": self.reported.read,
            "written_tokens": self.reported.written,
            "expected": round(self.hit_ratio, 4),
            "whole_until_s": round(max(self.whole_until_ns - now_ns, 0) / NS, 3),
            "lost_waiting_tokens": self.lost_waiting_tokens,
            "lost_away_tokens": self.lost_away_tokens,
        }


class Prompt:
    """The prompt of one request, before the cache of a pool.

    Args:
        cache: What is known of the cache.
        keys: Where it is looked for; ``None``: as ``find`` returns them when they are needed. Then nothing goes before its messages.
        find: Returns the keys.

    Attributes:
        before: The tokens that the provider adds to the messages of the request; ``None``: some, and it is not known how many.
        cache: What is known of the cache.
        cached: What the cache was expected to hold of the prompt when it was last looked for.
        whole: Whether the whole prompt is reserved in any case, because a lower reservation was refused.
        discounted: Whether the last reservation was lower than the whole prompt.
    """

    __slots__ = ("_find", "_known", "_late", "_lost", "_turn", "before", "cache", "cached", "discounted", "whole")

    def __init__(self, cache: PromptCache, keys: Keys | None, find: Callable[[], Keys | None] | None = None) -> None:
        self.cache, self._known, self._find = cache, keys, find
        self.before: int | None = 0 if keys is None else keys.before
        self.cached = NOTHING
        self.whole = self.discounted = False
        self._turn = False  # whether an earlier prompt of the conversation is known
        self._lost = NOTHING  # the earlier prompt that is known, and lost
        self._late: bool | None = None  # whether it was lost when the request came

    @property
    def _keys(self) -> Keys:
        if self._known is None:
            assert self._find is not None
            self._known = self._find()
            assert self._known is not None
            self.before = self._known.before
        return self._known

    def at(self, cache: PromptCache) -> Prompt:
        """The same prompt before another cache."""
        return Prompt(cache, self._known, self._find)

    def state(self, cached: Cached) -> Cached:
        """The caller states what the cache holds of the prompt: of a conversation under way, and of no other one."""
        self.cached, self._turn = cached, cached.tokens > 0
        return cached

    def look(self, now_ns: int) -> Cached:
        """What the cache is expected to hold of the prompt now."""
        self._turn = False
        self.cached = self._looked(now_ns) if self.cache.known else NOTHING
        if self._late is None:
            self._late = self._lost.tokens > 0
        return self.cached

    def _looked(self, now_ns: int) -> Cached:
        get, keys = self.cache.get, self._keys
        for key in (keys.own, *keys.earlier):
            found = get(key)
            if found.tokens:
                self._turn = True
                if found.lost_ns > now_ns:
                    return found
                if now_ns < found.lost_ns + AWAY_NS:
                    self._lost = found
                break
        root = get(keys.root)
        return root if root.lost_ns > now_ns else NOTHING

    def unwritten(self, now_ns: int) -> int | None:
        """The key of its prefix, if that is long and not known to be cached; ``None`` otherwise, and where nothing is cached."""
        cache = self.cache
        if (cache.reported.input and not cache.reported.is_cached) or self._keys.shared < SHARED_MIN:
            return None
        return None if cache.get(self._keys.root).lost_ns > now_ns else self._keys.root

    def discount(self, now_ns: int) -> float:
        """The part of the expected cached tokens by which the reservation is lower."""
        share = 0.0 if self.whole or now_ns < self.cache.whole_until_ns else self.cache.hit_ratio
        self.discounted = bool(share and self.cached.tokens)
        return share

    def refused(self, now_ns: int) -> None:
        """An attempt was refused for its tokens: the next one reserves the whole prompt."""
        if self.discounted:
            self.whole = True
            self.cache.refused(now_ns)

    def answered(
        self,
        sent_ns: int,
        life_ns: int,
        input_tokens: int,
        read: int,
        written: int,
        output_tokens: int = 0,
        answer: str = "",
    ) -> None:
        """Learn from an answer.

        Args:
            sent_ns: When the attempt was sent: the life of what is cached begins then.
            life_ns: How long the provider keeps it.
            input_tokens: All input.
            read: The part of it that was read from the cache.
            written: The part of it that was written to the cache.
            output_tokens: The output.
            answer: The name by which a later request may refer to the answer; empty: none.
        """
        cache = self.cache
        reported = cache.reported
        reported.input += input_tokens
        reported.read += read
        reported.written += written
        self._compare(input_tokens, read)
        if not (reported.is_cached or answer or self.before != 0):
            return  # nothing is cached, and no later request can refer to the answer
        keys, lost_ns = self._keys, sent_ns + life_ns - EARLY_NS
        shared = cache.get(keys.root)
        grown = [] if keys.follows else [keys.own]
        if answer:
            grown.append(named_keys(keys.scope, _sample(answer)).own)
        if answer or keys.before != 0:
            for key in grown:
                cache.put_size(key, input_tokens + output_tokens)
        if tokens := reported.tokens_cached(input_tokens, read, written):
            for key in grown:
                cache.put(key, tokens, lost_ns)
            if keys.follows:  # others may follow the same answer
                cache.put(keys.own, read or tokens, lost_ns)
            if keys.length:
                cache.known.put(keys.base, keys.length, 0)  # so that the next one is found at any pool
        self._keep_root(shared, read, lost_ns)

    def _keep_root(self, shared: Cached, read: int, lost_ns: int) -> None:
        """Note until when the beginning that conversations share is cached, which was ``shared`` before this answer."""
        if read and not self._turn:
            self.cache.put(self._keys.root, read, max(lost_ns, shared.lost_ns))
        elif shared.tokens and read >= shared.tokens:
            self.cache.put(self._keys.root, shared.tokens, max(lost_ns, shared.lost_ns))

    def _compare(self, input_tokens: int, read: int) -> None:
        """Compare what was expected to be cached with what was ``read``."""
        cache = self.cache
        if self.cached.tokens:
            cache.compare(self.cached.tokens, read)
            if self._turn and read >= self.cached.tokens:
                cache.fresh_tokens += LEARNING * (input_tokens - read - cache.fresh_tokens)
        else:
            cache.miss_ratio *= DOUBT_KEPT
        lost = max(self._lost.tokens - read, 0)  # also of a prompt whose shared beginning was expected
        if self._late:
            cache.lost_away_tokens += lost
        else:
            cache.lost_waiting_tokens += lost
