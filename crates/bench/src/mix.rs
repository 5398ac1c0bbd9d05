//! The mix of calls in a load.

use std::fmt;
use std::str::FromStr;

use super::traffic::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    Append,
    /// `GetHistory` of the whole history.
    History,
    Context,
    Remember,
    Recall,
    /// `ListSessions` of ten sessions with a common id prefix.
    List,
}

/// Kinds of calls, and their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    Histories {
        append: u32,
        history: u32,
    },
    /// Windows that append first, as a bot does for a message, and plain appends, as for its reply.
    Windows {
        append: u32,
        context: u32,
    },
    /// Windows without appends.
    Looks,
    /// Facts, all different.
    Facts,
    Recalls,
    Lists,
}

pub(super) const MIX_HELP: &str = "\
What to call: weights of appends and of reads of a whole history, such as 9:1; \
append:context, each call a BuildContext that appends first; append:context=1:1, weights of \
plain appends and of those; context, BuildContext without an append; remember, a fact of a \
subject; recall, facts of a subject of --memories that were remembered before; list, ten \
sessions whose ids begin alike";

impl CallKind {
    /// All kinds, in the order of their numbers.
    pub(super) const ALL: [Self; 6] = [
        Self::Append,
        Self::History,
        Self::Context,
        Self::Remember,
        Self::Recall,
        Self::List,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::History => "history",
            Self::Context => "context",
            Self::Remember => "remember",
            Self::Recall => "recall",
            Self::List => "list",
        }
    }

    /// Number of the request's field that has the session id, the subject or the id prefix.
    pub(super) fn id_field(self) -> u8 {
        match self {
            Self::Append | Self::History | Self::Context | Self::Remember => 1,
            Self::Recall => 2,
            Self::List => 4,
        }
    }

    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Append => "/memoird.v1.SessionService/Append",
            Self::History => "/memoird.v1.SessionService/GetHistory",
            Self::Context => "/memoird.v1.SessionService/BuildContext",
            Self::Remember => "/memoird.v1.MemoryService/Remember",
            Self::Recall => "/memoird.v1.MemoryService/Recall",
            Self::List => "/memoird.v1.SessionService/ListSessions",
        }
    }
}

impl Mix {
    pub(super) const APPENDS: Self = Self::Histories {
        append: 1,
        history: 0,
    };
    /// Only windows with an append in the same call.
    pub(super) const WINDOWS: Self = Self::Windows {
        append: 0,
        context: 1,
    };

    /// Whether it uses memories instead of sessions.
    pub(super) fn is_of_memories(self) -> bool {
        matches!(self, Self::Facts | Self::Recalls)
    }

    pub(super) fn draw(self, rng: &mut Rng) -> CallKind {
        let (append, other, kind) = match self {
            Self::Histories { append, history } => (append, history, CallKind::History),
            Self::Windows { append, context } => (append, context, CallKind::Context),
            Self::Looks => return CallKind::Context,
            Self::Facts => return CallKind::Remember,
            Self::Recalls => return CallKind::Recall,
            Self::Lists => return CallKind::List,
        };
        if other == 0 || rng.below(u64::from(append + other)) < append.into() {
            CallKind::Append
        } else {
            kind
        }
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mix = match text.split_once('=').unwrap_or((text, "")) {
            ("context", "") if text == "context" => Self::Looks,
            ("remember", "") if text == "remember" => Self::Facts,
            ("recall", "") if text == "recall" => Self::Recalls,
            ("list", "") if text == "list" => Self::Lists,
            ("append:context", "") if text == "append:context" => Self::WINDOWS,
            ("append:context", weights) => {
                let (append, context) = two_weights(weights)?;
                Self::Windows { append, context }
            }
            ("append:history", weights) => {
                let (append, history) = two_weights(weights)?;
                Self::Histories { append, history }
            }
            _ => {
                let (append, history) = two_weights(text)?;
                Self::Histories { append, history }
            }
        };
        Ok(mix)
    }
}

