//! Splitting text into sentences.

use icu_segmenter::SentenceSegmenter;
use icu_segmenter::options::SentenceBreakInvariantOptions;

/// Returns the trimmed sentences of a text in order, by the rules of Unicode (UAX #29).
///
/// The end of a line ends a sentence. Takes time linear in the text.
pub fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let segmenter = SentenceSegmenter::new(SentenceBreakInvariantOptions::default());
    let mut start = 0;
    segmenter.segment_str(text).filter_map(move |end| {
        let sentence = text[start..end].trim();
        start = end;
        (!sentence.is_empty()).then_some(sentence)
    })
}
