"""The judge of after_cut.py: does a text hold what the agent needs next?

The judge reads texts only. It shares no code with memoird and does not know the sections of a
summary, so it grades a window, a sliding window and a piece of transcript alike.
"""

import functools
import json
import re

SUBJECTS = ("used", "task", "standing", "changes")

# Names of tools that change something.
STATE_CHANGING = re.compile(
    "cancel|book|update|modify|exchange|return|send|transfer|edit|create|submit|insert|replace")
ID = re.compile(
    r"#W\d+"  # order
    r"|\b[a-z]+_[a-z]+_\d{3,}\b"  # user
    r"|\b(?:credit_card|gift_card|paypal|certificate)_\d+\b"
    r"|\b\d{10}\b"  # item
    r"|\b(?=[A-Z0-9]*\d)(?=[A-Z0-9]*[A-Z])[A-Z0-9]{6}\b"  # reservation or flight
    r"|\b\d{4}-\d\d-\d\d\b"
    r"|(?:/?[\w.-]+/)+[\w.-]+"  # path
    r"|\b[\w\-]+\.(?:py|txt|md|cfg|toml|json|c|h|js|sh|ya?ml|enc)\b"
    r"|\b0x[0-9a-f]{4,}\b")
# Scripts written without spaces.
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")

# `task` compares the first 600 characters of a request with pieces of a message. Compared with a
# whole summary of several kilobytes, the common words of a short request match by chance.
REQUEST_CHARS = 600
PIECE_CHARS = 2 * REQUEST_CHARS


def text(message):
    """A message in OpenAI's format as the model reads it."""
    lines = [message.get("content") or ""]
    for call in message.get("tool_calls") or []:
        lines.append(f"{call['function']['name']} {call['function']['arguments']}")
    return "\n".join(lines)


@functools.lru_cache(maxsize=100_000)
def words(of):
    """Distinct words of three or more letters; pairs of characters in scripts without spaces."""
    found = set()
    for word in re.findall(r"[\w#$]+", of.lower()):
        if UNSPACED.search(word):
            found |= {word[i:i + 2] for i in range(max(1, len(word) - 1))}
        elif len(word) > 2:
            found.add(word)
    return frozenset(found)


def scalars(value):
    """All strings in a JSON value, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from scalars(inner)


def arguments(call):
    """String arguments of a call, in order: 3 to 40 characters without a space."""
    try:
        parsed = json.loads(call["function"]["arguments"])
    except ValueError:
        return []
    return [value for value in scalars(parsed)
            if 3 <= len(value) <= 40 and " " not in value and not value.isspace()]


def values(message):
    """Call arguments, ids, dates and paths of a message, sorted."""
    found = set(ID.findall(text(message)))
    for call in message.get("tool_calls") or []:
        found.update(arguments(call))
    return sorted(found)


def values_used_next(session, now):
    """Values known before `now` that the agent uses later in the same conversation.

    A value that occurs again between `now` and its use does not count.
    """
    start, end = session.conversation(now)
    before, between, found = "\n".join(session.texts[start:now + 1]), "", []
    for position in range(now + 1, end):
        if session.messages[position]["role"] == "assistant":
            found += [value for value in session.values[position]
                      if value in before and value not in between and value not in found]
        between += "\n" + session.texts[position]
    return found


def judge(session, now, texts):
    """Grades the texts of a window for the model call after the message at position `now`.

    Returns a list of (wanted text, whether the window holds it) for each subject.
    """
    start, _ = session.conversation(now)
    under_way = session.messages[start:now + 1]
    shown = "\n".join(texts)

    used = [(value, value in shown) for value in values_used_next(session, now)]

    task = []
    request = next((text(m) for m in under_way if m["role"] == "user"), "")[:REQUEST_CHARS]
    if len(words(request)) >= 5:
        task.append((request, any_holds(map(words, pieces(texts)), words(request), 0.6)))

    lines = [words(line) for shown_text in texts for line in shown_text.split("\n")]
    standing = [(sentence, any_holds(lines, words(sentence), 0.7))
                for position, sentence in session.planted if position <= now]

    changes = []
    for call in (call for message in under_way for call in message.get("tool_calls") or []):
        name = call["function"]["name"]
        for value in arguments(call)[:1] if STATE_CHANGING.search(name) else []:
            changes.append((f"{name} {value}", value in shown))
    return dict(zip(SUBJECTS, (used, task, standing, changes)))


def any_holds(candidates, wanted, share):
    """Whether one of the sets of words holds that share of the wanted words."""
    return any(len(wanted & candidate) >= share * len(wanted) for candidate in candidates)


def pieces(texts):
    """Overlapping pieces of every text."""
    for whole in texts:
        for first in range(0, max(1, len(whole) - REQUEST_CHARS), REQUEST_CHARS):
            yield whole[first:first + PIECE_CHARS]


# The simplest alternatives, as texts for the judge.


def first_that_fits(session, now, room):
    """Position of the first of the newest messages that fit `room` bytes; one is always shown."""
    first = now
    room -= session.sizes[now]
    while first > 0 and session.sizes[first - 1] <= room:
        first -= 1
        room -= session.sizes[first]
    return first


def sliding_window(session, now, room):
    """The newest messages in `room` bytes."""
    return session.texts[first_that_fits(session, now, room):now + 1]


def plain_cut(session, now, room):
    """The first user turn and the newest messages in `room` bytes."""
    anchor = next(i for i, message in enumerate(session.messages) if message["role"] == "user")
    first = first_that_fits(session, now, room - session.sizes[anchor])
    return [session.texts[i] for i in sorted({anchor, *range(first, now + 1)})]


def raw_end(session, now, summary, rest):
    """The last bytes of the omitted messages in the space of the summary, and the same rest.

    `summary` has the texts of the summary, `rest` the position and text of each other turn.
    """
    shown = {position for position, _ in rest}
    omitted = "\n".join(f"{session.messages[i]['role']}: {session.texts[i]}"
                        for i in range(now + 1) if i not in shown).encode()
    space = len("\n".join(summary).encode())
    return [omitted[len(omitted) - min(space, len(omitted)):].decode(errors="ignore"),
            *(text for _, text in rest)]
