"""What summaries of recorded conversations keep, measured by other rules than those that make
them: `cargo run --example summaries` prints the summaries of a file, one compaction after the
other, and the conversations themselves say what should stand in the last one of each.

- of the calls that change something (by a list of this file's own) how many stand in one line
  with their verb and what they were about;
- of the sentences that tell outcomes how many of their content words are left in one line;
- of the identifiers in what users and assistants said how many are left;
- of the text how much is in lines without words, which say of no identifier what it is;
- what the user wanted last stands there as their words.

The same for the head and the tail of the same conversation, cut to the same number of bytes,
which a summary must beat.
"""

import argparse
import json
import pathlib
import re
import subprocess

GOAL = {"calls": 0.85, "outcomes": 0.60, "identifiers": 0.85}
# Each file, how many of its conversations follow one another in a session, and the tokens of the
# window. Where there are several conversations or few tokens, not all of it fits.
FAMILIES = [
    ("tau_airline_openai.jsonl", 1, 8000, GOAL),
    ("retail_openai.jsonl", 1, 8000, GOAL),
    ("agents_openai.jsonl", 1, 8000, GOAL),
    ("tau_airline_openai.jsonl", 3, 8000, {"calls": 0.85, "outcomes": 0.60}),
    ("retail_openai.jsonl", 3, 8000, {"calls": 0.85, "outcomes": 0.60}),
    ("tau_airline_openai.jsonl", 1, 3000, {"calls": 0.85}),
    ("retail_openai.jsonl", 1, 3000, {"calls": 0.85}),
    ("agents_openai.jsonl", 1, 3000, {"calls": 0.85}),
]
BARE_MAX = 0.15

CHANGES = re.compile(
    r"(?:^|_)(?:cancel|book|update|modify|exchange|return|send|transfer|create|edit|insert|submit"
    r"|delete|write|bash|python3?|rm|mv|pip|call|connect\w*|append|replace|run|make)(?:_|$)")
READS = re.compile(r"^\s*(?:cd|ls|cat|grep|find|head|tail|pwd|file|strings|git (?:status|log|diff|show))\b")
# An edit of a file names only what it replaces; the result says which file it was.
FILE = re.compile(r"\[File: (\S+)|\(Open file: (/\S+)\)")
COMMAND = re.compile(r"(?:```\n?|<command>\n?)(.+?)(?:\n?```|\n?</command>)\s*$", re.S)
IDENTIFIER = re.compile(
    r"[\w.+-]+@[\w-]+\.\w+|#[A-Z]?\d{3,}\b|\b[A-Z]{3}\d{3}\b|\b(?=[A-Z0-9]*\d)(?=[A-Z0-9]*[A-Z])[A-Z0-9]{6}\b"
    r"|\b[a-z]+(?:_[a-z]+)*_\d{3,}\b|\b\d{4}-\d\d-\d\d\b|\$\d[\d,]*(?:\.\d+)?|\b\d{4,}\b"
    r"|(?:/?[\w.-]+/)+[\w.-]+|\b[\w-]+\.(?:py|rst|md|txt|cfg|enc|sh|json|toml)\b|\b0x[0-9a-f]{4,}\b")
OUTCOME = re.compile(
    r"\b(?:has been|have been|was|were|is now|successfully|I've|I have|we have|will be (?:refunded|processed"
    r"|charged|credited)|refund|cancelled|booked|updated|modified|exchanged|transferred|added|fixed"
    r"|ran|passed|failed|resolved|reproduced|matches|found|seeing)\b", re.I)
WORD = re.compile(r"[a-z0-9_$#./'-]*[a-z0-9]", re.I)
STOP = set(
    "a an and any are as at be been but by can could do for from has have i if in is it its me my no not of"
    " on or our so that the their there this to us was we were will with would you your please let know"
    " here also now all further need more other feel free ask assistance help great day thank".split())


def messages_of(file, joined):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for at in range(0, len(lines), joined):
        first, *others = lines[at:at + joined]
        messages = list(first["messages"])
        for other in others:
            messages += [message for message in other["messages"] if message["role"] != "system"]
        yield json.dumps(first["id"]), messages


def text_of(message):
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(part.get("text", "") for part in content)
    return content


