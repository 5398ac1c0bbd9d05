"""What memoird says that a request costs, against what providers charged for it.

Recorded requests are put into sessions as they were sent (Google's and Bedrock's as Anthropic's
messages), a window is asked for, and its tokens are compared with the charge: before anything
was reported, and after the charges of the session's earlier requests.
"""

import argparse
import collections
import itertools
import json
import pathlib
import statistics

from kit import Daemon, generated

OPENAI, ANTHROPIC, GOOGLE = "openai", "anthropic", "google"
# Of requests, how many may have cost more than they were said to cost at most.
UNDER_MAX = 1
# The largest median errors.
MEDIAN_MAX = {"openai": 0.03, "openai, tools": 0.03, "anthropic": 0.10, "google": 0.10, "after a report": 0.03}


def parts_of(parts):
    """Google's or Bedrock's parts as Anthropic's; `None` where one is no text, call or result."""
    out = []
    for part in parts:
        call = part.get("functionCall") or part.get("function_call") or part.get("toolUse")
        result = part.get("functionResponse") or part.get("function_response") or part.get("toolResult")
        if "text" in part:
            out.append({"type": "text", "text": part["text"]})
        elif call:
            name = call["name"]
            ident = call.get("toolUseId") or call.get("id") or name
            out.append({"type": "tool_use", "id": ident, "name": name, "input": call.get("args", call.get("input")) or {}})
        elif result:
            if "response" in result:
                text = json.dumps(result["response"])
            elif all("text" in piece or "json" in piece for piece in result["content"]):
                text = "".join(piece.get("text") or json.dumps(piece.get("json")) for piece in result["content"])
            else:
                return None
            if result.get("parts"):
                return None
            ident = result.get("toolUseId") or result.get("id") or result["name"]
            out.append({"type": "tool_result", "tool_use_id": ident, "content": text})
        else:
            return None
    return out


class Request:
    """One recorded request: what memoird is given of it, and what it cost."""

    def __init__(self, row):
        body, usage = row["request"], row["usage"]
        self.provider, self.model = row["provider"], body.get("model", "")
        self.tools = body.get("tools") or []
        self.system, self.messages, self.format = "", None, None
        if row["path"].endswith("/responses") and not body.get("previous_response_id"):
            self.format, self.system = "OPENAI_RESPONSES", body.get("instructions") or ""
            given = body.get("input")
            self.messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
            self.charged = usage.get("input_tokens")
        elif "chat/completions" in row["path"]:
            self.format, self.messages = "OPENAI", body["messages"]
            self.charged = usage.get("prompt_tokens")
        elif row["path"].endswith("/messages"):
            self.format, self.messages = "ANTHROPIC", body["messages"]
            system = body.get("system") or ""
            self.system = system if isinstance(system, str) else "\n".join(part["text"] for part in system)
            cached = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
            self.charged = (usage.get("input_tokens") or 0) + sum(cached)
        elif "enerateContent" in row["path"] or row["path"].endswith("/converse"):
            self.format = "ANTHROPIC"
            contents = body.get("contents") or body.get("messages")
            roles = {"model": "assistant", None: "user"}
            parts = [parts_of(content.get("parts") or content.get("content") or []) for content in contents]
            if all(parts):
                self.messages = [
                    {"role": roles.get(content.get("role"), content.get("role")), "content": part}
                    for content, part in zip(contents, parts)
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
        elif "gemini" in model or "gemma" in model:
            self.family = GOOGLE
        elif row["provider"] in ("openai", "openrouter") and ("gpt-" in model or "o3-" in model) and "oss" not in model:
            self.family = OPENAI
        else:
            self.family = "open"

    def is_plain(self):
        """True for texts, calls and results only: media and a provider's own tools and formats
        are not what is measured here."""
        text = json.dumps([self.messages, self.tools])
        own = ("image", "input_file", "file", "document", "input_audio", "reasoning", "thinking", "builtin",
               "tool_search", "web_search", "additional_tools", "fileData", "googleSearch", "code", "mcp",
               "compaction", "tool_reference", "memory_2025", "fileSearch", "inlineData", "urlContext", "item_reference",
               "image_generation", "tool_addition")
        return self.messages and self.charged and not any(f'"{word}' in text or f'"type": "{word}' in text for word in own)

    def label(self):
        return self.family + (", tools" if self.tools and self.family == OPENAI else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--memoird", "--data", "--work"):
        parser.add_argument(name, type=pathlib.Path, required=True)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    rows = [json.loads(line) for line in open(args.data / "provider_usage.jsonl")]
    requests = []
    for row in rows:
        try:
            request = Request(row)
        except (KeyError, TypeError, AttributeError):
            continue
        if getattr(request, "charged", None) and request.family != "open" and request.is_plain():
            requests.append(request)
    profiles = {request.model: request.family for request in requests}
    tokenizer = {OPENAI: "o200k"}
    models = "".join(
        f"    {json.dumps(model)}: {{ provider: {family}, tokenizer: {tokenizer.get(family, 'estimate')}, "
        "context_window: 200000 }\n"
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

    def total(request, session):
        """The tokens of the window, and the most that they may be."""
        report = stub.GetContext(api.GetContextRequest(
            session_id=session, model=request.model, system=request.system,
            tools_json=json.dumps(request.tools) if request.tools else "", format=wire(request),
        )).report
        return report.tokens_total, report.tokens_total * (1 + report.token_margin)

    before, after = collections.defaultdict(list), []
    numbers = itertools.count()
    for request in requests:
        session = f"before{next(numbers)}"
        append(session, request, request.messages)
        tokens, most = total(request, session)
        before[request.label()].append((tokens, most, request))
    for chain in chains(requests):
        session, said, usage = f"after{next(numbers)}", [], None
        for request in chain:
            append(session, request, request.messages[len(said):], usage)
            said = request.messages
            tokens, most = total(request, session)
            if usage is not None:
                after.append((tokens, most, request))
            usage = common.ModelUsage(model=request.model, input_tokens=request.charged)
    daemon.stop()

    for label, found in [*sorted(before.items()), ("after a report", after)]:
        errors = [tokens / request.charged - 1 for tokens, _, request in found]
        median = statistics.median(map(abs, errors))
        under = sum(most < request.charged for _, most, request in found)
        print(f"{label}: {len(found)} requests, median error {median:.1%}, "
              f"under by more than the margin {under}")
        if args.verbose:
            for (tokens, _, request), error in zip(found, errors):
                print(f"  {error:+7.1%} {tokens:6} {request.charged:6} {request.model}")
        assert median <= MEDIAN_MAX[label], label
        assert under <= UNDER_MAX, label


def chains(requests):
    """Requests of one conversation, each with all messages of the one before."""
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


main()
