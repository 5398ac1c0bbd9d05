//! Makes the authority of calls over a Unix socket acceptable to HTTP/2.
//!
//! gRPC's C core (Python, Ruby, PHP, C++) sends the percent-encoded path of the socket as
//! `:authority`. No host contains `%`, so `h2` resets such streams. Nothing reads the authority, so
//! each `%` in it is replaced before `h2` parses the bytes. The length must not change: both sides
//! compute the size of the table of known headers from it.

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const NAME: &[u8] = b":authority";
/// Index of `:authority` in HPACK's static table.
const NAME_INDEX: usize = 1;
const HEADER_BYTES: usize = 9;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Rewrites the bytes that one client sends.
#[derive(Debug)]
pub(super) struct AuthorityRewriter {
    frame: Frame,
    field: Field,
}

/// Position within the frames (RFC 9113, section 4.1).
#[derive(Clone, Copy, Debug)]
enum Frame {
    /// Number of bytes of the preface that have arrived.
    Preface(usize),
    /// Not HTTP/2.
    Ignored,
    /// Bytes of a frame's header that have arrived, and their number.
    Header([u8; HEADER_BYTES], usize),
    /// Bytes of a payload that are left, and how many of them precede header fields. `None` if it
    /// has no header fields.
    Payload(usize, Option<usize>),
}

