//! What media types say.

/// True for text, whatever it is called: models read it as such.
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
