"""Remembers facts of real users, recalls them with real questions, and forgets them again.

Each user message of the conversations becomes a memory of its domain's subject. A question is a hit
if the memory with the answering sentence is found. The checks search by words first. If a model is
given, they also search by meaning and by both, which must not be worse than words alone. Questions
about dialogues of many days are asked with and without the source turns of memories.

No memory of another subject or tenant may be found. An export, its import and another export must
be byte-identical. Forgotten data must be gone from disk, and acknowledged data must survive `kill
-9`, while facts are remembered and while they are embedded.
"""

import argparse
import collections
import concurrent.futures
import functools
import json
import pathlib
import re
import subprocess
import time

from kit import Daemon, generated

DEPTHS = (1, 2, 3, 5, 10, 20)
IN_FLIGHT = 64
# Keys of the tenants.
KEYS = {"all": "key-of-all-c0ffee", "other": "key-of-other-deface"}


class Asker:
    """A client of one tenant's memories."""

    def __init__(self, daemon, modules, key=None):
        self.grpc, self.pb2, service = modules
        # A channel of its own, because a shared one may still back off after a refused connection.
        own = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = self.grpc.insecure_channel(daemon.addr, options=own)
        self.stub = service.MemoryServiceStub(self.channel)
        self.metadata = (("authorization", f"Bearer {key}"),) if key else ()

    def call(self, name, request):
        # Wait for a daemon that was just started, but detect a killed one at once.
        waits = name != "Remember"
        call = getattr(self.stub, name)
        return call(request, metadata=self.metadata, timeout=60, wait_for_ready=waits)

    def remember(self, subject, content, **more):
        kind = self.pb2.MEMORY_KIND_PROJECT if subject == "notetaker" else self.pb2.MEMORY_KIND_USER
        request = self.pb2.RememberRequest(subject=subject, kind=kind, content=content, **more)
        return self.call("Remember", request)

    def remember_all(self, facts):
        """Remembers facts concurrently. Each of them must be new."""
        started = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
            answers = list(pool.map(lambda fact: self.remember(*fact), facts))
        for (subject, content), answer in zip(facts, answers):
            assert answer.outcome == self.pb2.REMEMBER_OUTCOME_CREATED, f"{subject}: {content}"
            assert said(answer.memory) == undated((subject, content))
        print(f"  {len(facts)} remembered in {time.monotonic() - started:.1f} s")

    def recall(self, question, mode=None):
        request = self.pb2.RecallRequest(
            query=question["question"], subjects=[question["domain"]], limit=DEPTHS[-1])
        if mode:
            request.mode = self.pb2.RecallMode.Value(f"RECALL_MODE_{mode}")
        answer = self.call("Recall", request)
        assert not answer.degraded, answer.notes
        return [hit.memory for hit in answer.hits]

    def stats(self):
        return self.call("GetMemoryStats", self.pb2.GetMemoryStatsRequest())

    def all(self):
        """Returns all memories, page by page."""
        memories, token = [], ""
        while True:
            request = self.pb2.ListMemoriesRequest(page_size=100, page_token=token)
            page = self.call("ListMemories", request)
            memories += page.memories
            token = page.next_page_token
            if not token:
                return memories


def plain(text):
    """Normalizes quotation marks and case."""
    return re.sub("[’‘“”\"]", "'", text).lower()


@functools.cache
def quoted(source):
    """Returns the longest contiguous quotation in a source."""
    pieces = (piece.strip(" '").rstrip(".,!?") for piece in plain(source).split("..."))
    return max(pieces, key=len)


# Absolute date that memoird appends to a relative one.
DATE = re.compile(r" \((?:week of )?\d{4}(?:-\d\d){0,2}\)")


def undated(fact):
    """Removes the dates that memoird has added to a fact."""
    subject, content = fact
    return subject, DATE.sub("", content)


def said(memory):
    return undated((memory.subject, memory.content))


def is_source(question, content):
    return quoted(DATE.sub("", question["source"])) in plain(DATE.sub("", content))


def read(data):
    lines = (data / "bfcl_memory_conversations.jsonl").read_text().splitlines()
    facts = [(conversation["domain"], message["content"].strip())
             for conversation in map(json.loads, lines) for message in conversation["messages"]]
    questions = map(json.loads, (data / "bfcl_memory_questions.jsonl").read_text().splitlines())
    literal = [question for question in questions
               if any(subject == question["domain"] and is_source(question, content)
                      for subject, content in facts)]
    assert (len(facts), len(set(facts)), len(literal)) == (323, 323, 142)
    return facts, literal


