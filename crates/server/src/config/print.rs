//! The default configuration as text, with what a person needs to know beside each
//! setting. `config/memoird.yaml` is this text; a test compares them.

mod compaction;

use std::time::Duration;

use memoird_core::limits::Limits;
use memoird_core::window::WindowSettings;
use memoird_engine::{HooksConfig, JournalConfig, SessionConfig};
use memoird_memories::MemoriesConfig;
use memoird_memories::files::FilesOptions;

use super::ServerConfig;
use super::context::{DEFAULT_MODEL, table_of_models};
use super::units::{size, span};

/// The text; `${name}` stands for the value of that name.
const TEMPLATE: &str = r#"# The embedded default of memoird: what it does when it is given no file.
# Made by `memoird config print-default`. Durations are written like 90s or 24h, sizes
# like 512KiB or 4MiB. Check a file of your own with `memoird config check FILE`.
version: 1

# Where the journal is. Relative to the folder in which memoird is started. Only one
# memoird at a time can use it.
data_dir: ./memoird-data

server:
  # gRPC. Without keys (see tenants) only an address of this machine is taken. Port 0
  # takes a free one; the ports in use are in DATA_DIR/endpoints.json while it serves.
  listen: ${listen}
  # /healthz, /readyz and /metrics (OpenMetrics).
  admin_listen: ${admin_listen}
  # At SIGTERM: how long calls may take to finish, and changes to be written after that.
  shutdown_grace: ${shutdown_grace}
  # Connections, and calls on each; more wait.
  max_connections: ${max_connections}
  max_streams_per_connection: ${max_streams}
  # Calls of all connections; more are refused with RESOURCE_EXHAUSTED.
  max_calls_in_flight: ${max_calls}
  # One request.
  max_request_bytes: ${max_request}

log:
  # Which events: error, warn, info, debug, trace, or by part: info,memoird_engine=debug.
  # Readable on a terminal, JSON otherwise. Never a key, never what a message says.
  filter: info

short_term:
  # What a history keeps, first in, first out, in whole units: a tool call leaves
  # together with its results. The first user turn is kept beside these caps.
  max_history_turns: ${max_history_turns}
  max_history_bytes: ${max_history_bytes}
  # Sessions of the whole process, and of every tenant that has no cap of its own. A
  # tenant over its own cap loses its longest idle session; at the cap of the process the
  # tenant with the most sessions does. 0: no cap.
  max_sessions: ${max_sessions}
  # A session that nothing touches for so long has expired.
  session_ttl: ${session_ttl}
  # How often expired sessions are collected. auto: every quarter of session_ttl.
  sweep_interval: auto

journal:
  # sync: an answer means that the disk has it.
  # interval: answers at once; the disk has it within flush_interval.
  # off: no journal; nothing survives the process.
  durability: sync
  flush_interval: ${flush_interval}
  # How long the turns of an ended session stay readable.
  retention: ${retention}
  # Changes that may wait for the disk, and how long a call waits for room among them
  # before it is refused with RESOURCE_EXHAUSTED.
  queue_bytes: ${queue_bytes}
  queue_wait: ${queue_wait}

# What GetContext sends to a model. Tokens of a window: the model's context_window, less
# what is kept free for its reply, for errors of counting (safety_headroom) and for the
# next tool results.
context:
  # How turns are chosen where a call does not say.
  # head_tail: the first user turn and the last turns.
  # token_budget: the same, and as many as the budget holds.
  # salience: the same, but the least important turns of the middle leave first.
  # sliding_window: the last turns alone; gives up the first one and a stable prefix.
  policy: ${policy}
  # Turns of a sliding_window, at least 1, or of the tail of head_tail; 0: as many as the
  # budget holds.
  turns: ${policy_turns}
  # A window that would use more of its budget than the watermark is cut down to the
  # floor. Until the next cut its front stays the same, and providers cache it.
  watermark: ${watermark}
  floor: ${floor}
  # A tool result becomes one line once a later call of the same tool with the same
  # arguments has a newer one. The stored turns stay as they are.
  supersede: ${supersede}
  # At a cut a tool result of more tokens is trimmed to its head and its tail; 0: none is.
  trim_over_tokens: ${trim_over}
  trim_head_tokens: ${trim_head}
  trim_tail_tokens: ${trim_tail}
  # The model of a call that names none.
  default_model: ${default_model}
  # Models that calls may name. Built in are, with their context_window,
  # max_reply_tokens, safety_headroom and tool_result_headroom:
  #
