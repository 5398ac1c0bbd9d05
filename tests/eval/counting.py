"""Compares the tokens that memoird counts for a request with what its provider charged.

Each recorded request is appended to its own session, and the report of its window is read: before
any report of usage, after the reports of the conversation's earlier requests, and after three
reports of the session, each followed by a short exchange. Requests of Google and Bedrock are
appended as Anthropic's messages.

Half of the conversations, selected by a hash of their first message, were used to fit constants.
The numbers of the other half are printed next to theirs. The last columns are those of the simplest
estimate, four bytes of JSON per token.
"""

import argparse
import collections
import hashlib
import itertools
import json
import pathlib
import statistics

from kit import Daemon, generated

OPENAI, ANTHROPIC, GOOGLE, OPEN = "openai", "anthropic", "google", "open"
CONTEXT_WINDOW = 200_000
# A window small enough for constants to matter.
SMALL_WINDOW = 8_192

# Maximum errors, as shares of requests and of a full window's budget.
MEDIAN_MAX = 0.10
SHORT_BEFORE_MAX, SHORT_AFTER_MAX = 0.01, 0.02
MARGIN_BEFORE_MAX, MARGIN_AFTER_THREE_MAX = 0.04, 0.02

# An exchange that makes a session longer, and the tokens that any provider charges for it.
EXCHANGE = [{"role": "assistant", "content": "OK."}, {"role": "user", "content": "Go on."}]
EXCHANGE_TOKENS = 13

# Tools that a provider runs within the call. It charges the model's whole prompt once more for each
# run.
RUN_BY_PROVIDER = ("web_search", "image_generation", "openrouter:", "tool_search_tool")


def media_of(kind, media_type, data):
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}


def part_of(part):
    """Converts a part of Google or Bedrock to Anthropic's format. None if there is no equivalent."""
    both = lambda camel, snake: part.get(camel) or part.get(snake)
    call = both("functionCall", "function_call") or part.get("toolUse")
    result = both("functionResponse", "function_response") or part.get("toolResult")
    inline, file = both("inlineData", "inline_data"), both("fileData", "file_data")
    reasoning = (part.get("reasoningContent") or {}).get("reasoningText")
    for kind in ("image", "document"):
        if kind in part:
            form = part[kind]["format"]
            media_type = {"txt": "text/plain"}.get(form, f"{'image' if kind == 'image' else 'application'}/{form}")
            return media_of(kind, media_type, part[kind]["source"]["bytes"])
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    if call:
        ident = call.get("toolUseId") or call.get("id") or call["name"]
        arguments = call.get("args", call.get("input")) or {}
        return {"type": "tool_use", "id": ident, "name": call["name"], "input": arguments}
    if result:
        ident = result.get("toolUseId") or result.get("id") or result["name"]
        if "response" in result:
            content = [{"type": "text", "text": json.dumps(result["response"])}]
        else:
            texts = ({"text": json.dumps(piece["json"])} if "json" in piece else piece for piece in result["content"])
            content = [part_of(piece) for piece in texts]
        content += [part_of(piece) for piece in result.get("parts") or []]
        if len(content) == 1 and content[0] and content[0]["type"] == "text":
            content = content[0]["text"]
        return {"type": "tool_result", "tool_use_id": ident, "content": content}
    if inline:
        media_type = inline.get("mimeType") or inline["mime_type"]
        return media_of("image" if media_type.startswith("image/") else "document", media_type, inline["data"])
    if file:
        media_type = file.get("mimeType") or file["mime_type"]
        source = {"type": "url", "url": file.get("fileUri") or file["file_uri"]}
        return {"type": "image" if media_type.startswith("image/") else "document", "source": source}
    if reasoning:
        return {"type": "thinking", "thinking": reasoning["text"], "signature": reasoning.get("signature", "")}
    for kind in ("executableCode", "codeExecutionResult", "toolCall", "toolResponse"):
        if kind in part:
            return {"type": kind, **part[kind]}
    return None


