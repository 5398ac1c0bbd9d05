"""Sessions for after_cut.py: recorded conversations in a chain, with planted instructions."""

import copy
import dataclasses
import functools
import json
import random
import zlib

import judge

FILES = {
    "airline": "tau_airline_openai.jsonl",
    "retail": "retail_openai.jsonl",
    "agents": "agents_openai.jsonl",
}

# Standing instructions of a user. The first three of each language are for tuning, the last
# three for `--check`.
PLANTED = {
    "en": [
        "I use a screen reader, so describe every picture in words.",
        "Never leave a voicemail, my roommate listens to it.",
        "Write all temperatures in Celsius for me.",
        "My daughter Ingrid has a latex allergy, so keep that in mind.",
        "Whatever happens, don't contact my former employer.",
        "Please explain things as if I were new to computers.",
    ],
    "fr": [
        "Je suis diabétique, tenez-en compte à chaque fois.",
        "Ne donnez jamais mon numéro à un démarcheur.",
        "Mon mari Étienne doit valider chaque dépense.",
        "Je parle mal anglais, alors restez simple et évitez le jargon.",
        "Appelez-moi Maître Delacroix, s'il vous plaît.",
        "Je ne suis joignable que le mardi après-midi.",
    ],
    "ru": [
        "У меня непереносимость глютена, учитывайте это всегда.",
        "Никогда не звоните мне после восьми вечера.",
        "Обращайтесь ко мне по имени и отчеству: Вера Павловна.",
        "Все документы отправляйте моему юристу Громову.",
        "Отвечайте без смайликов и восклицательных знаков.",
        "Я боюсь лифтов, предлагайте только первый этаж.",
    ],
    "ar": [
        "أنا صائم هذا الشهر فلا تقترح شيئا قبل الغروب.",
        "لا تذكر اسم عائلتي في أي رسالة.",
        "أحتاج دائما إلى مدخل بلا درجات لأن ركبتي مصابة.",
        "اكتب لي الأرقام بالحروف أيضا من فضلك.",
        "ابنتي مريم هي التي تقرر كل ما يخص المال.",
        "لا تستخدم الكلمات الإنجليزية عندما تجيبني.",
    ],
    "ja": [
        "卵アレルギーなので、必ず覚えておいてください。",
        "仕事中は電話に出られないので、連絡は夜だけにしてください。",
        "私のことは先生と呼ばないでください。",
        "金額はすべて円に換算して書いてください。",
        "母の許可なしに何も申し込まないでください。",
        "漢字が苦手なので、ひらがなを多めに使ってください。",
    ],
}
# For `--hard`: instructions in the words of the domain, which resemble requests.
HARD = [
    "Seat me by the window whenever I fly.",
    "Put any refund on the card I paid with, never on a certificate.",
    "I will not fly on a Sunday.",
    "Read an order back to me before you change anything in it.",
    "My company pays for bags, so never charge them to me.",
    "Do not offer me basic economy again.",
    "Keep every itinerary to one stop at most.",
    "Ship replacements to my office, not to my home.",
    "Use my middle initial on every booking.",
    "Always quote the total with taxes before you book.",
    "I never buy travel insurance.",
    "Do not exchange an item for another color on your own.",
]
# For `--short`: instructions of a few words.
SHORT = [
    "Call me Sam.",
    "I am vegan.",
    "Be brief.",
    "No emojis please.",
    "Answer in German.",
    "Use metric units.",
    "I'm colorblind.",
    "Je suis sourd.",
    "Пиши на ты.",
    "Ich bin blind.",
    "Sin gluten, siempre.",
    "敬語で話して。",
]
LANGUAGES = {sentence: language for language, group in PLANTED.items() for sentence in group}
REPLIES = [
    "I have made a note of that.",
    "Sure.",
    "Thanks for telling me. I will follow that for the rest of our conversation.",
]
# For `--closed`: last replies of the agent. The recordings end with the user.
CLOSINGS = [
    "You're welcome! Have a great day.",
    "Glad I could help. Goodbye!",
    "You're welcome! If you need anything else, just let me know.",
    "Done. Take care!",
]
# The first five conversations of a session get one instruction each.
PLANTED_PER_SESSION = 5