${models}
  #
  # An entry of such a name changes what it says; another name starts as default does, and
  # has to say its context_window. A tokenizer is o200k, cl100k, estimate or
  # { file: PATH }, a HuggingFace tokenizer.json that is read with this file. A provider
  # is openai, anthropic, google or open. A counter asks the provider itself, where the
  # estimate is near a limit; while it does not answer, the estimate counts.
  #
  # models:
  #   default: { max_reply_tokens: 8192 }
  #   our-model: { provider: open, tokenizer: { file: /etc/memoird/tokenizer.json },
  #                context_window: 131072 }
  #   claude-opus-5-5: { counter: { anthropic: { api_key: { env: ANTHROPIC_API_KEY },
  #                                              timeout: 2s } } }
  #   gpt-5: { counter: { openai: { api_key: { env: OPENAI_API_KEY },
  #                                 endpoint: responses_input_tokens } } }
  models: {}

${compaction}
# What outlives sessions: what bots Remember, and find again by Recall.
long_term:
  # A file for each tenant. auto: in DATA_DIR/memories.
  dir: auto
  # Files that stay open when nobody uses them.
  open_files: ${open_files}
  # One memory, at most 32KiB; and memories of one tenant, older versions included.
  content_bytes: ${content_bytes}
  max_memories: ${max_memories}
  # Hits of a recall that names no number, at most 100; and tokens that memories may use
  # of a window.
  recall_limit: ${recall_limit}
  window_tokens: ${window_tokens}
  # Two memories whose vectors have this cosine say the same. Texts that differ only in
  # case, blanks and punctuation do so anyway.
  near_duplicate_cosine: 0.95
  # What looks like a key, a token or a card number, before anything is stored or embedded:
  # redact takes it out, block refuses the memory, allow keeps it.
  secrets: redact
  # How long turns that were handed out for an extraction are nobody else's.
  extraction_lease: ${extraction_lease}
  # How long a memory that has expired stays readable by its id.
  expired_kept: ${expired_kept}
  # Recalls that a tenant's dream sweeps know of.
  recall_events: ${recall_events}
  # What turns texts into vectors, for recall by meaning. none: recall is by words.
  # openai: any service with OpenAI's /v1/embeddings. local: a sentence-transformer on this
  # machine's CPU, in a folder with model.safetensors, tokenizer.json and config.json; for
  # a memoird that was built with --features local-embedder.
  #
  # embedder:
  #   openai: { base_url: "https://api.openai.com/v1", model: text-embedding-3-small,
  #             api_key: { env: OPENAI_API_KEY }, dimensions: 512, batch: 64, timeout: 10s,
  #             query_prefix: "", memory_prefix: "" }
  # embedder:
  #   local: { dir: /var/lib/memoird/all-MiniLM-L6-v2 }
  embedder: none
  # How long a recall waits for the vector of its query, before it goes by words.
  query_wait: ${query_wait}
  # After so long a memory has lost half of what age can take of its place in a recall.
  half_lives: { user: ${half_user}, feedback: ${half_feedback}, project: ${half_project}, reference: ${half_reference} }
  # Dream sweeps pin what is recalled often, by different queries, on different days, and
  # with a score of at least min_score (0 to 1); and they take their own pins away from what
  # nobody recalls any more. off: only when asked, by `memoird memory dream`.
  dream:
    interval: ${dream_interval}
    max_promotions: 20
    min_recalls: 3
    min_queries: 2
    min_days: 2
    min_score: 0.35
    unpin_after: ${unpin_after}
    # After so long without use a sweep deletes memories, by kind, such as { project: 365d };
    # without it, none.
    retention: {}

# What clients may send. Ids, idempotency keys and subjects have 1 to 256 bytes.
limits:
  # One turn, encoded; never more than max_history_bytes.
  turn_bytes: ${turn_bytes}
  turns_per_append: ${turns_per_append}
  parts_per_turn: ${parts_per_turn}
  # Labels of one turn.
  metadata_entries: ${metadata_entries}
  metadata_bytes: ${metadata_bytes}
  # The free-form JSON of a session.
  state_bytes: ${state_bytes}
  # Pinned turns of a session, with those they must travel with. They count in the caps
  # above, and always leave room for at least one other turn.
  pinned_turns: ${pinned_turns}
  pinned_bytes: ${pinned_bytes}

  # Calls of hooks at once; bytes of turns that one call holds (of a longer session the
  # newest turns); and without a journal, bytes of turns that may be owed.
  hooks_under_way: ${hooks_under_way}
  hook_content_bytes: ${hook_content}
  hook_memory_bytes: ${hook_memory}

