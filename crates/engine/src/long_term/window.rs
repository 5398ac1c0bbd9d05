//! Recalled memories in a window: a block behind the turns, within the budget, without what
//! the window holds anyway.

use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId};
use memoird_core::memory::block::{Block, block};
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_core::window::Window;
use memoird_formats::tokens::Scale;

use super::{RecallAsk, RecallHit};
use crate::engine::Engine;
use crate::tenant::Tenant;

/// The share of a window's budget that memories may use, in percent.
const SHARE_PERCENT: u64 = 10;
/// Words that a memory has at least where a turn with the same words tells it.
const WORDS_MIN: usize = 3;

/// What was recalled for a window that is being built.
#[derive(Debug)]
pub(crate) struct Recalled {
    hits: Vec<RecallHit>,
    /// All of them, as far as they fit.
    whole: Block,
    now: Timestamp,
}

/// What a window tells of memories.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) hits: Vec<RecallHit>,
    pub(crate) text: String,
}

impl Recalled {
    /// Room to be kept for the block.
    pub(crate) fn tokens(&self) -> u64 {
        self.whole.tokens
    }

    /// Puts the block into a window, without those memories that it holds already: whose
    /// turns are in it, or whose words are.
    pub(crate) fn tell(
        &self,
        window: &mut Window,
        (session, generation, last_seq): (&SessionId, Generation, u64),
        scale: &Scale,
    ) -> Told {
        let is_held = |hit: &&RecallHit| {
            let source = hit.memory.source.as_ref().filter(|source| {
                source.session == *session && source.generation == Some(generation)
            });
            source.is_some_and(|source| window.holds(&source.seqs, last_seq))
                || says(window, &hit.memory.content)
        };
        let (held, new): (Vec<&RecallHit>, Vec<&RecallHit>) = self.hits.iter().partition(is_held);
        let told = match held.is_empty() {
            true => self.whole.clone(),
            // Room is kept for no more than all of them took.
            false => block_of(&new, self.now, self.whole.tokens, scale),
        };
        window.hold_memories(told.tokens);
        let hits = new.into_iter().take(told.taken).cloned().collect();
        Told {
            hits,
            text: told.text,
        }
    }
}

impl Engine {
    /// Recalls for a window of so many tokens. Says why where it could not: a window without
    /// memories is better than none.
    pub(crate) async fn recall_for_window(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        mut ask: RecallAsk,
        (input_budget, scale, peek): (u64, &Scale, bool),
    ) -> (Option<Recalled>, Vec<String>) {
        ask.session = Some(session.clone());
        let config = self.shared.config.load_full();
        let outcome = match self.recall_checked(tenant, ask, !peek).await {
            Ok(outcome) => outcome,
            Err(error) => {
                tracing::warn!(?error, "a window goes without memories");
                return (
                    None,
                    vec![format!("memories could not be recalled: {error}")],
                );
            }
        };
        let tokens_max = config
            .long_term
            .window_tokens
            .min(input_budget / 100 * SHARE_PERCENT);
        let now = self.shared.machine.now().wall;
        let hits: Vec<&RecallHit> = outcome.hits.iter().collect();
        let whole = block_of(&hits, now, tokens_max, scale);
        let mut notes = outcome.notes;
        if whole.taken < hits.len() {
            let (taken, found) = (whole.taken, hits.len());
            notes.push(format!(
                "{taken} of {found} recalled memories fit into {tokens_max} tokens"
            ));
        }
        (
            Some(Recalled {
                hits: outcome.hits,
                whole,
                now,
            }),
            notes,
        )
    }
}

fn block_of(hits: &[&RecallHit], now: Timestamp, tokens_max: u64, scale: &Scale) -> Block {
    let weigh = |text: &str| {
        scale.turn(&Turn::new(
            Role::User,
            vec![PartKind::Text(text.into()).into()],
        ))
    };
    let memories: Vec<_> = hits.iter().map(|hit| &hit.memory).collect();
    block(&memories, now, tokens_max, &weigh)
}

/// True when a turn of the window says this. The encoding keeps texts as they are, so nothing
/// has to be decoded. A word or two may stand in any sentence, and say nothing of it.
fn says(window: &Window, content: &str) -> bool {
    if content.split_whitespace().nth(WORDS_MIN - 1).is_none() {
        return false;
    }
    let finder = memchr::memmem::Finder::new(content);
    window
        .turns
        .iter()
        .any(|turn| finder.find(&turn.content).is_some())
}
