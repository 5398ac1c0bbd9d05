//! The patterns of identifiers. Each table is one automaton: of the rows that match, the
//! first one tells. `{NAME}` in a pattern stands for a pattern of [`parts`].

use std::collections::HashSet;
use std::ops::Range;
use std::sync::LazyLock;

use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input};

use super::{Kind, Token};

/// A longer label says nothing; in bytes.
const LABEL_BYTES_MAX: usize = 64;

/// What a piece of a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Letters, digits and what joins them: a number, a path, a date.
    Word,
    /// An identifier, whatever stands around it.
    Identifier(Kind),
    /// The key of a JSON object, with its quotes and colon.
    Key,
    /// `{` or `[`.
    Open,
    /// `}` or `]`.
    Close,
    /// `"` and its like.
    Quote,
    /// A backquote.
    Backquote,
    /// `:` or `=`.
    Colon,
    Comma,
    /// The end of a sentence or line.
    Stop,
    /// White space, and the emphasis of Markdown, which stands around words.
    Blank,
    /// Anything else.
    Mark,
}

/// What a key or a label before a number says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    /// `price`, `unit_cost`, `total`: a bare number is an amount.
    Money,
    /// `id`, `orderId`, `zip`, `last_four`: a bare number is an id.
    Id,
    /// Nothing.
    Other,
}

