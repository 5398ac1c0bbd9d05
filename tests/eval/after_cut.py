"""Measures what an agent can still read right after a window is cut.

    python tests/eval/after_cut.py --memoird target/debug/memoird --data ../shared/data
    ... --budget 8000,32000 --goals     exit code 1 if a goal is missed
    ... --cost-table                    the cost table of the README, as Markdown
    ... --dump DIR                      writes every window after a cut as text, for reading

Needs grpcio, grpcio-tools and a folder with recorded conversations (`conversations.FILES`).

Conversations are chained into sessions: five at budgets up to 16,000 tokens (three of software
agents), otherwise 20 (eight). A user instruction is planted in each of the first five. A bot asks
a real daemon, with default settings, for the window of every model call. A cut is a window 10 %
smaller than the one before, or a window with a new summary. In the first window after each cut
the judge looks for:

used      values (call arguments, ids, dates, paths) that occurred before the cut and that the
          agent uses after it in the same conversation, unless they occur again in between
task      the first message of the conversation under way: 60 % of the distinct words of its first
          600 characters in 1,200 consecutive characters of one message
standing  the planted instructions: 70 % of the words in one line; also by the number of
          compactions so far (1st, 2nd to 5th)
precise   lines of the section "Standing instructions" that hold a planted instruction
current   sections "Current request" that begin with a turn of the conversation under way
changes   the state-changing calls of the conversation under way: the first argument's value

A share without a sample is `nan`. `values` is the number of samples of `used`. Columns about all
windows:

prefix    share of bytes in leading messages that equal those of the call before
cost      relative to a sliding window whose maximum is the mean size of the daemon's windows,
          where a cached byte costs 0.1, 0.25 or 0.5 of another
fill      size right after a cut, as a share of the budget without system prompt and tools
invalid   windows with a result that does not follow its call, an open call or an empty message
over      windows over their budget by the daemon's own count, and refused calls

Below each row the same judge grades the simplest alternatives at the same cuts:

sliding   the newest messages in as many bytes as the daemon's window
plain     the first user turn and the newest messages in as many bytes
raw end   the last bytes of the omitted messages in the space of the summary, and the same rest
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import math
import pathlib
import re
import sys
import tempfile
import time

import conversations
import judge
from conversations import LANGUAGES, encoded
from kit import Daemon, check_openai, generated, settled

PRICES = (0.1, 0.25, 0.5)
ALTERNATIVES = ("sliding", "plain", "raw end")
COLUMNS = ("cuts", "values", "used", "task", "standing", "1st", "2-5", "precise", "current",
           "changes", "prefix",
           *(f"cost {price}" for price in PRICES), "fill", "invalid", "over")


@dataclasses.dataclass
class Cut:
    """The first window after a cut."""

    # Position of the newest message.
    now: int
    # Counts the cuts of the session, from 1.
    number: int
    fill: float
    # Of the daemon's window and of each alternative: subject -> [(wanted text, found)].
    grades: dict
    texts: list
    summary: str
    # For each line of the standing instructions, whether it is a planted one.
    precise: list
    # Whether the section "Current request" is of the conversation under way; empty without one.
    current: list


@dataclasses.dataclass
class Run:
    """The windows of one session."""

    session: conversations.Session
    # Position of the newest message at each model call, and bytes of its window.
    positions: list = dataclasses.field(default_factory=list)
    sizes: list = dataclasses.field(default_factory=list)
    # Bytes of leading messages that equal those of the call before.
    reused: int = 0
    invalid: int = 0
    over: int = 0
    # Budget without system prompt and tools, in tokens.
    room: int = 0
    cuts: list = dataclasses.field(default_factory=list)


def calls_model(session, position):
    """Whether a bot calls the model after this message: not before the last of several results."""
    role = session.messages[position]["role"]
    following = [message["role"] for message in session.messages[position + 1:position + 2]]
    return role == "user" or (role == "tool" and following != ["tool"])


class Bot:
    """Asks one daemon for the windows of sessions."""

    def __init__(self, daemon, modules, budget, tools):
        self.grpc, self.api, self.session_pb2, session_grpc = modules
        channel = self.grpc.insecure_channel(
            daemon.addr, [("grpc.max_receive_message_length", 64 << 20)])
        self.stub = session_grpc.SessionServiceStub(channel)
        self.budget, self.tools = budget, tools

    def windows(self, name, session):
        """Yields the position of the newest message and the window of each model call.

        The window of a refused call is `None`.
        """
        waiting = []
        for position, message in enumerate(session.messages):
            waiting.append(message)
            if not calls_model(session, position):
                continue
            try:
                window = self.stub.BuildContext(self.request(name, session.system, waiting))
                # `grade` finds the message of a turn by its seq.
                assert window.session.last_seq == position + 1, window.session
            except self.grpc.RpcError as error:
                # The daemon has stored the turns of the refused call.
                if "CURRENT_TURN_TOO_LARGE" not in str(error.trailing_metadata()):
                    raise
                window = None
            waiting = []
            # A model takes longer to reply than memoird to summarize. A compaction that was just
            # requested does not count as running yet.
            time.sleep(0.01)
            settled(self.stub, self.session_pb2, name)
            yield position, window

    def request(self, name, system, messages):
        request = self.session_pb2.BuildContextRequest(
            session_id=name, system=system, tools_json=self.tools,
            format=self.api.MESSAGE_FORMAT_OPENAI,
            budget=self.api.Budget(context_window=self.budget, max_reply_tokens=0,
                                   safety_headroom=0, tool_result_headroom=0))
        request.append.messages_json = json.dumps(messages)
        request.append.format = self.api.MESSAGE_FORMAT_OPENAI
        return request


def tool_definitions(tokens):
    """A JSON array of tool definitions of about `tokens` tokens; empty for 0."""
    tools = []
    while tokens and len(json.dumps(tools)) < 4 * tokens:
        number = len(tools)
        tools.append({"type": "function", "function": {
            "name": f"look_up_{number}",
            "description": f"Looks up table {number} by its key and returns the matching rows.",
            "parameters": {"type": "object", "required": ["key"], "properties": {
                "key": {"type": "string", "description": "The key of the rows to return."}}}}})
    return json.dumps(tools) if tools else ""


def measure(bot, name, session):
    """Plays a session and grades the window after each cut."""
    run = Run(session)
    before, summary_before = [], 0
    for position, window in bot.windows(name, session):
        if window is None:
            run.over += 1
            continue
        report = window.report
        messages = json.loads(window.messages_json)
        now = [encoded(message) for message in messages]
        size, size_before = sum(map(len, now)), sum(map(len, before))
        run.positions.append(position)
        run.sizes.append(size)
        for old, new in zip(before, now):
            if old != new:
                break
            run.reused += len(new)
        run.invalid += not is_valid(messages)
        run.over += report.tokens_total > report.input_budget
        run.room = report.input_budget - report.tokens_by_block.system
        if before and (size < 0.9 * size_before or report.summary.number != summary_before):
            run.cuts.append(grade(run, position, window, messages))
        before, summary_before = now, report.summary.number
    return run


def is_valid(messages):
    """Whether every result directly follows its call, no call is open and no message is empty."""
    try:
        return not check_openai(messages)
    except AssertionError:
        return False


def grade(run, position, window, messages):
    session, report = run.session, window.report
    if session.system:
        # A summary in the message of the system prompt would still be graded.
        assert messages[0]["content"].startswith(session.system), messages[0]
        messages[0]["content"] = messages[0]["content"][len(session.system):]
    texts = [judge.text(message) for message in messages]
    room = run.sizes[-1] - session.system_bytes
    summary, rest = [], []
    for turn in window.turns:
        if turn.metadata.get("memoird") in ("summary", "acknowledgement"):
            summary.append(turn_text(turn))
        else:
            rest.append((turn.seq - 1, turn_text(turn)))
    shown = {
        "memoird": texts,
        "sliding": judge.sliding_window(session, position, room),
        "plain": judge.plain_cut(session, position, room),
        "raw end": judge.raw_end(session, position, summary, rest),
    }
    return Cut(
        now=position,
        number=len(run.cuts) + 1,
        fill=(report.tokens_total - report.tokens_by_block.system) / run.room,
        grades={label: judge.judge(session, position, texts) for label, texts in shown.items()},
        texts=[f"{message['role']}: {text}" for message, text in zip(messages, texts)],
        summary="\n".join(summary),
        precise=standing_lines(session, "\n".join(summary)),
        current=current_request(session, position, "\n".join(summary)),
    )


def current_request(session, position, summary):
    """Whether the current request of a summary is of the conversation under way, if it has one."""
    start, _ = session.conversation(position)
    _, _, section = summary.partition("## Current request\n")
    turns = [int(turn) for turn in re.findall(
        r"^- (?:\([-0-9]+\) )?turn (\d+):", section.partition("\n## ")[0], re.MULTILINE)]
    # The recordings end with the user, whose last turn directly precedes the next request.
    first = [turn for i, turn in enumerate(turns) if turn - turns[0] == i]
    return [first[-1] - 1 >= start] if first else []


def standing_lines(session, summary):
    """For each line of the standing instructions of a summary, whether it holds a planted one."""
    _, _, section = summary.partition("## Standing instructions\n")
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("- ")]
    planted = [judge.words(sentence) for _, sentence in session.planted]
    if not planted:
        return []
    return [any(len(judge.words(line) & words) >= 0.7 * len(words) for words in planted)
            for line in lines]


def turn_text(turn):
    texts = []
    for part in turn.parts:
        kind = part.WhichOneof("part")
        if kind == "tool_use":
            texts.append(f"{part.tool_use.name} {part.tool_use.input_json}")
        elif kind == "tool_result":
            texts.append(part.tool_result.content)
            texts += [inner.text for inner in part.tool_result.parts]
        else:
            texts.append(part.text)
    return "\n".join(texts)


def cost(sent, reused, price):
    return sent - reused + price * reused


def sliding_window_bytes(runs, maximum):
    """Bytes that a sliding window of at most `maximum` bytes sends, and those it reuses."""
    sent = reused = 0
    for run in runs:
        session = run.session
        first_before = end_before = None
        for position in run.positions:
            first = judge.first_that_fits(session, position, maximum - session.system_bytes)
            end = position + 1
            sent += session.system_bytes + sum(session.sizes[first:end])
            if end_before is not None:
                reused += session.system_bytes
                # The prefix breaks as soon as a message leaves at the front.
                reused += sum(session.sizes[first:end_before]) if first == first_before else 0
            first_before, end_before = first, end
    return sent, reused


def summarize(name, budget, runs):
    """Returns the row of a set, and one for each alternative."""
    cuts = [cut for run in runs for cut in run.cuts]
    sent, reused = sum(sum(run.sizes) for run in runs), sum(run.reused for run in runs)
    mean_size = sent / sum(len(run.sizes) for run in runs)
    sliding = sliding_window_bytes(runs, mean_size)
    row = {
        "label": f"{name} {budget}", "name": name, "budget": budget,
        "room": mean([run.room for run in runs]), "cuts": len(cuts),
        "values": sum(len(cut.grades["memoird"]["used"]) for cut in cuts),
        **shares(cuts, "memoird"),
        "precise": 100 * mean([planted for cut in cuts for planted in cut.precise]),
        "current": 100 * mean([is_current for cut in cuts for is_current in cut.current]),
        "prefix": 100 * reused / sent,
        **{f"cost {price}": cost(sent, reused, price) / cost(*sliding, price) for price in PRICES},
        "fill": 100 * mean([cut.fill for cut in cuts]),
        "invalid": sum(run.invalid for run in runs), "over": sum(run.over for run in runs),
    }
    return row, [{"label": f"  {label}", **shares(cuts, label)} for label in ALTERNATIVES]


def mean(numbers):
    return sum(numbers) / len(numbers) if numbers else math.nan


def shares(cuts, label):
    """Percent of the wanted texts that were found, by subject."""
    def share(subject, first=1, last=math.inf):
        return 100 * mean([found for cut in cuts if first <= cut.number <= last
                           for _, found in cut.grades[label][subject]])

    return {**{subject: share(subject) for subject in judge.SUBJECTS},
            "1st": share("standing", last=1), "2-5": share("standing", first=2, last=5)}


def standing_by_language(runs):
    """Whether each planted instruction was found, after up to five compactions, by language."""
    found = collections.defaultdict(list)
    for cut in (cut for run in runs for cut in run.cuts[:5]):
        for sentence, is_found in cut.grades["memoird"]["standing"]:
            found[LANGUAGES.get(sentence, "hard")].append(is_found)
    return dict(sorted(found.items()))


def missed_goals(row):
    """The goals that a row misses. Except for `used`, a share without a sample has no goal."""
    at_least = {"cuts": 1, "values": 1, "used": 97 if row["room"] >= 5_500 else 94, "task": 95,
                "1st": 90, "2-5": 90, "changes": 95, "prefix": 82 if row["name"] == "agents" else 93,
                "fill": 45}
    at_most = {"fill": 55, "invalid": 0, "over": 0}
    if row["name"] != "agents":
        at_most |= {"cost 0.1": 0.44, "cost 0.25": 0.68}
    elif row["room"] < 16_000:
        # These agents get their commands' output as user turns, and the current user turn is whole.
        at_most["fill"] = 60
    # Figures count as they are printed.
    shown = {column: float(cell(row, column)) for column in at_least | at_most}
    return [f"{row['label']}: {column} is {cell(row, column)}, goal: {sign} {goal}"
            for sign, goals in (("at least", at_least), ("at most", at_most))
            for column, goal in goals.items()
            if (shown[column] < goal if goals is at_least else shown[column] > goal)]


def cell(row, column):
    """A figure as it is printed; `nan` without a sample."""
    value = row.get(column, "")
    if isinstance(value, float):
        return f"{value:.2f}" if column.startswith("cost") else f"{value:.1f}"
    return str(value)


def print_row(row):
    line = f"{row['label']:14}" + "".join(f"{cell(row, column):>10}" for column in COLUMNS)
    print(line.rstrip(), flush=True)


def print_cost_table(rows):
    print("| conversations | budget | in a cached prefix | "
          + " | ".join(f"cost at {price}" for price in PRICES) + " |")
    print("|---|---|---|" + "---|" * len(PRICES))
    for row in rows:
        costs = " | ".join(cell(row, f"cost {price}") for price in PRICES)
        print(f"| {row['name']} | {row['budget']:,} | {cell(row, 'prefix')} % | {costs} |")


def dump(folder, label, runs):
    """Writes each window right after a cut, with what the judge did not find, and each summary."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(runs):
        for cut in run.cuts:
            start, _ = run.session.conversation(cut.now)
            missing = [f"  {subject}: {wanted}" for subject, graded in cut.grades["memoird"].items()
                       for wanted, found in graded if not found]
            head = [f"window after message {cut.now}; this conversation began with {start}",
                    f"fill {cut.fill:.0%}; not found:", *missing]
            file = f"{label.replace(' ', '-')}-{number:02}-{cut.number:02}"
            (folder / f"{file}.txt").write_text("\n\n".join(["\n".join(head), *cut.texts]) + "\n")
            (folder / f"{file}-summary.txt").write_text(cut.summary + "\n")


