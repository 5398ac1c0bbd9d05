//! Classification of media types.

/// Whether models can read the type as text.
pub(crate) fn is_text(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    match essence.split_once('/') {
        Some(("text", _)) => true,
        Some(("application", format)) => {
            let names = ["json", "xml", "yaml", "x-yaml", "toml", "javascript"];
            names.contains(&format) || format.ends_with("+json") || format.ends_with("+xml")
        }
        _ => false,
    }
}
