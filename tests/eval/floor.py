"""Measures which memories the floor of relevance lets into a window.

    python tests/eval/floor.py --memoird target/debug/memoird --data ../shared/data
    ... --embedder '{ local: { dir: DIR } }'    also by meaning; as in the configuration
    ... --sizes 20,2000                         only stores of these sizes
    ... --samples 20                            prints some noise and some lost answers

Needs grpcio, grpcio-tools and the folder of recorded conversations. An embedder in the process
needs a daemon built with `--features local-embedder`.

A store holds messages of one user or turns of one dialogue (20 facts), of one dialogue or of five
users (about 400), or of three dialogues and four users (about 2,000). It gets two kinds of messages:

unrelated   questions about users or dialogues that the store does not hold (`other`), messages of
            customers of an airline and a shop (`service`), three messages in a row of such a
            customer and the agent (`long`), general questions, and small talk. Of each kind as
            many per store. The share that brings at least one memory into a window.
relevant    questions whose answer the store holds, if `Recall` without a floor returns it (8 hits).
            The share whose answer is in the window, too.

The columns of single kinds are shares of `unrelated`. Each figure is for one half of the
conversations: `tuning` is for choosing constants, `blind` for the figures that count. Below each
row are the simplest alternatives on the same recalls: no floor, and the best hit only.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import math
import pathlib
import random
import re
import sys
import tempfile
import time
import zlib

from kit import Daemon, generated

IN_FLIGHT = 8
# Categories of LoCoMo whose questions one turn answers: temporal and single-hop. The others need
# several turns or a conclusion, or have no answer.
ONE_FACT = (2, 4)
KINDS = ("other", "service", "long", "general", "small")
# Messages of each kind for one store of 20 facts, and for a larger one.
PER_KIND, PER_KIND_LARGE = 6, 60
SMALL_TALK = """ok|thanks!|ok, thanks a lot|yes please|no, that's all|sounds good|great, let's do it|hello|hi there!
good morning|how are you?|bye|see you tomorrow|never mind|sorry, my mistake|got it|perfect, thank you so much!
hmm, not sure|can you help me?|please continue|try again|that's wrong|why?|what do you mean?|are you there?
lol|cool|wow, nice|one moment please|I see|danke dir|bonjour|¿qué tal?|спасибо|ありがとう|好的"""
GENERAL = """What is the capital of Peru?|How many moons does Jupiter have?|Who wrote Don Quixote?
Translate "good night" into Finnish.|How does a refrigerator work?|What is 17 times 23?
Write a haiku about autumn.|Explain recursion in two sentences.|Which planet is closest to the sun?
When did the Berlin Wall fall?|How long do I boil an egg?|What does HTTP 404 mean?
Sort these numbers: 5, 3, 9, 1.|What's the difference between TCP and UDP?|Is a tomato a fruit?
Convert 100 miles to kilometers.|Who painted the Mona Lisa?|What is the boiling point of ethanol?
Give me a synonym for "fast".|How tall is Mount Everest?|What is a prime number?
Fix this code: for i in range(10) print(i)|Which language is spoken in Brazil?|Tell me a joke about cats.
Wie hoch ist der Eiffelturm?|Quelle est la monnaie du Japon ?|¿Cuál es la capital de Australia?
Сколько костей у человека?|日本の首都はどこですか?|What rhymes with orange?"""


def listed(texts):
    return texts.replace("\n", "|").split("|")


@dataclasses.dataclass(frozen=True)
class Message:
    text: str
    # Determines the half.
    conversation: str

    @property
    def half(self):
        return ("tuning", "blind")[zlib.crc32(self.conversation.encode()) % 2]


@dataclasses.dataclass(frozen=True)
class Question(Message):
    # Texts of the memories with the answer.
    answers: frozenset


@dataclasses.dataclass
class Source:
    """The facts of one user or one dialogue, in order, and the questions about them."""

    name: str
    facts: list
    questions: list


@dataclasses.dataclass
class Store:
    size: int
    subject: str
    facts: list
    relevant: list
    # Kind -> messages.
    unrelated: dict


@dataclasses.dataclass
class Hit:
    text: str
    relevance: float
    cosine: float | None
    coverage: float
    score: float
    is_answer: bool


@dataclasses.dataclass
class Outcome:
    """What one message brings into a window, and what a recall without a floor returns."""

    message: Message
    # None if the message is relevant.
    kind: str | None
    shown: list
    found: list


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def users(data):
    """The users of the Berkeley leaderboard. Each of their messages is a fact."""
    sources = collections.defaultdict(lambda: Source("", [], []))
    owner = {}
    for conversation in lines(data / "bfcl_memory_conversations.jsonl"):
        source = sources[conversation["domain"]]
        source.name = conversation["domain"]
        for message in conversation["messages"]:
            source.facts.append(message["content"].strip())
            owner[source.facts[-1]] = conversation["id"]
    plain = lambda text: re.sub("[’‘“”\"]", "'", text).lower()
    for question in lines(data / "bfcl_memory_questions.jsonl"):
        quoted = plain(question["source"]).strip(". ")
        source = sources[question["domain"]]
        answers = frozenset(fact for fact in source.facts if quoted in plain(fact))
        if answers:
            conversation = min(owner[fact] for fact in answers)
            source.questions.append(Question(question["question"], conversation, answers))
    return list(sources.values())


def dialogues(data):
    """The dialogues of LoCoMo. Each turn is a fact."""
    sources = []
    for dialogue in lines(data / "dialogues_with_questions.jsonl"):
        turns = {turn["id"]: (f"{turn['speaker']}: {turn['text']}".strip(), f"{dialogue['id']} {day['id']}")
                 for day in dialogue["sessions"] for turn in day["turns"]}
        source = Source(dialogue["id"], list(dict.fromkeys(text for text, _ in turns.values())), [])
        for question in dialogue["questions"]:
            evidence = [id for id in question["evidence"] if id in turns]
            if evidence and question["category"] in ONE_FACT:
                answers = frozenset(turns[id][0] for id in evidence)
                source.questions.append(Question(question["question"], turns[evidence[0]][1], answers))
        sources.append(source)
    return sources


def customers(data, file):
    """Messages of customers to a service."""
    found = {}
    for conversation in lines(data / file):
        # Two trials of one task.
        task = conversation["id"].rsplit("-", 1)[0]
        for message in conversation["messages"]:
            if message["role"] == "user" and isinstance(message["content"], str):
                text = message["content"].replace("###STOP###", "").strip()
                if len(text) > 3:
                    found.setdefault(text, Message(text, task))
    return list(found.values())


def exchanges(data, file):
    """Long messages: three messages in a row of a customer and an agent."""
    found = []
    for conversation in lines(data / file):
        task = conversation["id"].rsplit("-", 1)[0]
        texts = [message["content"] for message in conversation["messages"]
                 if message["role"] in ("user", "assistant") and isinstance(message["content"], str)]
        found += [Message("\n".join(texts[at:at + 3]), task) for at in range(1, len(texts) - 3, 4)]
    return found


def general(data):
    """General questions: the short prompts of recorded requests, and a list."""
    texts = dict.fromkeys(listed(GENERAL))
    for line in lines(data / "provider_usage.jsonl"):
        request = line["request"]
        for turn in request.get("messages") or request.get("input") or request.get("contents") or []:
            content = turn.get("content") or turn.get("parts") if isinstance(turn, dict) else None
            if isinstance(content, list):
                content = " ".join(part.get("text") or "" for part in content if isinstance(part, dict))
            if content and turn.get("role") == "user" and 3 < len(content.strip()) < 100:
                texts.setdefault(content.strip())
    return [Message(text, text) for text in texts]


def stores(data, sizes):
    """The stores of all sizes, with their messages."""
    bfcl, locomo = users(data), dialogues(data)
    pick = random.Random(33)
    files = ("tau_airline_openai.jsonl", "retail_openai.jsonl")
    kinds = {"service": [message for file in files for message in customers(data, file)],
             "long": [message for file in files for message in exchanges(data, file)],
             "general": general(data), "small": [Message(text, text) for text in listed(SMALL_TALK)]}

    def store(size, subject, held, facts, count, strangers=(*bfcl, *locomo)):
        facts = list(dict.fromkeys(facts))
        there = set(facts)
        relevant = [question for source in held for question in source.questions if question.answers & there]
        others = [question for source in strangers if source not in held for question in source.questions]
        unrelated = {"other": others, **kinds}
        some = {kind: pick.sample(messages, min(count, len(messages))) for kind, messages in unrelated.items()}
        return Store(size, f"{subject} of {size}", facts, relevant, some)

    if 20 in sizes:
        for source in bfcl + locomo:
            for first in range(0, len(source.facts) - 19, 20):
                chunk = source.facts[first:first + 20]
                yield store(20, f"{source.name} {first}", [source], chunk, PER_KIND)
    if 400 in sizes:
        pooled = [fact for source in bfcl for fact in source.facts]
        yield store(400, "users", bfcl, pooled, PER_KIND_LARGE)
        for source in locomo:
            yield store(400, source.name, [source], source.facts[:420], PER_KIND_LARGE)
    if 2_000 in sizes:
        named = {source.name: source for source in bfcl}
        # Sentences of two more users fill up the store. Their questions are not asked.
        filler = [sentence for name in ("finance", "notetaker") for fact in named[name].facts
                  for sentence in re.split(r"(?<=[.!?])\s+", fact)]
        for left_out, kept in (("student", "customer"), ("customer", "student")):
            held = [*locomo, named[kept], named["healthcare"]]
            facts = [fact for source in held for fact in source.facts] + filler
            yield store(2_000, f"without {left_out}", held, facts[:2_000], PER_KIND_LARGE, [named[left_out]])


class Bot:
    """Remembers facts and asks for windows."""

    def __init__(self, daemon, modules):
        self.grpc, self.common, self.session, self.session_grpc = modules
        from memoird.v1 import memory_pb2, memory_pb2_grpc

        self.memory = memory_pb2
        channel = self.grpc.insecure_channel(daemon.addr)
        self.memories = memory_pb2_grpc.MemoryServiceStub(channel)
        self.sessions = self.session_grpc.SessionServiceStub(channel)
        # Id of a memory -> texts that were remembered as it.
        self.facts = collections.defaultdict(set)

    def remember(self, store):
        def remember(fact):
            request = self.memory.RememberRequest(
                subject=store.subject, kind=self.memory.MEMORY_KIND_USER, content=fact)
            return self.memories.Remember(request, timeout=120).memory.id

        with concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
            # memoird may add dates to a text, so that only its id tells a memory.
            for fact, id in zip(store.facts, pool.map(remember, store.facts)):
                self.facts[id].add(fact)
        turn = self.common.Turn(role=self.common.ROLE_USER, parts=[self.common.Part(text="-")])
        self.sessions.Append(self.session.AppendRequest(
            session_id=store.subject, subject=store.subject, turns=[turn]))

    def wait_for_vectors(self):
        deadline = time.monotonic() + 3_600
        while True:
            stats = self.memories.GetMemoryStats(self.memory.GetMemoryStatsRequest())
            if not stats.embedding_queued:
                return
            assert time.monotonic() < deadline, stats
            time.sleep(0.2)

    def ask(self, store, message, kind):
        """Recalls with the floor of a window, and without one."""
        request = self.memory.RecallRequest(query=message.text, subjects=[store.subject])
        window = self.sessions.BuildContext(self.session.BuildContextRequest(
            session_id=store.subject, memories=request, peek=True,
            budget=self.common.Budget(context_window=200_000)), timeout=120)
        request.explain = True
        found = self.memories.Recall(request, timeout=120).hits
        return Outcome(message, kind, [self.hit(one, message) for one in window.memories],
                       [self.hit(one, message) for one in found])

    def hit(self, hit, message):
        texts = self.facts[hit.memory.id]
        cosine = hit.cosine if hit.HasField("cosine") else None
        is_answer = isinstance(message, Question) and bool(texts & message.answers)
        return Hit(min(texts), hit.relevance, cosine, hit.word_coverage, hit.score, is_answer)

    def measure(self, store):
        asked = [(message, None) for message in store.relevant]
        asked += [(message, kind) for kind, messages in store.unrelated.items() for message in messages]
        with concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
            return list(pool.map(lambda both: self.ask(store, *both), asked))


def has_answer(hits):
    return any(hit.is_answer for hit in hits)


ALTERNATIVES = {"no floor": lambda outcome: outcome.found, "best only": lambda outcome: outcome.found[:1]}


def share(values):
    values = list(values)
    return f"{100 * sum(values) / len(values) if values else math.nan:.1f}"


# For stores of 20 facts: at most this share of unrelated messages gets a memory, and at least this
# share of the answers is kept. Larger stores miss the first.
UNRELATED_MAX, RELEVANT_MIN, GOAL_SIZE = 5, 92, 20


def row(label, outcomes, hits):
    """Prints a row, and returns the shares of unrelated messages and of answers kept."""
    unrelated = [outcome for outcome in outcomes if outcome.kind]
    findable = [outcome for outcome in outcomes if not outcome.kind and has_answer(outcome.found)]
    kinds = [share(bool(hits(one)) for one in unrelated if one.kind == kind) for kind in KINDS]
    lines = sum(len(hits(one)) for one in findable) / max(len(findable), 1)
    cells = [share(bool(hits(one)) for one in unrelated), *kinds, len(unrelated),
             share(has_answer(hits(one)) for one in findable), len(findable), f"{lines:.1f}"]
    print(f"{label:26}" + "".join(f"{cell:>11}" for cell in cells), flush=True)
    return float(cells[0]), float(cells[-3])


def print_samples(outcomes, count):
    pick = random.Random(7)
    noise = [one for one in outcomes if one.kind and one.shown]
    lost = [one for one in outcomes
            if not one.kind and has_answer(one.found) and not has_answer(one.shown)]
    for name, some in (("noise", noise), ("lost", lost)):
        for one in pick.sample(some, min(count, len(some))):
            hits = one.shown or [hit for hit in one.found if hit.is_answer]
            print(f"  {name} {one.kind or ''} {one.message.text!r}")
            for hit in hits[:1]:
                print(f"    {hit.relevance:.2f} {hit.text[:160]!r}")


def arguments():
    def path(text):
        return pathlib.Path(text).resolve()

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--memoird", type=path, required=True, help="the binary")
    add("--data", type=path, required=True, help="folder with recorded conversations")
    add("--embedder", help="`long_term.embedder` of the configuration")
    add("--sizes", type=lambda text: [int(part) for part in text.split(",")], default=[20, 400, 2_000])
    add("--ways", type=lambda text: text.split(","), default=["words", "hybrid"])
    add("--goals", action="store_true", help="exit with 1 if a store of 20 facts misses a goal")
    add("--samples", type=int, default=0)
    add("--dump", type=path, help="writes each message with its hits as JSON lines")
    return parser.parse_args()


def dump(file, outcomes):
    for one in outcomes:
        line = {"kind": one.kind, "text": one.message.text, "half": one.message.half,
                "shown": [dataclasses.asdict(hit) for hit in one.shown],
                "found": [dataclasses.asdict(hit) for hit in one.found]}
        file.write(json.dumps(line) + "\n")


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        modules = generated(work)
        columns = ("unrelated", *KINDS, "of", "relevant", "of", "memories")
        print(f"{'':26}" + "".join(f"{column:>11}" for column in columns))
        missed = []
        embedders = {"words": ""}
        if options.embedder:
            embedders["hybrid"] = f"query_wait: 60s, embedder: {options.embedder}, "
        for way, embedder in embedders.items():
            if way not in options.ways:
                continue
            more = f"long_term: {{ {embedder}window_tokens: 8000 }}\n"
            for size in options.sizes:
                daemon = Daemon(options.memoird, work / f"{way}-{size}", cap=None, more=more)
                bot = Bot(daemon, modules)
                all_stores = list(stores(options.data, [size]))
                for store in all_stores:
                    bot.remember(store)
                if embedder:
                    bot.wait_for_vectors()
                outcomes = [one for store in all_stores for one in bot.measure(store)]
                daemon.kill()
                for half in ("tuning", "blind"):
                    some = [one for one in outcomes if one.message.half == half]
                    unrelated, relevant = row(f"{way} {size} {half}", some, lambda one: one.shown)
                    is_met = unrelated <= UNRELATED_MAX and relevant >= RELEVANT_MIN
                    if size == GOAL_SIZE and not is_met:
                        missed.append(f"{way} {size} {half}")
                    for label, hits in ALTERNATIVES.items():
                        row(f"  {label}", some, hits)
                    if half == "tuning":
                        print_samples(some, options.samples)
                if options.dump:
                    with open(f"{options.dump}-{way}-{size}", "w") as file:
                        dump(file, outcomes)
    if options.goals and missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