class Request:
    """A recorded request: the input for memoird, and its charge."""

    def __init__(self, row):
        body, usage = row["request"], row["usage"]
        self.body, self.usage, self.model = body, usage, body.get("model", "")
        self.tools = body.get("tools") or []
        self.system, self.messages, self.format, self.charged = "", None, None, None
        if row["path"].endswith("/responses") and not body.get("previous_response_id") and not body.get("conversation"):
            self.format, self.system = "OPENAI_RESPONSES", body.get("instructions") or ""
            given = body.get("input")
            self.messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
            self.charged = usage.get("input_tokens")
        elif "chat/completions" in row["path"]:
            self.format, self.messages = "OPENAI", body["messages"]
            self.charged = usage.get("prompt_tokens")
        elif row["path"].endswith(("/messages", "/messages/count_tokens")):
            self.format, self.messages = "ANTHROPIC", body["messages"]
            system = body.get("system") or ""
            self.system = system if isinstance(system, str) else "\n".join(part["text"] for part in system)
            charged = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "count_tokens")
            self.charged = sum(usage.get(key) or 0 for key in charged)
        elif "enerateContent" in row["path"] or row["path"].endswith("/converse"):
            self.format = "ANTHROPIC"
            contents = body.get("contents") or body.get("messages")
            roles = {"model": "assistant", None: "user"}
            parts = [[part_of(part) for part in content.get("parts") or content.get("content") or []] for content in contents]
            if all(all(of_one) for of_one in parts):
                self.messages = [
                    {"role": roles.get(content.get("role"), content.get("role")), "content": of_one}
                    for content, of_one in zip(contents, parts)
                ]
            system = body.get("systemInstruction") or body.get("system_instruction") or {}
            self.system = "".join(part.get("text", "") for part in (system.get("parts") or []))
            if isinstance(body.get("system"), list):
                self.system = "".join(part.get("text", "") for part in body["system"])
            self.tools = body.get("tools") or (body.get("toolConfig") or {}).get("tools") or []
            path = row["path"].split("/")
            self.model = path[-1].split(":")[0] if "enerateContent" in row["path"] else path[-2][-60:]
            self.charged = usage.get("promptTokenCount") or usage.get("inputTokens")
        model = self.model.lower()
        if "claude" in model:
            self.family = ANTHROPIC
        elif "gemini" in model:
            self.family = GOOGLE
        elif row["provider"] in ("openai", "openrouter") and ("gpt-" in model or "o3-" in model) and "oss" not in model:
            self.family = OPENAI
        else:
            self.family = OPEN

    def is_run_by_provider(self):
        """Whether the charge may include several prompts, because the provider runs tools itself."""
        kinds = [tool.get("type") or "" for tool in self.tools]
        offers = any(kind.startswith(RUN_BY_PROVIDER) for kind in kinds)
        return offers or bool(self.body.get("mcp_servers")) or self.model.startswith("compound")

    def category(self):
        text = json.dumps([self.messages, self.tools])
        has = lambda *kinds: any(f'"type": "{kind}"' in text for kind in kinds)
        plain = ("input_schema", "parameters", "function", "toolSpec", "functionDeclarations")
        if self.is_run_by_provider():
            return "run by the provider"
        if any(not set(plain) & set(tool) for tool in self.tools) or has("tool_search_output", "additional_tools"):
            return "provider's tools"
        if has("image", "document", "image_url", "input_image", "input_file", "file", "input_audio"):
            return "media"
        structured = ("response_format", "text", "output_config", "outputConfig")
        if any(self.body.get(key) for key in structured):
            return "structured output"
        if has("thinking", "reasoning") or self.body.get("thinking"):
            return "thinking"
        return "function tools" if self.tools else "no tools"

    def is_held_out(self):
        """Whether its conversation belongs to the half that was not used to fit constants."""
        key = json.dumps([self.messages[0], self.model], sort_keys=True)
        return hashlib.sha256(key.encode()).digest()[0] % 2 == 1

    def quarter_of_bytes(self):
        tools = json.dumps(self.tools) if self.tools else ""
        return (len(json.dumps(self.messages, ensure_ascii=False).encode()) + len(tools) + len(self.system.encode())) / 4