fn two_weights(text: &str) -> Result<(u32, u32), String> {
    let wrong = || {
        "not weights such as 9:1 (append:history), append:context, append:context=1:1, context, \
         remember, recall or list"
            .to_owned()
    };
    let (first, second) = text.split_once(':').ok_or_else(wrong)?;
    let weight = |text: &str| {
        text.trim()
            .parse::<u16>()
            .map(u32::from)
            .map_err(|_| wrong())
    };
    match (weight(first)?, weight(second)?) {
        (0, 0) => Err("one of the two must be more than 0".to_owned()),
        weights => Ok(weights),
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Histories { append, history } => write!(f, "{append}:{history}"),
            &Self::WINDOWS => write!(f, "append:context"),
            Self::Windows { append, context } => write!(f, "append:context={append}:{context}"),
            Self::Looks => write!(f, "context"),
            Self::Facts => write!(f, "remember"),
            Self::Recalls => write!(f, "recall"),
            Self::Lists => write!(f, "list"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_parse_weights_or_kinds_of_calls() {
        for (text, mix, shown) in [
            (
                "9:1",
                Mix::Histories {
                    append: 9,
                    history: 1,
                },
                "9:1",
            ),
            ("1:0", Mix::APPENDS, "1:0"),
            (
                "append:history=0:3",
                Mix::Histories {
                    append: 0,
                    history: 3,
                },
                "0:3",
            ),
            ("append:context", Mix::WINDOWS, "append:context"),
            ("append:context=0:1", Mix::WINDOWS, "append:context"),
            (
                "append:context=1:2",
                Mix::Windows {
                    append: 1,
                    context: 2,
                },
                "append:context=1:2",
            ),
            ("context", Mix::Looks, "context"),
            ("remember", Mix::Facts, "remember"),
            ("recall", Mix::Recalls, "recall"),
            ("list", Mix::Lists, "list"),
        ] {
            assert_eq!(text.parse(), Ok(mix), "{text}");
            assert_eq!(mix.to_string(), shown);
            assert_eq!(shown.parse(), Ok(mix), "a displayed mix parses");
        }
        for text in [
            "",
            "9",
            "9:",
            "0:0",
            "-1:2",
            "1:2:3",
            "a:b",
            "99999:1",
            "append:history",
            "append:context=",
            "append:context=0:0",
            "context=",
            "recall=",
            "context:append",
            "append",
        ] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }

    #[test]
    fn calls_are_drawn_by_weights_of_mix() {
        let mut rng = Rng::new(7);
        let mut drawn = |mix: Mix| {
            let mut counts = [0; CallKind::ALL.len()];
            (0..10_000).for_each(|_| counts[mix.draw(&mut rng) as usize] += 1);
            counts
        };
        assert_eq!(drawn(Mix::APPENDS), [10_000, 0, 0, 0, 0, 0]);
        assert_eq!(
            drawn(Mix::Histories {
                append: 0,
                history: 1
            }),
            [0, 10_000, 0, 0, 0, 0]
        );
        assert_eq!(drawn(Mix::WINDOWS), [0, 0, 10_000, 0, 0, 0]);
        assert_eq!(drawn(Mix::Looks), [0, 0, 10_000, 0, 0, 0]);
        assert_eq!(drawn(Mix::Facts), [0, 0, 0, 10_000, 0, 0]);
        assert_eq!(drawn(Mix::Recalls), [0, 0, 0, 0, 10_000, 0]);
        assert_eq!(drawn(Mix::Lists), [0, 0, 0, 0, 0, 10_000]);
        let [appends, _, contexts, ..] = drawn(Mix::Windows {
            append: 9,
            context: 1,
        });
        assert!(
            (8_800..9_200).contains(&appends) && appends + contexts == 10_000,
            "{appends}"
        );
    }
}