def size_of(name, budget):
    """Conversations in a session."""
    if budget <= 16_000:
        return 3 if name == "agents" else 5
    return 8 if name == "agents" else 20


def measured(daemon, modules, name, budget, options):
    """Runs of all sessions of a set, several at a time."""
    recorded = conversations.load(options.data, name, options.half)
    size = min(options.size or size_of(name, budget), len(recorded))
    sessions = conversations.sessions(name, recorded, size, options)
    bot = Bot(daemon, modules, budget, tool_definitions(options.tools))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        names = [f"{name} {budget} {number}" for number in range(len(sessions))]
        return list(pool.map(lambda both: measure(bot, *both), zip(names, sessions)))


def arguments():
    def path(text):
        return pathlib.Path(text).resolve()

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--memoird", type=path, required=True, help="the binary")
    add("--data", type=path, required=True, help="folder with recorded conversations")
    add("--sets", type=lambda text: text.split(","), default=list(conversations.FILES))
    add("--budget", type=lambda text: [int(part) for part in text.split(",")], default=[8_000],
        help="context window in tokens; several with commas")
    add("--size", type=int, help="conversations in a session")
    add("--orders", type=int, default=1, help="number of orders to chain the conversations in")
    add("--half", choices=("tuning", "held-out"), help="only this half of the conversations")
    add("--seed", type=int, default=7)
    add("--check", action="store_true", help="plant the other half of the instructions")
    add("--hard", action="store_true", help="plant instructions in the words of the domain")
    add("--short", action="store_true", help="plant instructions of a few words")
    add("--embed", action="store_true", help="plant inside the user's next turn")
    add("--closed", action="store_true", help="end each conversation with a reply of the agent")
    add("--tools", type=int, default=0, help="tokens of tool definitions")
    add("--dump", type=path, help="write windows and summaries to this folder")
    add("--goals", action="store_true", help="exit with 1 if a goal is missed")
    add("--cost-table", action="store_true", help="print only a Markdown table, for 8,000 and 32,000")
    options = parser.parse_args()
    if unknown := set(options.sets) - set(conversations.FILES):
        parser.error(f"unknown sets {sorted(unknown)}: use {','.join(conversations.FILES)}")
    return options


