//! Tokens of documents. Each page is read as text and as an image.

use crate::model::Provider;

/// Maximum number of pages that any provider reads.
const PAGES_MAX: u64 = 1_000;
/// Low estimate of bytes per page, if pages cannot be counted.
///
/// It is that of dense compressed text without pictures.
const PAGE_BYTES_MIN: usize = 10_000;
/// Bytes at the start of a linearized file that contain its number of pages.
const LINEARIZED_BYTES: usize = 1_024;

/// Tokens of a document of `pages` pages.
///
/// - Anthropic ("PDF support"): 1,500 to 3,000 for a page's text, and up to 1,568 for its image. A
///   recorded page of running text was charged 2,670.
/// - OpenAI: text and image too, without a figure for text. Recorded pages took 7 and 240.
/// - Google ("Media resolution"): 560.
/// - Servers of open models convert pages in their own way, so OpenAI's figure is assumed for them.
pub(super) fn tokens(provider: Provider, pages: u64) -> u64 {
    let page = match provider {
        Provider::Anthropic => 3_000,
        Provider::Google => 560,
        Provider::OpenAi | Provider::Open => 1_500,
    };
    pages.min(PAGES_MAX) * page
}

/// Returns the number of pages of a PDF, at least one.
///
/// Takes the larger of the pages found and the number stated by a linearized file. If both are
/// missing, it is estimated by size.
pub(super) fn pages(pdf: &[u8]) -> u64 {
    let seen = pages_seen(pdf).max(pages_stated(pdf).unwrap_or(0));
    match seen {
        0 => pages_by_size(pdf.len()),
        seen => seen.min(PAGES_MAX),
    }
}

/// Estimates the number of pages of a document by its size in bytes, at least one.
pub(super) fn pages_by_size(bytes: usize) -> u64 {
    (bytes.div_ceil(PAGE_BYTES_MIN) as u64).clamp(1, PAGES_MAX)
}

/// Counts objects of the type `Page`. Those in compressed streams are not found.
fn pages_seen(pdf: &[u8]) -> u64 {
    const TYPE: &[u8] = b"/Type";
    let mut rest = pdf;
    let mut pages = 0;
    while let Some(slash) = rest.iter().position(|byte| *byte == b'/') {
        rest = &rest[slash..];
        let Some(value) = rest.strip_prefix(TYPE) else {
            rest = &rest[1..];
            continue;
        };
        let name = value.trim_ascii_start().strip_prefix(b"/Page");
        let is_page = name.is_some_and(|rest| !rest.first().is_some_and(u8::is_ascii_alphanumeric));
        pages += u64::from(is_page);
        rest = &rest[TYPE.len()..];
    }
    pages
}

/// Returns the `/N` of a linearized file's first object.
fn pages_stated(pdf: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(&pdf[..pdf.len().min(LINEARIZED_BYTES)]);
    let object = head.split_once("/Linearized")?.1;
    let number = object.split_once("/N ")?.1.trim_start();
    let digits = number
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(number.len());
    number[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_pdf_pages_are_counted() {
        let cases: [(&[u8], u64); 7] = [
            (
                b"%PDF-1.4 <</Type /Pages /Count 2>> <</Type/Page>> <</Type /Page/Parent 1>>",
                2,
            ),
            (b"%PDF-1.4 <</Type\n/Page\n>>", 1),
            (b"%PDF-1.5 <</Linearized 1/L 9/N 12/T 8>> stream", 12),
            (b"%PDF-1.5 <</Linearized 1/N x>>", 1),
            (b"%PDF-1.5 /PageLabels /Type/PageLabel", 1),
            (b"", 1),
            (b"/Type/Page", 1),
        ];
        for (pdf, expected) in cases {
            assert_eq!(pages(pdf), expected, "{}", String::from_utf8_lossy(pdf));
        }
    }

    #[test]
    fn hidden_pdf_pages_are_estimated_by_size_and_bounded() {
        assert_eq!(pages(&[b'x'; 95_000]), 10);
        assert_eq!(pages(&b"/Type/Page ".repeat(5_000)), PAGES_MAX);
        assert_eq!(pages(b"/Linearized 1 /N 99999999999999999999"), 1);
        assert_eq!(pages(b"/Linearized 1 /N 9999999999"), PAGES_MAX);
        assert_eq!(pages_by_size(usize::MAX), PAGES_MAX);
        assert!(pages(&b"/".repeat(1_000_000)) > 0);
        // Blanks after a type must not be scanned repeatedly.
        assert_eq!(pages(&[b"/Type ".repeat(100), vec![b' '; 100]].concat()), 1);
    }
}