def is_output(messages, index):
    """A tool's words in a message of the user: behind a command."""
    return (messages[index]["role"] == "user" and index > 0
            and messages[index - 1]["role"] == "assistant"
            and COMMAND.search(text_of(messages[index - 1])) is not None)


def scalars(value, key=""):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from scalars(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from scalars(inner, key)
    elif value is not None and not isinstance(value, bool):
        yield key, str(value)


def calls(messages):
    """Calls that change something: verbs, one of which stands beside one of the objects."""
    results = {message.get("tool_call_id"): text_of(message) for message in messages
               if message["role"] == "tool"}
    for index, message in enumerate(messages):
        found = []
        for call in message.get("tool_calls") or []:
            arguments = call["function"]["arguments"]
            found.append((call["function"]["name"], arguments, results.get(call["id"], "")))
        if message["role"] == "assistant" and not found:
            command = COMMAND.search(text_of(message))
            if command:
                line = command[1].strip()
                after = text_of(messages[index + 1]) if index + 1 < len(messages) else ""
                found.append((line.split()[0], json.dumps({"command": line}), after))
        for name, arguments, result in found:
            try:
                values = dict(scalars(json.loads(arguments)))
            except ValueError:
                values = {}
            command = values.get("command", "")
            if not CHANGES.search(name) or READS.match(command):
                continue
            verbs = {part for part in re.split(r"[_\W]+", name) if len(part) > 2}
            ids = {value for key, value in values.items() if re.search(r"(?:_id|path|file\w*|number)$", key)}
            if command:
                verbs |= {command.split()[0]}
                ids |= set(IDENTIFIER.findall(command.splitlines()[0]))
            ids |= {one or other for one, other in FILE.findall(result)}
            ids |= {path.rsplit("/", 1)[-1] for path in ids}
            if not ids:
                ids = set(IDENTIFIER.findall(arguments + " " + result))
            ids = {one for one in ids if len(one) > 2 and one != "n/a"}
            if ids:
                yield index, name, verbs, ids


def sentences(text):
    text = COMMAND.sub("", text)
    return [piece.strip() for piece in re.split(r"(?<=[.!?])\s+|\n+", text) if piece.strip()]


def outcomes(messages):
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and index > 0:
            for sentence in sentences(text_of(message)):
                told = OUTCOME.search(sentence) and not sentence.endswith("?")
                if told and len(content(sentence)) >= 4:
                    yield index, sentence


def content(sentence):
    words = (word.strip(".'-") for word in WORD.findall(sentence.lower()))
    return {word for word in words if word and word not in STOP}


def identifiers(messages):
    for index, message in enumerate(messages):
        if message["role"] in ("user", "assistant") and not is_output(messages, index):
            said = COMMAND.sub("", text_of(message))
            for found in IDENTIFIER.findall(said):
                yield index, found.rstrip(".")


PLAIN = re.compile(r"[^\w]*[^\W\d_A-Z][^\W\d_]+(?:['’-][^\W\d_]+)*[^\w]*")
LABELLED = re.compile(r"[^\W\d][\w -]*[=:]|.*[=:]$")


def bare(text):
    """Characters in stretches of five pieces or more without a word, a label or a verb."""
    alone = 0
    for line in text.splitlines():
        run = []
        for piece in line.split() + ["word"]:
            if PLAIN.fullmatch(piece) or LABELLED.match(piece) or "(" in piece:
                alone += sum(len(one) + 1 for one in run) if len(run) >= 5 else 0
                run = []
            else:
                run.append(piece)
    return alone / max(len(text), 1)


def wanted_last(messages, span):
    """The user's last words that say something, by their number of content words."""
    for index in reversed(span):
        text = text_of(messages[index])
        if (messages[index]["role"] == "user" and not is_output(messages, index)
                and len(content(text)) >= 8):
            return text


def measure(messages, span, text, sums):
    lines = [line.lower() for line in text.splitlines()]
    words = [content(line) for line in lines]

    def add(name, got, of):
        have = sums.setdefault(name, [0, 0])
        have[0] += got
        have[1] += of

    inside = set(span)
    for index, name, verbs, ids in calls(messages):
        if index in inside:
            near = any(any(verb.lower() in line for verb in verbs)
                       and any(one.lower() in line for one in ids) for line in lines)
            add("calls", near, 1)
            if not near:
                sums.setdefault("missed", []).append((name, sorted(ids)[:4]))
    for index, sentence in outcomes(messages):
        if index in inside:
            said = content(sentence)
            # In one line: words that stand anywhere say nothing together.
            add("outcomes", max(len(said & line) for line in words), len(said))
    for found in {found for index, found in identifiers(messages) if index in inside}:
        is_there = found.lower() in text.lower()
        add("identifiers", is_there, 1)
        if not is_there:
            sums.setdefault("lost", []).append(found)
    want = wanted_last(messages, span)
    if want:
        said = content(want[:400])
        # Its own section, or the first part of the text.
        beginning = content(text[:900])
        add("wanted", len(said & beginning) >= 0.8 * len(said), 1)
    add("bare", bare(text) * len(text), len(text))


def cut(messages, span, size):
    """The head and the tail of a conversation, in so many bytes."""
    said = []
    for index in span:
        message = messages[index]
        for call in message.get("tool_calls") or []:
            said.append(f"{call['function']['name']}({call['function']['arguments']})")
        said.append(f"{message['role']}: {text_of(message)}")
    said = "\n".join(said)
    return said if len(said) <= size else said[: size // 4] + "\n...\n" + said[-size * 3 // 4:]


def shares(sums):
    return {name: have[0] / max(have[1], 1) for name, have in sums.items() if isinstance(have[0], (int, float))}


def check(file, joined, budget, summaries, wanted, args):
    conversations = dict(messages_of(file, joined))
    last = {}
    first = {}
    ms, over = [], 0
    for line in summaries.splitlines():
        made = json.loads(line)
        last[made["id"]] = made
        first.setdefault(made["id"], made["from"])
        ms.append(made["ms"])
        over += made["tokens"] > max(made["tokens_max"], 256)
    ours, theirs, sizes = {}, {}, []
    for name, made in last.items():
        messages, span = conversations[name], range(first[name], made["through"])
        if sum(len(text_of(messages[index])) for index in span) < 800:
            continue
        sizes.append(made["tokens"])
        measure(messages, span, made["text"], ours)
        measure(messages, span, cut(messages, span, len(made["text"])), theirs)
    got, other = shares(ours), shares(theirs)
    mean = sum(ms) / max(len(ms), 1)
    rounds = len(ms) / max(len(last), 1)
    print(f"  {file.name}, {joined} joined, {budget} tokens: {len(sizes)} conversations, "
          f"{rounds:.1f} compactions each, {sum(sizes) / max(len(sizes), 1):.0f} tokens, "
          f"{mean:.2f} ms, {over} over their tokens")
    for name in ("calls", "outcomes", "identifiers", "wanted", "bare"):
        if name in got:
            print(f"    {name:12} {got[name]:6.1%}   head and tail {other[name]:6.1%}   "
                  f"of {ours[name][1]:.0f}")
    if args.verbose:
        print("   missed", ours.get("missed", [])[:40], "\n   lost", ours.get("lost", [])[:60])
    failed = [name for name, least in wanted.items() if got.get(name, 1) < least]
    failed += [name for name in wanted if got.get(name, 1) < other.get(name, 0)]
    failed += ["bare"] if got["bare"] > BARE_MAX else []
    failed += ["over"] if over else []
    failed += ["ms"] if mean > args.ms_max else []
    return [f"{file.name}, {budget} tokens: {name}" for name in failed]


def main():
    parser = argparse.ArgumentParser()
    for name in ("--summaries", "--data"):
        parser.add_argument(name, type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--budget", type=int, help="instead of the tokens that stand here")
    parser.add_argument("--ms-max", type=float, default=float("inf"),
                        help="milliseconds of a summary in the mean, of an optimized build")
    parser.add_argument("--joined", type=int, help="instead of the numbers that stand here")
    args = parser.parse_args()
    failed = []
    for name, joined, budget, wanted in FAMILIES:
        joined, budget = args.joined or joined, args.budget or budget
        file = args.data / name
        made = subprocess.run([args.summaries, file, str(budget), str(joined)], check=True,
                              capture_output=True, text=True).stdout
        failed += check(file, joined, budget, made, wanted, args)
    assert not failed, failed


main()