def table(name, ask, questions, own):
    """Returns the share of questions with a hit at each depth from 1 to 20."""
    places, own = [], set(map(undated, own))
    for question in questions:
        memories = ask(question)
        for memory in memories:
            assert memory.subject == question["domain"], f"{question}: {memory}"
            assert said(memory) in own, f"another tenant's: {memory}"
        found = [place for place, memory in enumerate(memories, start=1)
                 if is_source(question, memory.content)]
        places.append(found[0] if found else None)
    shares = {depth: sum(place is not None and place <= depth for place in places) / len(places)
              for depth in range(1, DEPTHS[-1] + 1)}
    print(f"  {name:<22}", *(f"@{depth} {shares[depth]:6.1%}" for depth in DEPTHS))
    return shares


def is_good(shares):
    assert shares[1] >= 0.80 and shares[5] >= 0.96, shares


def by_words(args, modules, facts, questions):
    """Searches by words: all subjects in one tenant, each alone in another, and the same subjects
    with the words of others in a third."""
    domains = sorted({subject for subject, _ in facts})
    following = dict(zip(domains, domains[1:] + domains[:1]))
    strange = [(following[subject], content) for subject, content in facts]
    tenants = {**KEYS, **{domain: f"key-of-{domain}-facade" for domain in domains}}
    secrets = "".join(f"- {{ id: {tenant}, keys: [ {{ file: {args.work / tenant}.key }} ] }}\n"
                      for tenant in tenants)
    for tenant, key in tenants.items():
        (args.work / f"{tenant}.key").write_text(key)
    daemon = Daemon(args.memoird, args.work / "words", more=f"tenants:\n{secrets}")
    askers = {tenant: Asker(daemon, modules, key) for tenant, key in tenants.items()}
    alone = {}
    for domain in domains:
        alone[domain] = [fact for fact in facts if fact[0] == domain]
        askers[domain].remember_all(alone[domain])
    ask = lambda question: askers[question["domain"]].recall(question)
    is_good(table("by words, alone", ask, questions, set(facts)))
    askers["all"].remember_all(facts)
    askers["other"].remember_all(strange)
    is_good(table("by words, all subjects", askers["all"].recall, questions, set(facts)))
    for domain in domains:
        others = [question for question in questions if question["domain"] != domain]
        found = [memory for question in others for memory in askers[domain].recall(question)]
        assert not found, f"{domain} finds what is not there: {found[0]}"
    for question in questions:
        for memory in askers["other"].recall(question):
            assert said(memory) in set(map(undated, strange)), memory
    return daemon, askers["all"]


def cli(daemon, key, *words, **options):
    argv = [daemon.memoird, "--addr", daemon.addr, "memory", *words]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE,
                          env={"MEMOIRD_KEY": key} if key else {}, **options).stdout


def carried_over(args, modules, daemon, asker):
    """Checks that an export, its import elsewhere and another export are byte-identical."""
    first = cli(daemon, KEYS["all"], "export")
    lines = first.decode().splitlines()
    assert len(lines) == 323, len(lines)
    other = Daemon(args.memoird, args.work / "carried")
    cli(other, None, "import", "-", input=first)
    again = cli(other, None, "export")
    assert again == first, "the second export differs"
    cli(other, None, "import", "-", input=first)
    there = Asker(other, modules)
    assert there.stats().memories == 323
    assert there.all() == asker.all(), "to the last field"
    other.stop()
    print(f"  {len(lines)} memories exported, imported and exported again: {len(first)} bytes")


def distinctive(facts, subject):
    """Returns twenty words and sentences that only this subject's memories contain."""
    ours = " ".join(content for owner, content in facts if owner == subject)
    others = " ".join(content for owner, content in facts if owner != subject).lower()
    words = sorted(set(re.findall(r"[A-Za-z]{8,}", ours)), key=lambda word: (-len(word), word))
    sentences = [s for s in re.split(r"[.!?]\s+", ours) if 30 <= len(s) <= 120]
    alone = lambda texts: [text for text in texts if text.lower() not in others]
    chosen = alone(words)[:10] + alone(sentences)[:10]
    assert len(chosen) == 20, chosen
    return chosen


def on_disk(daemon, texts):
    files = [file for file in (daemon.folder / "data" / "memories").rglob("*") if file.is_file()]
    assert files, "no file of memories"
    held = [file.read_bytes().lower() for file in files]
    return {text for text in texts if any(text.lower().encode() in bytes for bytes in held)}