/// How a text is cut into tokens; the last row takes any character.
const TOKENS: &[(TokenKind, &str)] = &[
    (
        TokenKind::Identifier(Kind::Path),
        r"[A-Za-z][A-Za-z0-9+]{0,15}://{NO_URL_END}*{URL_LAST}",
    ),
    // The path of a drive may have backslashes, which end a URL in JSON.
    (
        TokenKind::Identifier(Kind::Path),
        r"[A-Za-z]:[\\/](?:\\|{NO_URL_END})*{URL_LAST}",
    ),
    (
        TokenKind::Identifier(Kind::Date),
        r"{MONTH}{GAP}(?:{YEAR}|{DAY}(?:,?{GAP}{YEAR})?){END}",
    ),
    (
        TokenKind::Identifier(Kind::Date),
        r"{DAY}{GAP}(?:of{GAP})?{MONTH}(?:{GAP}{YEAR})?{END}",
    ),
    (
        TokenKind::Identifier(Kind::Date),
        r"{HOUR}(?::[0-5][0-9](?::[0-9]{2})?)?{GAP}[AaPp][Mm]{END}",
    ),
    (
        TokenKind::Identifier(Kind::Amount),
        r"[$€£¥₹]{NUMBER}[kKMB]*{END}|{NUMBER}(?:{GAP}?[%°€£¥₹]|{GAP}{UNIT}(?:/\w+)?{END})",
    ),
    (
        TokenKind::Identifier(Kind::Amount),
        r"{CURRENCY}{GAP}{NUMBER}{END}",
    ),
    (
        TokenKind::Identifier(Kind::Code),
        r"(?:(?:[Ee]xit|[Ss]tatus|[Ee]rror) code|HTTP|[Cc]ode|[Ss]tatus|errno|signal|[Ee]rror){GAP}[0-9]{1,6}{END}",
    ),
    (TokenKind::Key, r#"\\?["'][^"'\\\n,]+\\?["'] {0,4}[:=]"#),
    (
        TokenKind::Word,
        r"(?:[#@]|{START}(?:~|\.{0,2})/(?:\.\.?/){0,8}[.@~]?)?{RUN}(?:{JOIN}{RUN})*",
    ),
    // A hidden file: `.env`.
    (TokenKind::Word, r"{START}\.[a-z]\w*(?:{JOIN}{RUN})*"),
    // Escapes of JSON: `\n` ends a line, and its `n` begins no word.
    (TokenKind::Stop, r"\\[nr]|[\n.!?;。！？]"),
    (TokenKind::Quote, r#"\\?"|['“”„‘’«»]"#),
    (TokenKind::Mark, r"\\(?:[tbf/\\]|u[0-9A-Fa-f]{4})"),
    (TokenKind::Blank, r"[\s*&&[^\n]]+"),
    (TokenKind::Backquote, "`"),
    (TokenKind::Open, r"[{\[]"),
    (TokenKind::Close, r"[}\]]"),
    (TokenKind::Colon, "[:=]"),
    (TokenKind::Comma, ","),
    (TokenKind::Mark, "(?s:.)"),
];

/// What a whole word is; `None` of what only looks like an identifier.
const SHAPES: &[(Option<Kind>, &str)] = &[
    (Some(Kind::Date), r"{DATE}(?:[Tt]{TIME})?|{TIME}"),
    (
        Some(Kind::Amount),
        r"{NUMBER}(?:{UNIT}(?:/\w+)?|[kKMx])|[0-9]+-{UNIT}",
    ),
    // Numbers: of an order, a card, a telephone; versions and addresses.
    (
        Some(Kind::Id),
        r"#[0-9]+|(?:[0-9]-?){6,}|[0-9]{NO_LETTER}*\.{NO_LETTER}*\.{NO_LETTER}*",
    ),
    (None, r"{NO_LETTER}*"),
    (Some(Kind::Id), r"[^@/]+@[^/]+"),
    (Some(Kind::Path), r"[A-Za-z]:[\\/].+"),
    (Some(Kind::Path), r"(?:~|\.\.?)/\S+|/\S{2,}"),
    (
        Some(Kind::Path),
        r"(?:\S*/)?(?:[^/\s]*[\w--_][^/\s]*\.{EXTENSION}|\.[^./\s]{3,})",
    ),
    (
        Some(Kind::Path),
        r"[^/\s]*(?:/[^/\s]+)+/[^/\s]*|[^/\s]{3,}/",
    ),
    (
        Some(Kind::Path),
        r"[^/\s]*[_.][^/\s]*/[^/\s]*|[^/\s]*/[^/\s]*[_.][^/\s]*",
    ),
    (None, r"[#@]*[0-9]+(?:st|nd|rd|th|s|-[a-z]*)"),
    (Some(Kind::Code), r"[EFWC][0-9]{3,}"),
    (
        Some(Kind::Code),
        r"{UPPER}*(?:_{UPPER}*[A-Z]{UPPER}*[A-Z]|[A-Z]{UPPER}*_{UPPER}*[A-Z]|[A-Z]{UPPER}*[A-Z]{UPPER}*_){UPPER}*",
    ),
    (Some(Kind::Id), r"\S*[0-9]\S*"),
    (
        Some(Kind::Code),
        r"{ERRNO}[A-Z]*|SIG[A-Z]{3,}|\S*[a-z]\S*(?:Error|Exception)",
    ),
    (
        Some(Kind::Name),
        r"[[:ascii:]]*(?:_|::)[[:ascii:]]*|[A-Za-z]*[a-z][A-Z][A-Za-z]*",
    ),
];

const LABELS: &[(Label, &str)] = &[
    (
        Label::Id,
        r"\S*(?:id|Id|ID|_number|_code)|(?i-u:number|no|zip|last_four|port|pid|phone|sku|version|code)",
    ),
    // "price_count" counts.
    (
        Label::Other,
        r"\S*(?i-u:(?:count|number|item|bag|quantity|id)s?)",
    ),
    (
        Label::Money,
        r"\S*(?i-u:price|cost|amount|fee|fare|balance|refund|charge|salary|budget|subtotal)\S*|(?:\S*_)?(?i-u:total)|(?i-u:grandtotal)",
    ),
];

/// The parts of patterns by name; those below may use those above.
fn parts() -> Vec<(&'static str, String)> {
    let words = |words: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        format!("(?:{})", words.join("|"))
    };
    let part = |pattern: &str| pattern.to_owned();
    vec![
        // No word goes on here, and no word ended here.
        ("{END}", part(r"(?-u:\b{end-half})")),
        ("{START}", part(r"(?-u:\b{start-half})")),
        ("{GAP}", part(r"[ \u{a0}\u{202f}]")),
        ("{NUMBER}", part(r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")),
        ("{LETTER}", part(r"[\w--[0-9_]]")),
        ("{NO_LETTER}", part(r"[[^\w][0-9_]]")),
        ("{UPPER}", part("[A-Z0-9_]")),
        // Letters with apostrophes inside, numbers with thousands, times of day.
        (
            "{RUN}",
            part(concat!(
                r"(?:[0-9]{1,3}(?:,[0-9]{3})+{END}",
                r"|[0-9]+(?:(?::[0-9]+)+(?:\.[0-9]+)?(?:\+[0-9:]*[0-9])?)?",
                r"|_|{LETTER}+(?:['’]{LETTER}+)*)+",
            )),
        ),
        ("{JOIN}", part(r"(?:-+|\.|::|@|/(?:\.\.?/){0,8}[.@~]?)")),
        ("{NO_URL_END}", part(r#"[^\s"'`<>|*){}\[\]“”\\]"#)),
        ("{URL_LAST}", part(r#"[^\s"'`<>|*){}\[\]“”\\.,;:!?]"#)),
        ("{MONTH}", words(MONTHS)),
        ("{DAY_OF_MONTH}", part("(?:0?[1-9]|[12][0-9]|3[01])")),
        ("{MONTH_OF_YEAR}", part("(?:0?[1-9]|1[0-2])")),
        ("{DAY}", part("{DAY_OF_MONTH}(?:st|nd|rd|th)?")),
        ("{YEAR}", part("(?:19|20|21)[0-9]{2}")),
        (
            "{DATE}",
            part(concat!(
                "(?:[0-9]{4}[-/.]{MONTH_OF_YEAR}[-/.]{DAY_OF_MONTH}",
                "|{DAY_OF_MONTH}[-/.]{MONTH_OF_YEAR}[-/.][0-9]{4}",
                "|{MONTH_OF_YEAR}[-/.]{DAY_OF_MONTH}[-/.][0-9]{4})",
            )),
        ),
        ("{HOUR}", part("(?:[01]?[0-9]|2[0-4])")),
        (
            "{TIME}",
            part(concat!(
                r"{HOUR}(?::[0-5][0-9](?::[0-9]{2}(?:\.[0-9]+)?)?",
                r"(?:[AaPp][Mm]|[Zz]|[+-][0-9:]+)?|[AaPp][Mm])",
            )),
        ),
        ("{CURRENCY}", words("USD EUR GBP JPY CHF CAD AUD INR CNY")),
        (
            "{UNIT}",
            words(
                "percent USD EUR GBP JPY CHF CAD AUD INR CNY SEK NOK PLN dollars? euros? pounds \
                 cents yen [KkMGT]?B [KMGT]iB bytes? bits [nuµm]?s secs? seconds? mins? minutes? \
                 h hrs? hours? d days? weeks? months? years? [mck]?m mi ft miles? [mk]?g lbs? oz \
                 m?l [kMG]?Hz k?Wh? mAh °[CF]? px pt tokens rows points fps [MG]bps rpm",
            ),
        ),
        // Of files and of hosts.
        (
            "{EXTENSION}",
            words(
                "rs py [jt]sx? mjs go c h cc [ch]pp java kt swift rb php cs scala sh bash ps1 bat \
                 sql html s?css vue jsonl? ya?ml toml xml ini cfg conf env lock md rst txt [ct]sv \
                 pdf docx? xlsx? pptx? odt png jpe?g gif svg webp mp[34] wav zip gz tar tgz log db \
                 sqlite proto ipynb tex exe dll so whl jar patch diff bak tmp pem key crt \
                 com org net io dev app gov edu co uk de fr eu ai",
            ),
        ),
        (
            "{ERRNO}",
            words(
                "ECONN EADDR ENO[A-Z] EACC EPERM EPIPE ETIME EEXIST EAGAIN EINVAL EISDIR EBUSY \
                 EMFILE ENET EHOST EPROTO EINTR EIO[A-Z]{2} ERR[A-Z]{2} EAI[A-Z]{2} EXDEV EROFS \
                 EDQUOT EFBIG EBADF",
            ),
        ),
    ]
}

/// "may" with a small letter is a verb.
const MONTHS: &str = "January February March April May June July August September October \
    November December Jan Feb Mar Apr Jun Jul Aug Sept Sep Oct Nov Dec";

/// True of the name of a month.
pub(super) fn is_month(word: &str) -> bool {
    MONTHS.split(' ').any(|month| month == word)
}

/// Words that begin sentences or stand capitalised, and are no names.
static COMMON: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    "A AM AND Additionally After All Also Although Am An And Any Are As At Based Be Because \
     Before But By Can Certainly Could Currently DO Dear Did Do Does Done Each Either Even First \
     For From Given Go Good Great Had Has Have He Hello Her Here Hey Hi His How However I ID IF \
     IN IS IT If In Is It Its Just Let Like Many May Maybe My NOT Need Neither No Not Note Now OF \
     OK ON OR Of Oh Ok Okay On Once One Only Or Our PM Perhaps Please Second See Shall She Should \
     Since So Some Sorry Sure TO Thank Thanks That The Their Then There These They Third This \
     Those To Two Unfortunately Until Use Very Was We Well Were What When Where Which While Who \
     Why Will With Would YES Yes You Your"
        .split_whitespace()
        .collect()
});

/// True of a word that is capitalised without being a name.
pub(super) fn is_common(word: &str) -> bool {
    // "I'm" and "It's", with any apostrophe.
    let word = word.split_once(['\'', '’']).map_or(word, |(word, _)| word);
    COMMON.contains(word)
}

static TOKEN_TABLE: LazyLock<Regex> = LazyLock::new(|| table(TOKENS, ""));
static SHAPE_TABLE: LazyLock<Regex> = LazyLock::new(|| table(SHAPES, r"\z"));
static LABEL_TABLE: LazyLock<Regex> = LazyLock::new(|| table(LABELS, r"\z"));

/// One automaton of a table's patterns, each followed by `end`.
fn table<T>(rows: &[(T, &str)], end: &str) -> Regex {
    let parts = parts();
    let patterns = rows.iter().map(|(_, pattern)| {
        // From the last part to the first, because parts have parts in them.
        let whole = parts
            .iter()
            .rev()
            .fold((*pattern).to_owned(), |pattern, (name, part)| {
                pattern.replace(name, part)
            });
        format!("(?:{whole}){end}")
    });
    let patterns: Vec<String> = patterns.collect();
    Regex::new_many(&patterns).unwrap_or_else(|error| panic!("a pattern: {error:?}"))
}

/// What a whole word is by its shape; `None` of a plain word or number.
pub(super) fn shape(word: &str) -> Option<Kind> {
    let is_plain = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.bytes().skip(1).all(|b| b.is_ascii_lowercase());
    if is_plain {
        return None;
    }
    let found = SHAPE_TABLE.search_half(&Input::new(word).anchored(Anchored::Yes))?;
    SHAPES[found.pattern().as_usize()].0
}

/// What a key or a label says of the number behind it.
pub(super) fn label(label: &str) -> Label {
    if label.is_empty() || label.len() > LABEL_BYTES_MAX {
        return Label::Other;
    }
    let found = LABEL_TABLE.search_half(&Input::new(label).anchored(Anchored::Yes));
    found.map_or(Label::Other, |found| LABELS[found.pattern().as_usize()].0)
}

/// The tokens of a text, without what is blank. Each byte is looked at a bounded number of
/// times.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut tokens: Vec<Token> = Vec::with_capacity(text.len() / 4);
    let mut start = 0;
    while start < text.len() {
        if bytes[start] == b' ' {
            start += 1;
            continue;
        }
        if let Some(end) = plain_word_end(bytes, start) {
            tokens.push(Token {
                kind: TokenKind::Word,
                range: start..end,
            });
            start = end;
            continue;
        }
        let input = Input::new(text).range(start..).anchored(Anchored::Yes);
        // The last row takes any character.
        let Some(found) = TOKEN_TABLE.search_half(&input) else {
            break;
        };
        let kind = TOKENS[found.pattern().as_usize()].0;
        let mut range = start..found.offset();
        start = range.end;
        if kind == TokenKind::Blank {
            continue;
        }
        if kind == TokenKind::Word {
            range.end = word_end(text, &range, tokens.last());
            start = range.end;
        }
        tokens.push(Token { kind, range });
    }
    tokens
}

/// Where a word of small letters before a blank ends. Most words are, and the table would
/// say the same; but in it `code`, `error`, `status` and the like begin more.
fn plain_word_end(bytes: &[u8], start: usize) -> Option<usize> {
    if matches!(bytes[start], b'c' | b'e' | b's') {
        return None;
    }
    let letters = bytes[start..].iter().take_while(|b| b.is_ascii_lowercase());
    let end = start + letters.count();
    (end > start && bytes.get(end) == Some(&b' ')).then_some(end)
}

/// Where a word ends: numbers in a list are no thousands, and a slash ends a folder's name.
fn word_end(text: &str, word: &Range<usize>, before: Option<&Token>) -> usize {
    let is_listed = before.is_some_and(|before| {
        before.range.end == word.start && matches!(before.kind, TokenKind::Comma | TokenKind::Open)
    });
    if is_listed && let Some(comma) = text[word.clone()].find(',') {
        return word.start + comma;
    }
    match &text.as_bytes()[word.end..] {
        [b'/'] | [b'/', b' ' | b'\n' | b'"' | b'`' | b')' | b',', ..] => word.end + 1,
        _ => word.end,
    }
}
