//! Duration of audio and video: as stated by the file, else estimated by size.

/// Maximum duration: a day. No provider accepts more.
const SECONDS_MAX: u64 = 24 * 60 * 60;

/// Returns the duration in seconds, rounded up, at least one.
pub(super) fn seconds(media_type: &str, bytes: &[u8]) -> u64 {
    let stated = wave(bytes).or_else(|| movie(bytes));
    stated
        .unwrap_or_else(|| by_size(media_type, bytes.len()))
        .clamp(1, SECONDS_MAX)
}

/// Estimates the duration from the lowest common data rates.
///
/// Per second, these are 2 kB for voice messages in Opus, 4 kB for other audio, and 64 kB for
/// video.
fn by_size(media_type: &str, bytes: usize) -> u64 {
    let (family, format) = media_type.split_once('/').unwrap_or((media_type, ""));
    let mut speech = ["ogg", "opus", "webm", "amr"].into_iter();
    let second_bytes = match family {
        "video" => 64_000,
        _ if speech.any(|name| format.contains(name)) => 2_000,
        _ => 4_000,
    };
    (bytes as u64).div_ceil(second_bytes)
}

/// Duration of a WAVE file: its size divided by its byte rate.
fn wave(bytes: &[u8]) -> Option<u64> {
    let is_wave = bytes.starts_with(b"RIFF") && bytes.get(8..16)? == b"WAVEfmt ";
    let second_bytes = u32::from_le_bytes(bytes.get(28..32)?.try_into().ok()?);
    (is_wave && second_bytes > 0).then(|| (bytes.len() as u64).div_ceil(u64::from(second_bytes)))
}

/// Duration in the movie header of an MP4 or QuickTime file (ISO/IEC 14496-12, 8.2.2).
fn movie(bytes: &[u8]) -> Option<u64> {
    if bytes.get(4..8)? != b"ftyp" {
        return None;
    }
    let header = bytes.windows(4).position(|name| name == b"mvhd")?;
    let fields = bytes.get(header + 4..)?;
    let long = *fields.first()? == 1;
    let number = |at: usize| Some(u32::from_be_bytes(fields.get(at..at + 4)?.try_into().ok()?));
    let (ticks_per_second, ticks) = if long {
        let high = u64::from(number(24)?);
        (number(20)?, high << 32 | u64::from(number(28)?))
    } else {
        (number(12)?, u64::from(number(16)?))
    };
    // A file still being written states 0, or the maximum.
    let is_known = ticks_per_second > 0 && ticks > 0 && ticks < u64::from(u32::MAX);
    is_known.then(|| ticks.div_ceil(u64::from(ticks_per_second)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mp4(version: u8, fields: &[u8]) -> Vec<u8> {
        [
            b"\0\0\0\x08ftyp....moov....mvhd".as_slice(),
            &[version, 0, 0, 0],
            fields,
        ]
        .concat()
    }

    #[test]
    fn wav_and_mp4_duration_is_read_from_header() {
        let mut sound = b"RIFF....WAVEfmt ....\x01\0\x01\0....\0\x7d\0\0".to_vec();
        sound.resize(3 * 32_000, 0);
        assert_eq!(seconds("audio/wav", &sound), 3);
        let short = [[0_u8; 8], [0, 0, 0x03, 0xe8, 0, 0, 0x2e, 0xe0]].concat();
        assert_eq!(seconds("video/mp4", &mp4(0, &short)), 12);
        let long = [&[0_u8; 16][..], &[0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 95]].concat();
        assert_eq!(seconds("video/mp4", &mp4(1, &long)), 10);
    }

    #[test]
    fn other_media_duration_is_estimated_by_size() {
        assert_eq!(seconds("audio/ogg", &[0; 20_000]), 10);
        assert_eq!(seconds("audio/mpeg", &[0; 20_000]), 5);
        assert_eq!(seconds("video/mp4", &[0; 640_000]), 10);
        for end in 0..28 {
            assert!(seconds("video/mp4", &mp4(1, &[0xff; 28][..end])) >= 1);
        }
        assert_eq!(seconds("", b""), 1);
        assert_eq!(seconds("audio/wav", b"RIFF....WAVEfmt "), 1);
        assert_eq!(seconds("video/mp4", &mp4(0, &[0xff; 16])), 1);
    }
}
