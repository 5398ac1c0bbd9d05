"""Checks one conversation of 10,000 turns under a window of 8,000 tokens with the extractive
summarizer.

Real conversations are chained into one session. A window is requested before each model call, and
the daemon is killed now and then. Every window must be valid and within its budget, a summary must
survive a crash, and the journal must have every turn. tests/eval/after_cut.py measures the content
of windows.
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
# Turns after which the daemon is killed.
KILLS = (2_500, 5_001, 7_777)


def endless(conversations):
    """Chains the messages of conversations, with distinct ids of calls."""
    for round, conversation in enumerate(itertools.cycle(conversations)):
        for message in conversation["messages"]:
            if message["role"] == "system":
                continue
            text = json.dumps(message)
            yield json.loads(re.sub(r'"call_', f'"r{round}_call_', text))


def talk(daemon, conversations, modules):
    grpc, api, session_pb2, session_grpc = modules
    waiting, windows = [], 0
    options = [("grpc.max_receive_message_length", 64 << 20)]
    channel = grpc.insecure_channel(daemon.addr, options)
    stub = session_grpc.SessionServiceStub(channel)
    policy = api.WindowPolicy(head_tail=api.HeadTail())
    bot = Bot(stub, modules, "soak", BUDGET, policy, "OPENAI")
    for turn, message in enumerate(itertools.islice(endless(conversations), TURNS), start=1):
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
    stub.Append(append_of(session_pb2, api, waiting)) if waiting else None
    check_journal(stub, session_pb2, TURNS)
    summaries = settled(stub, session_pb2, "soak").session.compaction.summaries
    channel.close()
    return summaries, windows


def append_of(session_pb2, api, messages):
    request = session_pb2.AppendRequest(session_id="soak", messages_json=json.dumps(messages))
    request.format = api.MESSAGE_FORMAT_OPENAI
    return request


def check_journal(stub, session_pb2, turns):
    """Checks that the journal has every turn, including summarized ones."""
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
    summaries, windows = talk(daemon, conversations, modules)
    daemon.stop()
    print(f"  {TURNS} turns, {windows} windows valid, {summaries} summaries")
    assert summaries > 50, summaries


main()
