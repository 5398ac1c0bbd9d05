//! HTML chart of simulated windows: one bar per window, with the cached part at its foot.

/// Maximum number of sessions to draw. More would be unreadable.
const SESSIONS_MAX: usize = 50;
const HEIGHT: u64 = 120;
const BAR: usize = 4;

const STYLE: &str = "body{font:14px sans-serif;margin:2em;color:#222}td{padding:0 1em 0 0}\
                     svg{background:#f6f6f6;display:block;margin:.2em 0 1em}\
                     .c{fill:#7aa6c2}.f{fill:#c2563a}";

/// Renders the page. Each session is a list of windows: their tokens, and those in the cache.
pub(super) fn page(sessions: &[Vec<(u64, u64)>], summary: &[(&str, String)]) -> String {
    let mut page = format!(
        "<!doctype html><meta charset=utf-8><title>memoird replay --dry-run</title>\
         <style>{STYLE}</style><h1>memoird replay --dry-run</h1><table>"
    );
    for (name, value) in summary {
        page.push_str(&format!("<tr><td>{name}<td>{value}"));
    }
    page.push_str(
        "</table><p>One bar for each model call. Blue: in a prefix that was sent before; red: not.",
    );
    let most = sessions
        .iter()
        .flatten()
        .map(|(tokens, _)| *tokens)
        .max()
        .unwrap_or(0)
        .max(1);
    for (number, windows) in sessions.iter().take(SESSIONS_MAX).enumerate() {
        page.push_str(&drawn(number, windows, most));
    }
    if sessions.len() > SESSIONS_MAX {
        page.push_str(&format!(
            "<p>The first {SESSIONS_MAX} of {}.",
            sessions.len()
        ));
    }
    page
}

fn drawn(number: usize, windows: &[(u64, u64)], most: u64) -> String {
    let width = windows.len() * BAR;
    let mut svg = format!(
        "<div>session {number}: {} calls, up to {most} tokens</div>\
         <svg width={width} height={HEIGHT}>",
        windows.len()
    );
    for (place, &(tokens, cached)) in windows.iter().enumerate() {
        let (all, foot) = (tokens * HEIGHT / most, cached * HEIGHT / most);
        let x = place * BAR;
        let bar = |class: &str, y: u64, height: u64| {
            format!("<rect class={class} x={x} y={y} width=3 height={height} />")
        };
        svg.push_str(&bar("f", HEIGHT - all, all - foot));
        svg.push_str(&bar("c", HEIGHT - foot, foot));
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_window_is_a_bar() {
        let page = super::page(&[vec![(100, 0), (200, 100)]], &[("cost", "1".to_owned())]);
        assert_eq!(page.matches("<rect").count(), 4);
        assert!(
            page.contains("<td>cost<td>1") && page.ends_with("</svg>"),
            "{page}"
        );
    }
}
