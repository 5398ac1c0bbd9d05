//! What parsing a command line costs the process that goes on.

use std::sync::LazyLock;

use clap::Parser;
use memoird_cli::ClientCommand;
use memoird_proto::DESCRIPTOR_POOL;

#[derive(Parser)]
enum Command {
    #[command(flatten)]
    Client(Box<ClientCommand>),
    Serve,
}

/// The decoded descriptors take 16 MB, which an idle daemon would keep.
#[test]
fn other_commands_decode_no_descriptors() {
    let command = Command::try_parse_from(["memoird", "serve"]).unwrap();
    assert!(matches!(command, Command::Serve));
    assert!(LazyLock::get(&DESCRIPTOR_POOL).is_none());
}
