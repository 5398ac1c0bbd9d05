//! Keys and tokens that are known by their looks.
//!
//! A rule is tried only on a text that holds one of its key words, which one pass finds for
//! all rules: most texts hold none.

use std::sync::{LazyLock, OnceLock};

use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use super::{Finding, entropy_bits, is_placeholder};

/// One kind of secret.
struct Rule {
    what: &'static str,
    /// What a text must hold for the rule to be tried, in any case of letters.
    near: &'static str,
    /// Its looks; where it has a group, the group is the secret.
    pattern: &'static str,
    /// Bits in each of its bytes, at least: less is a sample.
    bits: f64,
    regex: OnceLock<Option<Regex>>,
}

const fn rule(what: &'static str, near: &'static str, pattern: &'static str, bits: f64) -> Rule {
    Rule {
        what,
        near,
        pattern,
        bits,
        regex: OnceLock::new(),
    }
}

/// In brackets the rule of gitleaks. Where lengths were given exactly, longer ones are taken
/// too: providers lengthen their keys.
static RULES: [Rule; 48] = [
    // [aws-access-token]
    rule(
        "AWS access key",
        "AKIA|ASIA|ABIA|ACCA",
        r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
        3.0,
    ),
    // Its other half has no mark of its own, so it takes a word before it.
    rule(
        "AWS secret key",
        "aws|amazon|secret",
        r#"(?i:aws|amazon|secret)(?u:[^\r\n]){0,60}?[\x20'"`=:>]([A-Za-z0-9/+]{40})(?:[\s'"`,;<.)]|$)"#,
        4.2,
    ),
    // [gcp-api-key], Google's OAuth clients and access tokens
    rule("Google API key", "AIza", r"\bAIza[\w-]{35}", 3.0),
    rule(
        "Google client secret",
        "GOCSPX-",
        r"\bGOCSPX-[\w-]{28}",
        3.0,
    ),
    rule("Google access token", r"ya29\.", r"\bya29\.[\w-]{20,}", 3.0),
    // [azure-ad-client-secret], keys of storage accounts and service buses, signed addresses
    rule(
        "Azure client secret",
        "Q~",
        r"(?:^|(?u:[^A-Za-z0-9_~.-]))([A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34})",
        3.0,
    ),
    rule(
        "Azure account key",
        "AccountKey|SharedAccessKey",
        r"(?i:AccountKey|SharedAccessKey)=([A-Za-z0-9+/]{40,100}={0,2})",
        3.0,
    ),
    rule(
        "signed address",
        "sig=|signature=",
        r"[?&;](?i:sig|X-Amz-Signature|X-Goog-Signature)=([A-Za-z0-9%+/=_-]{32,})",
        3.0,
    ),
    // [anthropic-api-key] [anthropic-admin-api-key] [anthropic-oauth-token]
    rule(
        "Anthropic key",
        "sk-ant-",
        r"\bsk-ant-[a-z0-9]+-[\w-]{24,}",
        3.0,
    ),
    // [openai-api-key], and those who took over its looks
    rule(
        "OpenAI key",
        "sk-",
        r"\bsk-(?:(?:proj|svcacct|admin|or-v1)-[\w-]{32,}|[A-Za-z0-9]{32,})",
        3.0,
    ),
    rule("Groq key", "gsk_", r"\bgsk_[A-Za-z0-9]{40,}", 3.0),
    rule("xAI key", "xai-", r"\bxai-[A-Za-z0-9]{60,}", 3.0),
    rule("Perplexity key", "pplx-", r"\bpplx-[A-Za-z0-9]{40,}", 3.0),
    rule("Replicate token", "r8_", r"\br8_[A-Za-z0-9]{36,}", 3.0),
    // [huggingface-access-token] [huggingface-organization-api-token]
    rule(
        "Hugging Face token",
        "hf_|api_org_",
        r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}",
        3.0,
    ),
    // [github-pat] [github-oauth] [github-app-token] [github-refresh-token]
    rule(
        "GitHub token",
        "gh[pousr]_",
        r"\bgh[pousr]_[A-Za-z0-9]{36,}",
        3.0,
    ),
    // [github-fine-grained-pat]
    rule("GitHub token", "github_pat_", r"\bgithub_pat_\w{40,}", 3.0),
    // [gitlab-pat] and its relatives, [gitlab-rrt]
    rule(
        "GitLab token",
        "gl[a-z]+-|GR1348941",
        r"\b(?:gl(?:pat|dt|ft|ptt|rt|soat|cbt|imt|agent|oas|ffct)-|GR1348941)[\w-]{20,}(?:\.[0-9a-z]{7,})?",
        3.0,
    ),
    // [slack-bot-token] [slack-user-token] [slack-legacy-token] [slack-config-access-token]
    rule(
        "Slack token",
        "xox[a-z][-.]",
        r"\bxox[abeoprs](?:\.xox[bp])?-(?:[0-9]{1,14}-){1,4}[A-Za-z0-9-]{8,}",
        2.5,
    ),
    // [slack-app-token]
    rule(
        "Slack token",
        "xapp-",
        r"\bxapp-\d-[A-Z0-9]+-\d+-[a-z0-9]{16,}",
        2.5,
    ),
    // [slack-webhook-url], Discord's and Microsoft's [microsoft-teams-webhook]
    rule(
        "Slack webhook",
        r"hooks\.slack\.com",
        r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9+/]{40,})",
        3.0,
    ),
    rule(
        "Discord webhook",
        "api/webhooks/",
        r"discord(?:app)?\.com/api/webhooks/(\d{15,}/[\w-]{50,})",
        3.0,
    ),
    rule(
        "Teams webhook",
        r"webhook\.office\.com",
        r"webhook\.office\.com/webhookb2/([\w@-]{36,}/IncomingWebhook/[\w/-]{32,})",
        3.0,
    ),
    // Discord's own shape of a token: id, time, signature
    rule(
        "Discord token",
        r"\.[\w-]{6}\.",
        r"\b[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}",
        4.0,
    ),
    // [telegram-bot-api-token], also in an address
    rule(
        "Telegram bot token",
        ":A",
        r"(?:\b|bot)([0-9]{5,16}:A[\w-]{34})(?:(?u:[^A-Za-z0-9_-])|$)",
        3.0,
    ),
    // [stripe-access-token], its webhooks' secrets
    rule(
        "Stripe key",
        "_live_|_test_|_prod_",
        r"\b[sr]k_(?:live|test|prod)_[A-Za-z0-9]{10,}",
        3.0,
    ),
    rule(
        "webhook secret",
        "whsec_",
        r"\bwhsec_[A-Za-z0-9+/]{24,}={0,2}",
        3.0,
    ),
    // [twilio-api-key]
    rule("Twilio key", "SK[0-9a-f]", r"\bSK[0-9a-f]{32}\b", 3.0),
    // [sendgrid-api-token]
    rule(
        "SendGrid key",
        r"SG\.",
        r"\bSG\.[\w-]{16,}\.[\w-]{32,}",
        3.0,
    ),
    // [mailgun-private-api-token] [mailchimp-api-key]
    rule("Mailgun key", "key-", r"\bkey-[0-9a-f]{32}\b", 3.0),
    rule(
        "Mailchimp key",
        r"-us\d",
        r"\b[0-9a-f]{32}-us\d{1,2}\b",
        3.0,
    ),
    // [npm-access-token] [pypi-upload-token] [rubygems-api-token]
    rule("npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36,}", 3.0),
    rule("PyPI token", "pypi-", r"\bpypi-[\w-]{50,}", 3.0),
    rule("RubyGems key", "rubygems_", r"\brubygems_[0-9a-f]{48}", 3.0),
    rule(
        "Docker token",
        "dckr_",
        r"\bdckr_(?:pat|oat)_[\w-]{27,}",
        3.0,
    ),
    // [digitalocean-pat] [digitalocean-access-token] [digitalocean-refresh-token]
    rule(
        "DigitalOcean token",
        r"do[opr]_v1_",
        r"\bdo[opr]_v1_[0-9a-f]{64}",
        3.0,
    ),
    // [databricks-api-token] [shopify-access-token] and its relatives [square-access-token]
    rule("Databricks token", "dapi", r"\bdapi[0-9a-f]{32}\b", 3.0),
    rule(
        "Shopify token",
        "shp[acpst]",
        r"\bshp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32}",
        3.0,
    ),
    rule("Square token", "sq0", r"\bsq0[a-z]{3}-[\w-]{22,}", 3.0),
    // [vault-service-token] [vault-batch-token] [hashicorp-tf-api-token]
    rule("Vault token", r"hv[sbr]\.", r"\bhv[sbr]\.[\w-]{24,}", 3.0),
    rule(
        "Terraform token",
        "atlasv1",
        r"\b[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,}",
        3.0,
    ),
    // [grafana-service-account-token] [grafana-cloud-api-token] [linear-api-key]
    rule(
        "Grafana token",
        "gls?[ac]_",
        r"\b(?:glsa|glc)_[A-Za-z0-9+/_]{32,}",
        3.0,
    ),
    rule(
        "Linear key",
        "lin_(?:api|oauth)_",
        r"\blin_(?:api|oauth)_[A-Za-z0-9]{40,}",
        3.0,
    ),
    // [notion-api-token] [atlassian-api-token] [age-secret-key]
    rule("Notion token", "ntn_", r"\bntn_[A-Za-z0-9]{40,}", 3.0),
    rule("Atlassian token", "ATATT3", r"\bATATT3[\w=-]{100,}", 3.0),
    rule(
        "age key",
        "AGE-SECRET-KEY-",
        r"\bAGE-SECRET-KEY-1[A-Z0-9]{50,}",
        3.0,
    ),
    // [jwt]
    rule("JWT", "eyJ", r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]*", 3.0),
    // [curl-auth-user], and any other address with a password in it
    rule(
        "password in an address",
        "://",
        r#"://(?u:[^\t\n\r\x20/:@'"<>]){0,128}:((?u:[^\t\n\r\x20/@'"<>]){3,200})@[\w.\[-]"#,
        0.5,
    ),
];

