//! Tokens of images, by their size in pixels and the provider's rules.

use serde_json::Value;

use crate::model::Provider;

/// Level of detail that a bot requests for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// Not requested, or unknown.
    Auto,
    Low,
    High,
    Original,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: u64,
    pub(super) height: u64,
}

/// Maximum side that any provider accepts.
const SIDE_PX_MAX: u64 = 65_535;

impl Detail {
    /// Parses the detail of an OpenAI part, in chat completions or responses.
    pub(super) fn read(object: &Value) -> Self {
        let detail = object
            .pointer("/image_url/detail")
            .or_else(|| object.get("detail"));
        match detail.and_then(Value::as_str) {
            Some("low") => Self::Low,
            Some("high") => Self::High,
            Some("original") => Self::Original,
            _ => Self::Auto,
        }
    }
}

/// Reads the size from the header of an image.
pub(super) fn size(head: &[u8]) -> Option<Size> {
    let size = imagesize::blob_size(head).ok()?;
    let side = |px: usize| (px as u64).clamp(1, SIDE_PX_MAX);
    (size.width > 0 && size.height > 0).then(|| Size {
        width: side(size.width),
        height: side(size.height),
    })
}

/// Assumed size of an image behind a URL or file id, or with an unreadable head.
const SIZE_UNKNOWN: Size = Size {
    width: 1_024,
    height: 1_024,
};

pub(super) fn tokens(provider: Provider, size: Option<Size>, detail: Detail) -> u64 {
    let size = size.unwrap_or(SIZE_UNKNOWN);
    match provider {
        Provider::OpenAi => open_ai(size, detail),
        Provider::Anthropic => anthropic(size),
        Provider::Google => google(size),
        Provider::Open => open(size),
    }
}

/// Returns the larger result of OpenAI's two rules. Which one applies depends on the model.
///
/// Source: "Images and vision", calculating costs.
///
/// - *Tiles* (GPT-4o, GPT-4.1, GPT-5): the image is scaled to fit into 2,048 px, then its short
///   side to 768 px. 85 tokens, and 170 for each tile of 512 px.
/// - *Patches* (GPT-5.2 and later): 1.2 tokens for each 32 px. `high` has at most 2,500 patches.
///   `auto`, which is `original` since GPT-5.5, has no limit.
/// - `low` is 85 tokens or an image of 512 px.
fn open_ai(size: Size, detail: Detail) -> u64 {
    const PATCH_PX: u64 = 32;
    const PATCHES_HIGH: u64 = 2_500;
    const LOW: u64 = 85;
    let weigh = |patches: u64| (patches * 12).div_ceil(10);
    if detail == Detail::Low {
        return weigh(size.within(512).pieces(PATCH_PX)).max(LOW);
    }
    let bounded = size.within(2_048);
    let fitted = match bounded.short() {
        769.. => bounded.scaled(768, bounded.short()),
        _ => bounded,
    };
    let tiles = LOW + 170 * fitted.pieces(512);
    let patches = match detail {
        Detail::High => size.pieces(PATCH_PX).min(PATCHES_HIGH),
        _ => size.pieces(PATCH_PX),
    };
    weigh(patches).max(tiles)
}

/// One token for each 28 px ("Vision"; close to width × height / 750, as published earlier).
///
/// Larger images are scaled to a long side of 2,576 px and 4,784 tokens, and by models before
/// Claude Opus 4.7 to 1,568 of both.
fn anthropic(size: Size) -> u64 {
    const TOKENS_MAX: u64 = 4_784;
    size.within(2_576).pieces(28).min(TOKENS_MAX)
}

/// Tokens of an image for Gemini: the larger result for versions 2 and 3.
///
/// Gemini 3 ("Media resolution"): up to 1,120 tokens an image at the default resolution. Gemini 2:
/// 258 for each tile of 768 px of an image of at most 3,072 px.
fn google(size: Size) -> u64 {
    const AT_HIGH: u64 = 1_120;
    (258 * size.within(3_072).pieces(768)).max(AT_HIGH)
}

/// Qwen-VL, the most expensive of the common ones: one token for each 28 px, at most 16,384.
fn open(size: Size) -> u64 {
    const TOKENS_MAX: u64 = 16_384;
    size.pieces(28).clamp(64, TOKENS_MAX)
}

impl Size {
    fn short(self) -> u64 {
        self.width.min(self.height)
    }

    /// Scales down to this long side, if it is longer.
    fn within(self, long_px: u64) -> Self {
        let long = self.width.max(self.height);
        if long <= long_px {
            self
        } else {
            self.scaled(long_px, long)
        }
    }

    fn scaled(self, to: u64, from: u64) -> Self {
        let side = |px: u64| (px * to).div_ceil(from.max(1)).max(1);
        Self {
            width: side(self.width),
            height: side(self.height),
        }
    }

    /// Number of squares of this side that cover it.
    fn pieces(self, side_px: u64) -> u64 {
        self.width.div_ceil(side_px) * self.height.div_ceil(side_px)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(provider: Provider, width: u64, height: u64, detail: Detail) -> u64 {
        tokens(provider, Some(Size { width, height }), detail)
    }

    #[test]
    fn image_tokens_match_observed_charges() {
        // Charges measured for GPT-6 and Claude 5.5, without the 77 of the prompt around the
        // latter. Where OpenAI's other rule yields more, the result of the rules.
        let cases = [
            (Provider::OpenAi, 1024, 1024, 1_229),
            (Provider::OpenAi, 1920, 1080, 2_448),
            (Provider::OpenAi, 4032, 3024, 14_364),
            (Provider::OpenAi, 256, 256, 255),
            (Provider::Anthropic, 256, 256, 100),
            (Provider::Anthropic, 768, 768, 784),
            (Provider::Anthropic, 1024, 1024, 1_369),
            (Provider::Anthropic, 1920, 1080, 2_691),
            (Provider::Google, 200, 200, 1_120),
            (Provider::Google, 4032, 3024, 3_096),
            (Provider::Open, 1024, 1024, 1_369),
        ];
        for (provider, width, height, expected) in cases {
            let tokens = of(provider, width, height, Detail::Auto);
            assert_eq!(tokens, expected, "{provider:?} {width} x {height}");
        }
    }

    #[test]
    fn requested_detail_bounds_image_tokens() {
        assert_eq!(of(Provider::OpenAi, 4032, 3024, Detail::Low), 231);
        assert_eq!(of(Provider::OpenAi, 64, 64, Detail::Low), 85);
        assert_eq!(of(Provider::OpenAi, 4032, 3024, Detail::High), 3_000);
        assert_eq!(tokens(Provider::OpenAi, None, Detail::Low), 308);
    }

    #[test]
    fn any_image_size_counts_at_least_one_token() {
        let providers = [
            Provider::OpenAi,
            Provider::Anthropic,
            Provider::Google,
            Provider::Open,
        ];
        for provider in providers {
            for (width, height) in [(1, 1), (1, SIDE_PX_MAX), (SIDE_PX_MAX, SIDE_PX_MAX), (3, 2)] {
                for detail in [Detail::Auto, Detail::Low, Detail::High, Detail::Original] {
                    assert!(of(provider, width, height, detail) > 0, "{provider:?}");
                    assert!(tokens(provider, None, detail) > 0, "{provider:?}");
                }
            }
        }
    }
}