def forgotten(args, modules, facts, questions):
    """Checks that forgetting one subject removes all its words, and nothing of the others."""
    gone = "healthcare"
    daemon = Daemon(args.memoird, args.work / "forgotten")
    asker = Asker(daemon, modules)
    asker.remember_all(facts)
    for question in questions:
        asker.recall(question)
    words = distinctive(facts, gone)
    assert len(on_disk(daemon, words)) >= 15, "or the search would show nothing"
    answer = asker.call("Forget", modules[1].ForgetRequest(subject=gone))
    count = sum(subject == gone for subject, _ in facts)
    assert (answer.memories, answer.erased) == (count, True), answer
    left = on_disk(daemon, words)
    assert not left, f"still on the disk: {left}"
    own = {fact for fact in facts if fact[0] != gone}
    others = [question for question in questions if question["domain"] != gone]
    for question in questions:
        assert question["domain"] != gone or not asker.recall(question)
    table("after a subject went", asker.recall, others, own)
    daemon.stop()
    assert not on_disk(daemon, words)
    print(f"  {count} memories forgotten: of {len(words)} words and sentences none is on the disk")


def killed_amid_remembering(args, modules, facts):
    """Checks that acknowledged facts are stored once under their id, and others after a retry."""
    daemon = Daemon(args.memoird, args.work / "killed")
    acknowledged, waiting, kills = {}, list(enumerate(facts)), 0
    while waiting:
        asker = Asker(daemon, modules)
        enough = len(acknowledged) + 60

        def remember(numbered):
            number, (subject, content) = numbered
            try:
                answer = asker.remember(subject, content, idempotency_key=str(number))
            except modules[0].RpcError:
                return
            acknowledged[number] = answer.memory.id

        with concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
            calls = [pool.submit(remember, numbered) for numbered in waiting]
            while len(acknowledged) < enough and not all(call.done() for call in calls):
                time.sleep(0.001)
            if kills < 4:
                daemon.kill()
                kills += 1
        for call in calls:
            call.result()
        if daemon.process.poll() is not None:
            daemon.start()
        there = collections.Counter()
        ids = {}
        for memory in Asker(daemon, modules).all():
            there[said(memory)] += 1
            ids[said(memory)] = memory.id
        assert not there or max(there.values()) == 1, there.most_common(1)
        for number, id in acknowledged.items():
            assert ids.get(undated(facts[number])) == id, f"lost: {facts[number]}"
        waiting = [(number, fact) for number, fact in waiting if number not in acknowledged]
    assert kills == 4 and len(acknowledged) == len(ids) == len(facts)
    assert not any(memory.reinforced for memory in Asker(daemon, modules).all())
    daemon.stop()
    print(f"  killed {kills} times amid remembering: {len(ids)} are there, each once")


def embedded(asker, enough=None):
    """Waits until all memories, or `enough` of them, are embedded."""
    deadline = time.monotonic() + 600
    while True:
        stats = asker.stats()
        assert stats.embedding_failed == 0, stats
        if stats.embedded >= (enough or stats.memories) and not (stats.embedding_queued and not enough):
            return stats
        assert time.monotonic() < deadline, f"embedding stands still: {stats}"
        time.sleep(0.05)


def by_meaning(args, modules, facts, questions):
    """Kills the daemon twice during embedding, then compares the modes of search."""
    more = f"long_term: {{ query_wait: 30s, embedder: {{ local: {{ dir: {args.embedder_dir} }} }} }}\n"
    daemon = Daemon(args.memoird, args.work / "meaning", more=more)
    asker = Asker(daemon, modules)
    asker.remember_all(facts)
    started = time.monotonic()
    for enough in (20, 150):
        stats = embedded(asker, enough)
        assert stats.embedded < len(facts), f"too quick to be killed: {stats}"
        daemon.kill()
        daemon.start()
        asker = Asker(daemon, modules)
        after = asker.stats()
        assert after.embedded >= stats.embedded, "what was done is done"
        assert after.embedded + after.embedding_queued == len(facts), after
    stats = embedded(asker)
    assert stats.embedded == stats.memories == len(facts), stats
    print(f"  killed twice amid embedding: {stats.embedded} embedded by {stats.embedding_model} "
          f"in {time.monotonic() - started:.1f} s")
    shares = {}
    for mode in ("LEXICAL", "VECTOR", "HYBRID"):
        ask = lambda question: asker.recall(question, mode)
        shares[mode] = table(mode.lower(), ask, questions, set(facts))
    is_good(shares["LEXICAL"])
    for depth, share in shares["LEXICAL"].items():
        assert shares["HYBRID"][depth] >= share, f"hybrid is worse than words alone at {depth}"
    dialogues(args, modules, daemon, ("LEXICAL", "HYBRID"))
    daemon.stop()


