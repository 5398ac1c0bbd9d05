"""Requests windows of real conversations from a real daemon, once per message, as a bot does.

Every prefix of every conversation is requested with every policy and small budgets. Each window
must be within its budget, have a result for each call and the first user turn, and match the
provider's types. Then ten conversations at a time are chained, to measure the share of tokens in a
prefix that was sent before: without summaries and, for each family of conversations, with all
defaults. `replay --dry-run` must predict the same. tests/eval/after_cut.py measures the content and
the cost of windows.
"""

import argparse
import collections
import functools
import json
import pathlib
import subprocess

from anthropic.types import MessageParam
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from kit import Daemon, check_openai, generated, settled

# These checks measure windows without summaries.
WITHOUT_SUMMARIES = "compaction: { enabled: false }\n"
BUDGETS = (3_000, 4_000, 8_000, 16_000)
# With all defaults under 8,000 tokens: minimum share of tokens in a prefix that was sent before.
FAMILIES = {"tau_airline": 0.93, "retail": 0.93, "agents": 0.82}
ADAPTERS = {
    "OPENAI": TypeAdapter(ChatCompletionMessageParam),
    "OPENAI_RESPONSES": TypeAdapter(ResponseInputItemParam),
    "ANTHROPIC": TypeAdapter(MessageParam),
}


def consume(value):
    """Iterates over all lists, because the types validate them only then."""
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        return
    for inner in value:
        consume(inner)


@functools.lru_cache(maxsize=None)
def has_the_type(format, message):
    consume(ADAPTERS[format].validate_python(json.loads(message)))
    return True


def blocks(message):
    return message["content"] if isinstance(message["content"], list) else []


def check_anthropic(messages):
    waiting = set()
    for place, message in enumerate(messages):
        assert message["role"] == ("user", "assistant")[place % 2], f"{place}: {message['role']}"
        assert message["content"], f"empty: {message}"
        results = [b["tool_use_id"] for b in blocks(message) if b["type"] == "tool_result"]
        assert set(results) == waiting or place + 1 == len(messages), f"{results}, not {waiting}"
        assert set(results) <= waiting, f"an orphan: {message}"
        waiting = {block["id"] for block in blocks(message) if block["type"] == "tool_use"}


def check_responses(items):
    waiting = set()
    for item in items:
        if item.get("type") == "function_call":
            waiting.add(item["call_id"])
        elif item.get("type") == "function_call_output":
            assert item["call_id"] in waiting, f"an orphan: {item}"
            waiting.remove(item["call_id"])
        else:
            assert not waiting, f"calls without results: {waiting}"


RULES = {
    "OPENAI": check_openai,
    "OPENAI_RESPONSES": check_responses,
    "ANTHROPIC": check_anthropic,
}


class Bot:
    """A session from which a window is requested after each message."""

    def __init__(self, stub, modules, name, budget, policy, format):
        self.stub, (self.grpc, self.api, self.session_pb2, _) = stub, modules
        self.name, self.budget, self.policy, self.format = name, budget, policy, format

    def request(self):
        return self.session_pb2.BuildContextRequest(
            session_id=self.name,
            budget=self.api.Budget(context_window=self.budget, max_reply_tokens=0,
                                   safety_headroom=0, tool_result_headroom=0),
            policy=self.policy,
            format=self.api.MessageFormat.Value(f"MESSAGE_FORMAT_{self.format}"))

    def say(self, messages):
        request = self.request()
        request.append.messages_json = json.dumps(messages)
        request.append.format = self.api.MESSAGE_FORMAT_OPENAI
        return self.stub.BuildContext(request)


def policies(api):
    return {
        "head_tail": api.WindowPolicy(head_tail=api.HeadTail()),
        "head_tail 12": api.WindowPolicy(head_tail=api.HeadTail(turns=12)),
        "token_budget": api.WindowPolicy(token_budget=api.TokenBudget()),
        "salience": api.WindowPolicy(salience=api.Salience()),
        "sliding_window 10": api.WindowPolicy(sliding_window=api.SlidingWindow(turns=10)),
    }


def told(grpc, error):
    """Returns the numbers in the metadata of an error."""
    from google.rpc import error_details_pb2, status_pb2

    for key, value in error.trailing_metadata():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return info.reason, info.metadata
    raise error


def check_window(format, policy, budget, window, anchor):
    report = window.report
    assert report.tokens_total <= report.input_budget == budget, report
    assert sum(report.turn_tokens) + report.tokens_by_block.system == report.tokens_total, report
    messages = json.loads(window.messages_json)
    for message in messages:
        has_the_type(format, json.dumps(message))
    RULES[format](messages)
    if not policy.startswith("sliding"):
        is_excerpt = any("first user turn" in note for note in report.notes)
        head = anchor[:100] if is_excerpt else anchor
        assert json.dumps(head, ensure_ascii=False)[1:-1] in window.messages_json, f"no anchor: {messages[:3]}"


def every_prefix(daemon, conversations, modules):
    grpc, api, session_pb2, session_grpc = modules
    counts = collections.Counter()
    all_policies = policies(api)
    with grpc.insecure_channel(daemon.addr) as channel:
        stub = session_grpc.SessionServiceStub(channel)
        for number, conversation in enumerate(conversations):
            messages = conversation["messages"]
            anchor = next(m["content"] for m in messages if m["role"] == "user")
            for place, (policy, value) in enumerate(all_policies.items()):
                for budget in BUDGETS:
                    format = list(ADAPTERS)[(number + place) % 3]
                    name = f"{conversation['id']} {policy} {budget}"
                    bot = Bot(stub, modules, name, budget, value, format)
                    for end, message in enumerate(messages, start=1):
                        try:
                            window = bot.say([message])
                        except grpc.RpcError as error:
                            reason, numbers = told(grpc, error)
                            assert reason == "CURRENT_TURN_TOO_LARGE", reason
                            assert int(numbers["tokens"]) > int(numbers["budget"]) == budget
                            counts["refused"] += 1
                            continue
                        counts["windows"] += 1
                        if any(m["role"] == "user" for m in messages[:end]):
                            check_window(format, policy, budget, window, anchor)
                    stub.EndSession(session_pb2.EndSessionRequest(session_id=name))
    share = counts["refused"] / counts.total()
    print(f"  {counts['windows']} windows valid, {counts['refused']} ({share:.1%}) could not fit")
    assert share < 0.05, "the refusals of results that do not fit are few"


