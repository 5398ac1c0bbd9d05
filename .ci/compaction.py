"""One conversation of 10,000 turns under a window of 8,000 tokens, with the summarizer that
is built in: real conversations chained into one session, a window asked for before each
model call, and the daemon killed now and then.

Every window is valid and within its budget; of all flight numbers, reservations, dates and
prices of the last 50 exchanges at least 95 % stand in the summary, the notes or the turns
that are left; the journal has every turn.
"""

import argparse
import itertools
import json
import pathlib
import re
import time

from kit import Daemon, generated
from windows import Bot, check_openai

TURNS = 10_000
BUDGET = 8_000
EXCHANGES = 50
KEPT = 0.95
# Turns after which the daemon is killed, and how often what is left is looked at.
KILLS = (2_500, 5_001, 7_777)
EVERY = 100

LITERAL = re.compile(
    r"\bHAT\d{3}\b"  # a flight
    r"|\b\d{4}-\d\d-\d\d\b"  # a date
    r"|\$\d+(?:,\d{3})*(?:\.\d+)?"  # a price that somebody says
)
RESERVATION = re.compile(r"\b(?=[A-Z0-9]*\d)(?=[A-Z0-9]*[A-Z])[A-Z0-9]{6}\b")
PRICE = re.compile(r"\"(?:price|amount|basic_economy|economy|business)\": (\d+)")


def literals(message):
    text = json.dumps(message).replace('\\"', '"')
    found = set(LITERAL.findall(text)) | set(PRICE.findall(text))
    return found | {word for word in RESERVATION.findall(text) if not word.startswith("HAT")}


def endless(conversations):
    """Their messages one after the other, with ids of calls that are never used twice."""
    for round, conversation in enumerate(itertools.cycle(conversations)):
        for message in conversation["messages"]:
            if message["role"] == "system":
                continue
            text = json.dumps(message)
            yield json.loads(re.sub(r'"call_', f'"r{round}_call_', text))


def settled(stub, api, name):
    """The session once no compaction is under way."""
    deadline = time.monotonic() + 30
    while True:
        answer = stub.GetSession(api.GetSessionRequest(session_id=name))
        if not answer.session.compaction.running:
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.005)


def share_left(stub, session_pb2, name, bot, exchanges):
    """The share of literals of these exchanges that can still be found."""
    wanted = set().union(*(literals(message) for message in itertools.chain(*exchanges)))
    session = settled(stub, session_pb2, name)
    window = bot.look()
    left = window.messages_json.replace('\\"', '"') + str(session.notes)
    missing = {word for word in wanted if word not in left}
    return 1 - len(missing) / max(len(wanted), 1), len(wanted), session


class Talker(Bot):
    def look(self):
        request = self.request()
        request.peek = True
        return self.stub.GetContext(request)


def talk(daemon, conversations, modules):
    grpc, api, session_pb2, session_grpc = modules
    shares, exchanges, waiting, windows = [], [], [], 0
    options = [("grpc.max_receive_message_length", 64 << 20)]
    channel = grpc.insecure_channel(daemon.addr, options)
    stub = session_grpc.SessionServiceStub(channel)
    policy = api.WindowPolicy(head_tail=api.HeadTail())
    bot = Talker(stub, modules, "soak", BUDGET, policy, "OPENAI")
    for turn, message in enumerate(itertools.islice(endless(conversations), TURNS), start=1):
        if message["role"] == "user":
            exchanges = exchanges[-EXCHANGES + 1:] + [[]]
        exchanges[-1].append(message)
        waiting.append(message)
        if message["role"] != "assistant":
            window = bot.say(waiting)
            waiting, windows = [], windows + 1
            report = window.report
            assert report.tokens_total <= report.input_budget == BUDGET, report
            check_openai(json.loads(window.messages_json))
        if turn in KILLS:
            before = settled(stub, session_pb2, "soak")
            daemon.kill()
            daemon.start()
            channel.close()
            channel = grpc.insecure_channel(daemon.addr, options)
            stub = bot.stub = session_grpc.SessionServiceStub(channel)
            after = stub.GetSession(session_pb2.GetSessionRequest(session_id="soak"))
            assert after.summary == before.summary and after.summary_text == before.summary_text
        if turn % EVERY == 0 and message["role"] != "assistant":
            shares.append(share_left(stub, session_pb2, "soak", bot, exchanges))
    stub.Append(append_of(session_pb2, api, waiting)) if waiting else None
    check_journal(stub, session_pb2, TURNS)
    channel.close()
    return shares, windows


def append_of(session_pb2, api, messages):
    request = session_pb2.AppendRequest(session_id="soak", messages_json=json.dumps(messages))
    request.format = api.MESSAGE_FORMAT_OPENAI
    return request


def check_journal(stub, session_pb2, turns):
    """The journal has every turn, whatever a summary stands for."""
    after, seqs = 0, []
    while True:
        request = session_pb2.GetHistoryRequest(
            session_id="soak", scope=session_pb2.HISTORY_SCOPE_JOURNAL, after_seq=after, limit=500)
        page = stub.GetHistory(request)
        seqs += [turn.seq for turn in page.turns]
        after = page.next_after_seq
        if not after:
            break
    assert seqs == list(range(1, turns + 1)), f"{len(seqs)} of {turns}"


def main():
    parser = argparse.ArgumentParser()
    for name in ("--memoird", "--data", "--work"):
        parser.add_argument(name, type=lambda path: pathlib.Path(path).resolve(), required=True)
    args = parser.parse_args()
    modules = generated(args.work)
    file = args.data / "tau_airline_openai.jsonl"
    conversations = [json.loads(line) for line in file.read_text().splitlines()]
    daemon = Daemon(args.memoird, args.work / "compaction")
    shares, windows = talk(daemon, conversations, modules)
    daemon.stop()
    left = sum(share for share, _, _ in shares) / len(shares)
    worst, of, _ = min(shares, key=lambda entry: entry[0])
    summaries = shares[-1][2].session.compaction.summaries
    print(f"  {TURNS} turns, {windows} windows valid, {summaries} summaries; of the literals of "
          f"the last {EXCHANGES} exchanges {left:.1%} are left ({worst:.1%} of {of} at worst)")
    assert summaries > 50, summaries
    assert left >= KEPT and worst >= KEPT, (left, worst)


main()