class Count:
    """memoird's count of a request after some reports of its conversation."""

    def __init__(self, request, charged, reports, report, full):
        self.request, self.charged, self.reports = request, charged, reports
        self.tokens = report.tokens_total
        self.most = report.tokens_total * (1 + report.token_margin)
        # Share of the budget taken by the margin of a full window, by context window.
        self.margins = full

    def error(self):
        return self.tokens / self.charged - 1

    def is_short(self):
        return self.most < self.charged


def recorded(file):
    requests = []
    for line in open(file):
        try:
            request = Request(json.loads(line))
        except (KeyError, TypeError, AttributeError):
            continue
        # An assistant's message with an empty list as content is rejected.
        if request.messages and request.charged and not any(message.get("content") == [] for message in request.messages):
            requests.append(request)
    return requests


def chains(requests):
    """Groups requests of one conversation, each of which has all messages of the previous one."""
    chains = []
    for request in requests:
        for chain in chains:
            last = chain[-1]
            size = len(last.messages)
            is_same = (last.model, last.system, last.tools) == (request.model, request.system, request.tools)
            if is_same and len(request.messages) > size and request.messages[:size] == last.messages:
                chain.append(request)
                break
        else:
            chains.append([request])
    return [chain for chain in chains if len(chain) > 1]