def shared(before, now):
    """Returns the tokens of the common prefix of messages, as the daemon counts them."""
    same = 0
    for (old, _), (new, tokens) in zip(before, now):
        if old != new:
            break
        same += tokens
    return same


def chained(daemon, conversations, modules, budget, policy):
    """Chains ten conversations. Returns the share of tokens in a prefix that was sent before."""
    grpc, api, session_pb2, session_grpc = modules
    sent = reused = told_reused = cuts = 0
    with grpc.insecure_channel(daemon.addr) as channel:
        stub = session_grpc.SessionServiceStub(channel)
        for start in range(0, len(conversations), 10):
            chain = conversations[start:start + 10]
            messages = chain[0]["messages"][:1]
            for conversation in chain:
                messages += [m for m in conversation["messages"] if m["role"] != "system"]
            name = f"chain {start} {budget} {policy.WhichOneof('policy')}"
            bot = Bot(stub, modules, name, budget, policy, "OPENAI")
            before, waiting = [], []
            for place, message in enumerate(messages):
                waiting.append(message)
                if message["role"] in ("assistant", "system"):
                    continue
                window = bot.say(waiting)
                waiting = []
                check_exchange(window, messages[:place + 1], policy)
                texts = [turn.SerializeToString(deterministic=True) for turn in window.turns]
                now = list(zip(texts, window.report.turn_tokens))
                same = shared(before, now)
                assert window.report.stable_prefix_tokens <= same + window.report.tokens_by_block.system
                sent += window.report.tokens_total
                reused += same
                told_reused += window.report.stable_prefix_tokens
                cuts += same < sum(tokens for _, tokens in before)
                before = now
                # In practice, a model's reply takes longer than a summary.
                settled(stub, session_pb2, name)
            stub.EndSession(session_pb2.EndSessionRequest(session_id=name))
    kind = policy.WhichOneof("policy")
    print(f"  {kind} under {budget}: {reused / sent:.1%} of {sent} tokens in a prefix sent before "
          f"({told_reused / sent:.1%} by the reports, {cuts} cuts)")
    return sent, reused


def check_exchange(window, said, policy):
    """Checks that the window has the request that is being answered, and reports all omissions."""
    check_openai(json.loads(window.messages_json))
    report = window.report
    assert report.tokens_total <= report.input_budget, report
    if policy.WhichOneof("policy") == "sliding_window":
        return
    request = [m["content"] for m in said if m["role"] == "user"][-1]
    begin = json.dumps(request[:40], ensure_ascii=False)[1:-1]
    assert begin in window.messages_json, f"no request: {begin}"
    left_out = {1, 2, 3} & {omission.reason for omission in report.omissions}
    assert not left_out or (report.degraded and report.notes), report


def simulated(daemon, file):
    """Returns all tokens, and those in a prefix sent before, as predicted by `replay --dry-run`."""
    argv = [daemon.memoird, "--json", "replay", "--dry-run", "--config", daemon.config,
            "--format", "openai", "--input-budget", "8000", "--chain", "10", file]
    out = subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout
    outcome = json.loads(out)["outcome"]
    return outcome["tokens"], outcome["cached_tokens"]


def families(daemon, data, modules, kinds):
    """Checks the share in a prefix of each family with all defaults, also by a dry run."""
    for family, share_min in FAMILIES.items():
        file = data / f"{family}_openai.jsonl"
        conversations = [json.loads(line) for line in file.read_text().splitlines()]
        print(f"  {family}:")
        sent, reused = chained(daemon, conversations, modules, 8_000, kinds["head_tail"])
        told, told_cached = simulated(daemon, file)
        print(f"    simulated beforehand: {told_cached / told:.1%} of {told} tokens")
        assert reused / sent >= share_min, f"{family}: {reused / sent:.1%}"
        assert abs(told / sent - 1) <= 0.03, f"{family}: {told} simulated, {sent} sent"
        assert abs(told_cached / told - reused / sent) <= 0.01, f"{family}: {told_cached / told:.1%}"


def main():
    parser = argparse.ArgumentParser()
    for name in ("--memoird", "--data", "--work"):
        parser.add_argument(name, type=lambda path: pathlib.Path(path).resolve(), required=True)
    args = parser.parse_args()
    modules = generated(args.work)
    file = args.data / "tau_airline_openai.jsonl"
    conversations = [json.loads(line) for line in file.read_text().splitlines()]

    daemon = Daemon(args.memoird, args.work / "windows", cap=1_000, more=WITHOUT_SUMMARIES)
    kinds = policies(modules[1])
    sent, reused = chained(daemon, conversations, modules, 8_000, kinds["head_tail"])
    assert reused / sent >= 0.94
    chained(daemon, conversations, modules, 8_000, kinds["sliding_window 10"])
    every_prefix(daemon, conversations, modules)
    daemon.stop()

    daemon = Daemon(args.memoird, args.work / "families", cap=200)
    families(daemon, args.data, modules, kinds)
    daemon.stop()


if __name__ == "__main__":
    main()