/// Which rules may find something, by their key words.
static NEAR: LazyLock<Option<RegexSet>> = LazyLock::new(|| {
    let near = RULES.iter().map(|rule| rule.near);
    RegexSetBuilder::new(near)
        .unicode(false)
        .case_insensitive(true)
        .build()
        .ok()
});

pub(super) fn find(text: &str, found: &mut Vec<Finding>) {
    // Without the key words, which always compile, every rule would be tried.
    let near = NEAR.as_ref().map(|set| set.matches(text));
    for (place, rule) in RULES.iter().enumerate() {
        if near.as_ref().is_none_or(|near| near.matched(place)) {
            rule.find(text, found);
        }
    }
}

impl Rule {
    fn find(&self, text: &str, found: &mut Vec<Finding>) {
        let Some(regex) = self.regex() else { return };
        for captures in regex.captures_iter(text) {
            let Some(secret) = captures.get(1).or_else(|| captures.get(0)) else {
                continue;
            };
            if self.is_secret(secret.as_str()) {
                found.push(Finding {
                    range: secret.range(),
                    what: self.what,
                });
            }
        }
    }

    fn is_secret(&self, secret: &str) -> bool {
        entropy_bits(secret) >= self.bits && !is_placeholder(secret) && !is_word(secret)
    }

    fn regex(&self) -> Option<&Regex> {
        self.regex.get_or_init(|| compiled(self.pattern)).as_ref()
    }
}

/// Compiles a pattern of ASCII; its cache of states is kept small, since each thread that
/// looks for secrets has one.
pub(super) fn compiled(pattern: &str) -> Option<Regex> {
    RegexBuilder::new(pattern)
        .unicode(false)
        .dfa_size_limit(256 << 10)
        .build()
        .ok()
}

/// True for what stands for a password in documentation.
fn is_word(secret: &str) -> bool {
    matches!(
        secret,
        "password" | "pass" | "pwd" | "secret" | "passwd" | "pw" | "xxx"
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn every_rule_compiles_and_its_key_words_too() {
        assert!(NEAR.is_some());
        for rule in &RULES {
            assert!(rule.regex().is_some(), "{}: {}", rule.what, rule.pattern);
        }
    }

    /// The names of all rules.
    pub(in super::super) fn names() -> impl Iterator<Item = &'static str> {
        RULES.iter().map(|rule| rule.what)
    }
}