# What is done when a session ends, with its whole content, at least once. A hook has a
# name, and is one of git (a checkpoint in a repository for each tenant), exec (a program
# that gets JSON on stdin) and webhook (a POST). on: which ends; ended is every end by
# command, also a reset that asks for hooks and the shutdown of a daemon without a
# journal. tenants: only these; without it, all. Each may have its timeout (30s), its calls
# at once (concurrency: 2) and retry: { tries: 20, pause: 1s, pause_max: 10m }; after its
# tries a delivery is kept until somebody retries or drops it: `memoird hooks`.
#
# hooks:
#   - name: checkpoint
#     on: [expired, evicted, ended]
#     git: { dir: ./memoird-data/checkpoints, branch: main,
#            author_name: memoird, author_email: memoird@localhost,
#            batch_max: 1000, batch_wait: 1s }   # ends of one commit
#   - name: archive
#     timeout: 2m
#     exec: { argv: [/usr/local/bin/archive, --fast], env: [PATH, HOME] }
#   - name: crm
#     tenants: [acme]
#     webhook: { url: "https://crm.example/memoird", secret: { env: CRM_SECRET } }
hooks: []

# Who may call. Without tenants there is one, `default`, without a key. A key is
# { env: NAME }, { file: PATH } or { sha256: HEX }; `role: admin` lets it call
# AdminService as well, which sees every tenant. limits: max_sessions, session_ttl,
# max_history_turns, max_history_bytes.
#
# tenants:
#   - id: acme
#     keys: [ { env: ACME_KEY }, { file: /run/secrets/acme-admin, role: admin } ]
#     limits: { max_sessions: 2000, session_ttl: 2h }
tenants: []
"#;

/// The embedded default, commented.
pub(crate) fn default_yaml() -> String {
    let (limits, sessions) = (Limits::default(), SessionConfig::default());
    let (hooks, windows) = (HooksConfig::default(), WindowSettings::default());
    let (journal, server) = (JournalConfig::default(), ServerConfig::default());
    let (memories, files) = (MemoriesConfig::default(), FilesOptions::default());
    let days = |days: u32| span(Duration::from_secs(24 * 60 * 60) * days);
    let values = [
        ("listen", server.listen.to_string()),
        ("admin_listen", server.admin_listen.to_string()),
        ("shutdown_grace", span(server.shutdown_grace)),
        ("max_connections", server.max_connections.to_string()),
        ("max_streams", server.max_streams_per_connection.to_string()),
        ("max_calls", server.max_calls_in_flight.to_string()),
        ("max_request", size(server.max_request_bytes)),
        ("max_history_turns", limits.max_history_turns.to_string()),
        ("max_history_bytes", size(limits.max_history_bytes)),
        ("max_sessions", sessions.max_sessions.to_string()),
        ("session_ttl", span(sessions.session_ttl)),
        ("flush_interval", span(journal.flush_interval)),
        ("retention", span(journal.retention)),
        ("queue_bytes", size(journal.queue_bytes)),
        ("queue_wait", span(journal.queue_wait)),
        ("policy", windows.policy.name().to_owned()),
        ("policy_turns", "0".to_owned()),
        ("watermark", format!("{}%", windows.watermark_percent)),
        ("floor", format!("{}%", windows.floor_percent)),
        ("supersede", windows.supersede.to_string()),
        ("trim_over", windows.trim_over_tokens.to_string()),
        ("trim_head", windows.trim_head_tokens.to_string()),
        ("trim_tail", windows.trim_tail_tokens.to_string()),
        ("default_model", DEFAULT_MODEL.to_owned()),
        ("models", table_of_models("  #   ")),
        ("open_files", files.files_open_max.to_string()),
        ("content_bytes", size(memories.limits.content_bytes)),
        ("max_memories", memories.limits.memories.to_string()),
        ("recall_limit", memories.recall_limit.to_string()),
        ("window_tokens", memories.window_tokens.to_string()),
        ("extraction_lease", span(memories.lease)),
        ("expired_kept", span(memories.expired_kept)),
        ("recall_events", memories.limits.recall_events.to_string()),
        ("query_wait", span(memories.query_wait)),
        ("half_user", days(10_000)),
        ("half_feedback", days(365)),
        ("half_project", days(90)),
        ("half_reference", days(10_000)),
        ("dream_interval", days(1)),
        ("unpin_after", days(60)),
        ("turn_bytes", size(limits.turn_bytes)),
        ("turns_per_append", limits.turns_per_append.to_string()),
        ("parts_per_turn", limits.parts_per_turn.to_string()),
        ("metadata_entries", limits.metadata_entries.to_string()),
        ("metadata_bytes", size(limits.metadata_bytes)),
        ("state_bytes", size(limits.state_bytes)),
        ("pinned_turns", limits.pinned_turns.to_string()),
        ("pinned_bytes", size(limits.pinned_bytes)),
        ("hooks_under_way", hooks.concurrency.to_string()),
        ("hook_content", size(hooks.content_bytes)),
        ("hook_memory", size(hooks.memory_bytes)),
    ];
    let fill =
        |text: String, (name, value): (&str, String)| text.replace(&format!("${{{name}}}"), &value);
    let template = TEMPLATE.replace("${compaction}", compaction::TEMPLATE);
    values
        .into_iter()
        .chain(compaction::values())
        .fold(template, fill)
}