def main():
    options = arguments()
    budgets = [8_000, 32_000] if options.cost_table else options.budget
    rows, all_runs = [], []
    with tempfile.TemporaryDirectory() as work:
        modules = generated(pathlib.Path(work))
        daemon = Daemon(options.memoird, pathlib.Path(work) / "daemon", cap=None)
        try:
            if not options.cost_table:
                print(f"seed {options.seed}")
                print_row({"label": "", **{column: column for column in COLUMNS}})
            for budget in budgets:
                for name in options.sets:
                    runs = measured(daemon, modules, name, budget, options)
                    row, alternatives = summarize(name, budget, runs)
                    rows.append(row)
                    all_runs += runs
                    if options.dump:
                        dump(options.dump, row["label"], runs)
                    if not options.cost_table:
                        for line in (row, *alternatives):
                            print_row(line)
        finally:
            daemon.kill()
    if options.cost_table:
        print_cost_table(rows)
        return 0

    standing = standing_by_language(all_runs)
    for language, found in standing.items():
        print(f"standing in {language:6}{100 * mean(found):>7.1f} of {len(found)}")
    if not options.goals:
        return 0
    missed = [goal for row in rows for goal in missed_goals(row)]
    missed += [f"standing in {language} is {100 * mean(found):.1f}, goal: at least 90"
               for language, found in standing.items() if mean(found) < 0.9]
    print("\n  ".join(["missed goals:", *missed]) if missed else "all goals are met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