def counted(args, requests):
    """Counts all requests before a report, and those of conversations after reports."""
    profiles = {request.model: request.family for request in requests}
    models = "".join(
        f"    {json.dumps(model)}: {{ provider: {family}, tokenizer: {'o200k' if family == OPENAI else 'estimate'}, "
        f"context_window: {CONTEXT_WINDOW} }}\n"
        for model, family in sorted(profiles.items())
    )
    grpc, common, api, stubs = generated(args.work)
    daemon = Daemon(args.memoird, args.work / "counting", cap=500, more=f"context:\n  models:\n{models}")
    stub = stubs.SessionServiceStub(grpc.insecure_channel(daemon.addr))

    def wire(request):
        return getattr(common, "MESSAGE_FORMAT_" + request.format)

    def append(session, request, messages, usage=None):
        stub.Append(api.AppendRequest(
            session_id=session, messages_json=json.dumps(messages), format=wire(request), usage=usage))

    def window(request, session, **more):
        return stub.BuildContext(api.BuildContextRequest(
            session_id=session, model=request.model, system=request.system,
            tools_json=json.dumps(request.tools) if request.tools else "", format=wire(request), **more,
        )).report

    def count(request, session, reports, charged=None):
        report = window(request, session)
        full = {}
        for context_window in (CONTEXT_WINDOW, SMALL_WINDOW):
            # Two windows, one of them filled to half by `overhead_tokens`, separate the constant
            # part of the margin from the part that grows with the window.
            reserve = {} if context_window == CONTEXT_WINDOW else {
                "max_reply_tokens": context_window // 8, "safety_headroom": context_window // 16,
                "tool_result_headroom": context_window // 4}
            budget = common.Budget(context_window=context_window, **reserve) if reserve else None
            try:
                asked = window(request, session, peek=True, budget=budget)
                more = asked.input_budget // 2 - asked.tokens_total
                half = window(request, session, peek=True, budget=budget, overhead_tokens=max(more, 0))
            except grpc.RpcError:  # It does not fit into this window.
                continue
            if half.tokens_total < 2 * asked.tokens_total:
                continue
            constant = (asked.token_margin - half.token_margin) / (1 / asked.tokens_total - 1 / half.tokens_total)
            growing = half.token_margin - constant / half.tokens_total
            full[context_window] = growing + constant / asked.input_budget
        return Count(request, charged or request.charged, reports, report, full)

    numbers = itertools.count()
    before, after, after_three = [], [], []
    for request in requests:
        session = f"before{next(numbers)}"
        append(session, request, request.messages)
        before.append(count(request, session, 0))
    for chain in chains(requests):
        session, sent, usage = f"after{next(numbers)}", [], None
        for reports, request in enumerate(chain):
            append(session, request, request.messages[len(sent):], usage)
            sent = request.messages
            found = count(request, session, reports)
            if reports:
                after.append(found)
            usage = common.ModelUsage(model=request.model, input_tokens=request.charged)
    for request in requests:
        session, charged = f"three{next(numbers)}", request.charged
        append(session, request, request.messages)
        for _ in range(3):
            window(request, session)
            append(session, request, EXCHANGE, common.ModelUsage(model=request.model, input_tokens=charged))
            charged += EXCHANGE_TOKENS
        after_three.append(count(request, session, 3, charged))
    daemon.stop()
    return before, after, after_three


def median(counts):
    return statistics.median(abs(count.error()) for count in counts) if counts else float("nan")


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def line(label, counts):
    """Prints the numbers of some requests: of all, of the fitted half, and of the held-out one."""
    halves = [[count for count in counts if count.request.is_held_out() == held_out] for held_out in (False, True)]
    short = sum(count.is_short() for count in counts)
    simple = statistics.median(abs(count.request.quarter_of_bytes() / count.charged - 1) for count in counts)
    margins = [mean(count.margins[size] for count in counts if size in count.margins)
               for size in (CONTEXT_WINDOW, SMALL_WINDOW)]
    print(f"{label:32} {len(counts):4} {median(counts):8.1%} {median(halves[0]):8.1%} {median(halves[1]):8.1%} "
          f"{short:4} {short / len(counts):6.1%} {margins[0]:7.2%} {margins[1]:7.2%} {simple:9.1%}")
    return short / len(counts), margins


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--memoird", "--data", "--work"):
        parser.add_argument(name, type=pathlib.Path, required=True)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    before, after, after_three = counted(args, recorded(args.data / "provider_usage.jsonl"))

    print(f"{'':32} {'all':>4} {'median':>8} {'fitted':>8} {'held out':>8} {'short':>11} "
          f"{'200k':>7} {'8k':>7} {'bytes / 4':>9}")
    groups = collections.defaultdict(list)
    for count in before:
        groups[count.request.family, count.request.category()].append(count)
    for (family, category), found in sorted(groups.items()):
        line(f"{family}, {category}", found)
        if args.verbose:
            for count in found:
                print(f"    {count.error():+8.1%} {count.tokens:6} of {count.charged:6} {count.request.model}"
                      f"{' short' if count.is_short() else ''}")

    problems = []

    def check(label, counts, short_max, margin_max, median_max=None):
        short, margins = line(label, counts)
        if median_max is not None and median(counts) > median_max:
            problems.append(f"{label}: median {median(counts):.1%}")
        if short > short_max:
            problems.append(f"{label}: short {short:.1%}")
        if max(margins) > margin_max:
            problems.append(f"{label}: margin {max(margins):.2%}")

    print("\nwithout requests in which the provider may run tools itself")
    measured = [count for count in before if not count.request.is_run_by_provider()]
    for family in (OPENAI, ANTHROPIC, GOOGLE, OPEN):
        found = [count for count in measured if count.request.family == family]
        check(f"{family}, before a report", found, SHORT_BEFORE_MAX, MARGIN_BEFORE_MAX, MEDIAN_MAX)
    measured = [count for count in after if not count.request.is_run_by_provider()]
    check("after one report and more", measured, SHORT_AFTER_MAX, MARGIN_BEFORE_MAX)
    after_three = [count for count in after_three if not count.request.is_run_by_provider()]
    check("after three reports", after_three, SHORT_AFTER_MAX, MARGIN_AFTER_THREE_MAX)
    for count in measured + after_three:
        if args.verbose:
            print(f"    {count.error():+8.1%} {count.tokens:6} of {count.charged:6} reports {count.reports} "
                  f"{count.request.model}{' short' if count.is_short() else ''}")
    assert not problems, problems


if __name__ == "__main__":
    main()