/// Position within a header field (RFC 7541, sections 5 and 6).
#[derive(Clone, Copy, Debug)]
enum Field {
    Start,
    /// A number with bytes still to come.
    Number {
        of: NumberOf,
        value: usize,
        shift: u32,
    },
    /// The length of a name.
    NameLength,
    /// Bytes of a name that are left, and whether it can still be `:authority`.
    Name {
        left: usize,
        is_authority: bool,
    },
    /// The length of a value.
    ValueLength {
        is_authority: bool,
    },
    /// Bytes of a value that are left.
    Value {
        left: usize,
        is_authority: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum NumberOf {
    /// A field without a text, or a table size.
    Whole,
    /// The index of a name, or 0 if the name follows.
    Name,
    NameLength {
        is_huffman: bool,
    },
    ValueLength {
        is_authority: bool,
    },
}

impl Default for AuthorityRewriter {
    fn default() -> Self {
        Self {
            frame: Frame::Preface(0),
            field: Field::Start,
        }
    }
}

impl AuthorityRewriter {
    /// Rewrites the next bytes that the client has sent.
    pub(super) fn rewrite(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let left_bytes = bytes.len() - at;
            let byte = &mut bytes[at];
            match self.frame {
                Frame::Ignored => return,
                Frame::Payload(left, None) => {
                    let skipped = left.min(left_bytes);
                    self.frame = payload(left - skipped, None);
                    at += skipped;
                    continue;
                }
                Frame::Payload(left, Some(before)) => {
                    if before == 0 {
                        self.field.take(byte);
                    }
                    self.frame = payload(left - 1, Some(before.saturating_sub(1)));
                }
                Frame::Preface(count) if PREFACE[count] != *byte => self.frame = Frame::Ignored,
                Frame::Preface(count) if count + 1 < PREFACE.len() => {
                    self.frame = Frame::Preface(count + 1);
                }
                Frame::Preface(_) => self.frame = payload(0, None),
                Frame::Header(mut header, count) => {
                    header[count] = *byte;
                    self.frame = if count + 1 < HEADER_BYTES {
                        Frame::Header(header, count + 1)
                    } else {
                        self.begin(header)
                    };
                }
            }
            at += 1;
        }
    }

    /// Begins the payload of a frame.
    fn begin(&mut self, header: [u8; HEADER_BYTES]) -> Frame {
        let [high, middle, low, kind, flags, ..] = header;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let before = match kind {
            HEADERS => {
                self.field = Field::Start;
                let padding = usize::from(flags & PADDED != 0);
                let priority = if flags & PRIORITY == 0 { 0 } else { 5 };
                Some(padding + priority)
            }
            CONTINUATION => Some(0),
            _ => None,
        };
        payload(length, before)
    }
}

/// The position with this many bytes of a payload left, or at the next frame.
fn payload(left: usize, before: Option<usize>) -> Frame {
    if left == 0 {
        Frame::Header([0; HEADER_BYTES], 0)
    } else {
        Frame::Payload(left, before)
    }
}

impl Field {
    fn take(&mut self, byte: &mut u8) {
        let read = *byte;
        *self = match *self {
            Self::Start => match read {
                0x80.. => number(NumberOf::Whole, read, 0x7f),
                0x40..0x80 => number(NumberOf::Name, read, 0x3f),
                0x20..0x40 => number(NumberOf::Whole, read, 0x1f),
                _ => number(NumberOf::Name, read, 0x0f),
            },
            Self::Number { of, value, shift } => {
                let more = usize::from(read & 0x7f).checked_shl(shift).unwrap_or(0);
                let value = value.saturating_add(more);
                if read < 0x80 {
                    after(of, value)
                } else {
                    Self::Number {
                        of,
                        value,
                        shift: shift + 7,
                    }
                }
            }
            Self::NameLength => {
                let is_huffman = read >= 0x80;
                number(NumberOf::NameLength { is_huffman }, read, 0x7f)
            }
            Self::Name { left, is_authority } => {
                let expected = NAME.len().checked_sub(left).and_then(|at| NAME.get(at));
                name(left - 1, is_authority && expected == Some(&read))
            }
            Self::ValueLength { is_authority } => {
                // Of the clients that send a path, none compresses it.
                let is_authority = is_authority && read < 0x80;
                number(NumberOf::ValueLength { is_authority }, read, 0x7f)
            }
            Self::Value { left, is_authority } => {
                if is_authority && read == b'%' {
                    *byte = b'-';
                }
                value(left - 1, is_authority)
            }
        };
    }
}

/// Begins a number with the bits of its first byte in `mask`.
fn number(of: NumberOf, byte: u8, mask: u8) -> Field {
    let value = usize::from(byte & mask);
    if value < usize::from(mask) {
        after(of, value)
    } else {
        Field::Number {
            of,
            value,
            shift: 0,
        }
    }
}

fn after(of: NumberOf, number: usize) -> Field {
    match of {
        NumberOf::Whole => Field::Start,
        NumberOf::Name if number == 0 => Field::NameLength,
        NumberOf::Name => Field::ValueLength {
            is_authority: number == NAME_INDEX,
        },
        NumberOf::NameLength { is_huffman } => name(number, !is_huffman && number == NAME.len()),
        NumberOf::ValueLength { is_authority } => value(number, is_authority),
    }
}

fn name(left: usize, is_authority: bool) -> Field {
    if left == 0 {
        Field::ValueLength { is_authority }
    } else {
        Field::Name { left, is_authority }
    }
}

fn value(left: usize, is_authority: bool) -> Field {
    if left == 0 {
        Field::Start
    } else {
        Field::Value { left, is_authority }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("a short frame");
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// A text without compression, with a length of at most 126 bytes.
    fn text(text: &str) -> Vec<u8> {
        let length = u8::try_from(text.len()).expect("a short text");
        [&[length], text.as_bytes()].concat()
    }

    fn field(name: &str, value: &str) -> Vec<u8> {
        [vec![0x40], text(name), text(value)].concat()
    }

    /// The bytes after the rewrite, which do not depend on how they arrive.
    fn rewritten(sent: &[u8]) -> Vec<u8> {
        let all = |part: usize| {
            let (mut bytes, mut rewriter) = (sent.to_vec(), AuthorityRewriter::default());
            for part in bytes.chunks_mut(part) {
                rewriter.rewrite(part);
            }
            bytes
        };
        let at_once = all(usize::MAX);
        for part in 1..50 {
            assert_eq!(all(part), at_once, "in parts of {part}");
        }
        at_once
    }

    #[test]
    fn only_the_authority_of_calls_is_rewritten() {
        let path = "tmp%2Fa.sock";
        let other = [field(":path", "/a%2Fb"), field("authorization", "a%b")].concat();
        let long_number = [&[0x7f, 0x80, 0x01], &*text("%2F")].concat();
        let by_name = |path: &str| {
            let authority = field(":authority", path);
            [&[0x20, 0x83][..], &other, &authority, &long_number, &other].concat()
        };
        let by_index = |path: &str| [&[0x86, 0x01][..], &text(path), &other].concat();
        let request = |path: &str| {
            let padded = [&[2, 0, 0, 0, 0, 7][..], &by_index(path), &[0, 0]].concat();
            let (first, second) = (by_name(path), by_index(path));
            let (begun, rest) = first.split_at(20);
            let body = field(":authority", "tmp%2Fbody");
            [
                PREFACE.to_vec(),
                frame(4, 0, &[]),
                frame(HEADERS, 0, begun),
                frame(CONTINUATION, 4, rest),
                frame(0, 0, &body),
                frame(HEADERS, PADDED | PRIORITY, &padded),
                frame(HEADERS, 4, &second),
            ]
            .concat()
        };
        let expected = request("tmp-2Fa.sock");
        assert_eq!(rewritten(&request(path)), expected);
        assert_eq!(rewritten(&expected), expected);
    }

    #[test]
    fn other_protocols_and_malformed_headers_are_unchanged() {
        let authority = frame(HEADERS, 4, &field(":authority", "a%2Fb"));
        let plain = [b"GET /%2F HTTP/1.1\r\n\r\n".to_vec(), authority].concat();
        assert_eq!(rewritten(&plain), plain);
        let huge = [&[0x40][..], &[0x7f; 40], &[0xff; 40]].concat();
        let malformed = [PREFACE.to_vec(), frame(HEADERS, 4, &huge)].concat();
        assert_eq!(rewritten(&malformed), malformed);
    }
}