def dialogues(args, modules, daemon, modes):
    """Returns the share of questions for which a turn with the answer is found."""
    lines = (args.data / "dialogues_with_questions.jsonl").read_text().splitlines()
    talks = [json.loads(line) for line in lines]
    asker = Asker(daemon, modules)
    pb2 = modules[1]
    from memoird.v1 import common_pb2 as common, session_pb2 as session, session_pb2_grpc as service

    sessions = service.SessionServiceStub(asker.channel)
    found = {}
    for said in (False, True):
        asked = []
        for number, talk in enumerate(talks):
            subject = f"{talk['id']}{said}"
            facts = [(day, turn) for day in talk["sessions"] for turn in day["turns"]]
            ids = {}
            for day in talk["sessions"] if said else ():
                turns = [common.Turn(role=common.ROLE_USER, parts=[common.Part(text=turn["text"])])
                         for turn in day["turns"]]
                name = f"{subject} {day['id']}"
                sessions.Append(session.AppendRequest(session_id=name, turns=turns), timeout=60)
            for day in talk["sessions"]:
                for seq, turn in enumerate(day["turns"], start=1):
                    source = pb2.MemorySource(session_id=f"{subject} {day['id']}", seqs=[seq])
                    more = {"source": source} if said else {}
                    answer = asker.remember(subject, f"{turn['speaker']}: {turn['text']}", **more)
                    ids.setdefault(answer.memory.id, set()).add(turn["id"])
            for question in talk["questions"]:
                evidence = set(question["evidence"]) & {turn["id"] for _, turn in facts}
                if evidence:
                    asked.append((subject, question["question"], evidence, ids))
        if len(modes) > 1:
            embedded(asker)
        for mode in modes:
            places = []
            for subject, query, evidence, ids in asked:
                request = pb2.RecallRequest(query=query, subjects=[subject], limit=10)
                request.mode = pb2.RecallMode.Value(f"RECALL_MODE_{mode}")
                hits = [ids[hit.memory.id] for hit in asker.call("Recall", request).hits]
                right = [place for place, hit in enumerate(hits, start=1) if hit & evidence]
                places.append(right[0] if right else 99)
            shares = [sum(place <= depth for place in places) / len(places) for depth in (5, 10)]
            name = f"{mode.lower()}, {'with' if said else 'without'} source"
            print(f"  {name:<24} @5 {shares[0]:6.1%} @10 {shares[1]:6.1%} of {len(places)}")
            found[mode, said] = shares
    goals = {("LEXICAL", False): (0.61, 0.675), ("LEXICAL", True): (0.705, 0.79),
             ("HYBRID", False): (0.65, 0.75), ("HYBRID", True): (0.75, 0.82)}
    for (mode, said), shares in found.items():
        enough = goals.get((mode, said), (0, 0))
        assert shares[0] >= enough[0] and shares[1] >= enough[1], f"{mode}, {said}: {shares}"
        if mode == "HYBRID":
            words = found["LEXICAL", said]
            assert all(share >= alone for share, alone in zip(shares, words)), "worse than words"


def main():
    parser = argparse.ArgumentParser()
    for name in ("--memoird", "--data", "--work"):
        parser.add_argument(name, type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--embedder-dir", type=lambda path: pathlib.Path(path).resolve(),
                        help="a sentence-transformer; without it only words are compared")
    args = parser.parse_args()
    grpc = generated(args.work)[0]
    from memoird.v1 import memory_pb2, memory_pb2_grpc

    modules = (grpc, memory_pb2, memory_pb2_grpc)
    facts, questions = read(args.data)
    daemon, asker = by_words(args, modules, facts, questions)
    carried_over(args, modules, daemon, asker)
    daemon.stop()
    daemon = Daemon(args.memoird, args.work / "dialogues")
    dialogues(args, modules, daemon, ("LEXICAL",))
    daemon.stop()
    forgotten(args, modules, facts, questions)
    killed_amid_remembering(args, modules, facts)
    if args.embedder_dir:
        by_meaning(args, modules, facts, questions)


main()