def encoded(message):
    return json.dumps(message, sort_keys=True, ensure_ascii=False).encode()


@dataclasses.dataclass
class Session:
    """Conversations chained into one session. A position is an index of `messages`."""

    system: str
    messages: list
    # Position of the first message of each conversation.
    starts: list
    # (position, sentence) of each planted instruction.
    planted: list

    @functools.cached_property
    def texts(self):
        return [judge.text(message) for message in self.messages]

    @functools.cached_property
    def sizes(self):
        """Bytes of each message."""
        return [len(encoded(message)) for message in self.messages]

    @functools.cached_property
    def values(self):
        return [judge.values(message) for message in self.messages]

    @property
    def system_bytes(self):
        return len(encoded({"role": "system", "content": self.system})) if self.system else 0

    def conversation(self, position):
        """Start and end of the conversation that holds `position`."""
        start = max(start for start in self.starts if start <= position)
        later = [start for start in self.starts if start > position]
        return start, min(later, default=len(self.messages))


def load(data, name, half):
    """Returns the conversations of a set, or of one half of it."""
    lines = (data / FILES[name]).read_text().splitlines()
    conversations = [json.loads(line) for line in lines]
    return [conversation["messages"] for conversation in conversations
            if half in (None, half_of(conversation["id"]))]


def half_of(conversation_id):
    # airline-7-0 and airline-7-1 are two trials of one task and belong to the same half.
    task = "-".join(conversation_id.split("-")[:2])
    return ("tuning", "held-out")[zlib.crc32(task.encode()) % 2]


def sessions(name, conversations, size, options):
    """Chains conversations into sessions of `size`, in `options.orders` different orders."""
    rng = random.Random(options.seed)
    middle = {language: len(group) // 2 for language, group in PLANTED.items()}
    sentences = HARD if options.hard else SHORT if options.short else [
        sentence for language, group in PLANTED.items()
        for sentence in (group[middle[language]:] if options.check else group[:middle[language]])]
    made = []
    for order in range(options.orders):
        shuffled = list(conversations)
        if order > 0:
            random.Random(options.seed + order).shuffle(shuffled)
        for first in range(0, len(shuffled), size):
            group = shuffled[first:first + size]
            # A short last session would be cut less often than the others.
            if len(group) < max(1, size // 2):
                continue
            # Most user turns of software agents are output of commands. Nothing is planted there.
            planted = [] if name == "agents" else rng.sample(sentences, PLANTED_PER_SESSION)
            made.append(chain(group, planted, options, rng))
    return made


def chain(group, sentences, options, rng):
    """Chains conversations into one session, with one sentence in each of the first ones.

    The sentence follows the agent's first reply, as a turn of its own or, with `--embed`, at the
    end of the user's next turn.
    """
    first = group[0][0]
    session = Session(first["content"] if first["role"] == "system" else "", [], [], [])
    for number, conversation in enumerate(group):
        messages = [unique(message, number) for message in conversation if message["role"] != "system"]
        session.starts.append(len(session.messages))
        at = 1 + next((i for i, message in enumerate(messages)
                       if message["role"] == "assistant" and not message.get("tool_calls")), len(messages))
        if number < len(sentences) and at < len(messages) and messages[at]["role"] == "user":
            session.planted.append((len(session.messages) + at, sentences[number]))
            if options.embed:
                messages[at]["content"] += " " + sentences[number]
            else:
                messages[at:at] = [{"role": "user", "content": sentences[number]},
                                   {"role": "assistant", "content": rng.choice(REPLIES)}]
        if options.closed and messages[-1]["role"] == "user":
            messages.append({"role": "assistant", "content": rng.choice(CLOSINGS)})
        session.messages += messages
    return session


def unique(message, number):
    """A copy whose call ids are unique in the session: recordings share ids."""
    message = copy.deepcopy(message)
    for call in message.get("tool_calls") or []:
        call["id"] = f"{number}_{call['id']}"
    if "tool_call_id" in message:
        message["tool_call_id"] = f"{number}_{message['tool_call_id']}"
    return message
