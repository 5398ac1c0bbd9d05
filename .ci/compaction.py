"""One conversation of 10,000 turns under a window of 8,000 tokens, with the summarizer that
is built in: real conversations chained into one session, a window asked for before each
model call, and the daemon killed now and then.

Every window is valid and within its budget; of all flight numbers, reservations, dates and
prices that the user and the assistant named in the last 20 exchanges at least 85 % stand in the
summary, the notes or the turns that are left; the journal has every turn. What stood in the
results of tools only is told as well: a summary keeps it with its labels as long as there is room.
"""

import argparse
import itertools
import json
import pathlib
import re

from kit import Daemon, check_openai, generated, settled
from windows import Bot

TURNS = 10_000
BUDGET = 8_000
EXCHANGES = 50
NAMED_EXCHANGES = 20
KEPT = 0.85
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


def share_left(stub, session_pb2, name, bot, exchanges):
    """The share of literals that can still be found: of those that were said in the newest
    exchanges, how many they are, and of all of these exchanges."""
    newest = itertools.chain(*exchanges[-NAMED_EXCHANGES:])
    named = [{"said": message["content"]} for message in newest if message["role"] != "tool"]
    session = settled(stub, session_pb2, name)
    window = bot.look()
    left = window.messages_json.replace('\\"', '"') + str(session.notes)

    def share(messages):
        wanted = set().union(*(literals(message) for message in messages))
        return sum(word in left for word in wanted) / max(len(wanted), 1), len(wanted)

    said, of = share(named)
    return said, of, session, share(itertools.chain(*exchanges))[0]


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
    left = sum(share for share, *_ in shares) / len(shares)
    everything = sum(share for *_, share in shares) / len(shares)
    summaries = shares[-1][2].session.compaction.summaries
    print(f"  {TURNS} turns, {windows} windows valid, {summaries} summaries; of the literals "
          f"said in the last {NAMED_EXCHANGES} exchanges {left:.1%} are left; of those of the last "
          f"{EXCHANGES} with all results {everything:.1%}")
    assert summaries > 50, summaries
    assert left >= KEPT, left


main()
