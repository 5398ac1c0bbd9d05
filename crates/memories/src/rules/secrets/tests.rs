//! Which texts are secrets. Keys are generated piece by piece, so that the source contains none.

use proptest::prelude::*;

use super::*;

const ALPHANUMERIC: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const HEX: &str = "0123456789abcdef";
const BASE32: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// Generates `count` characters without a pattern, by a linear congruential generator.
fn made_of(alphabet: &str, count: usize) -> String {
    let alphabet = alphabet.as_bytes();
    let mut state = 88_172_645_463_325_252_u64;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        char::from(alphabet[(state >> 33) as usize % alphabet.len()])
    };
    (0..count).map(next).collect()
}

fn key(count: usize) -> String {
    made_of(ALPHANUMERIC, count)
}

fn secret(count: usize) -> String {
    made_of(&format!("{ALPHANUMERIC}+/"), count)
}

fn hex(count: usize) -> String {
    made_of(HEX, count)
}

fn digits(count: usize) -> String {
    made_of("0123456789", count)
}

/// A secret of each provider, with its name.
fn of_providers() -> Vec<(&'static str, String)> {
    let (jwt_head, jwt_body) = (key(20), key(40));
    vec![
        ("AWS access key", format!("AKIA{}", made_of(BASE32, 16))),
        ("Google API key", format!("AIza{}", key(35))),
        ("Google client secret", format!("GOCSPX-{}", key(28))),
        ("Google access token", format!("ya29.{}", key(60))),
        ("Azure client secret", format!("abC8Q~{}", key(34))),
        ("Anthropic key", format!("sk-ant-api03-{}AA", key(93))),
        ("OpenAI key", format!("sk-proj-{}", key(120))),
        ("OpenAI key", format!("sk-{}", key(48))),
        ("Groq key", format!("gsk_{}", key(52))),
        ("xAI key", format!("xai-{}", key(80))),
        ("Perplexity key", format!("pplx-{}", key(48))),
        ("Replicate token", format!("r8_{}", key(37))),
        ("Hugging Face token", format!("hf_{}", key(34))),
        ("GitHub token", format!("ghp_{}", key(36))),
        ("GitHub token", format!("gho_{}", key(36))),
        ("GitHub token", format!("ghs_{}", key(36))),
        (
            "GitHub token",
            format!("github_pat_{}_{}", key(22), key(59)),
        ),
        ("GitLab token", format!("glpat-{}", key(20))),
        (
            "Slack token",
            format!("xoxb-{}-{}-{}", digits(12), digits(13), key(24)),
        ),
        (
            "Slack token",
            format!("xoxp-{0}-{0}-{0}-{1}", digits(11), hex(32)),
        ),
        (
            "Slack token",
            format!("xapp-1-A{}-{}-{}", digits(10), digits(13), hex(64)),
        ),
        (
            "Discord token",
            format!("M{}.{}.{}", key(25), "G1abcd", key(38)),
        ),
        ("Telegram bot token", format!("{}:A{}", digits(9), key(34))),
        ("Stripe key", format!("sk_{}_{}", "live", key(24))),
        ("Stripe key", format!("rk_{}_{}", "live", key(24))),
        ("webhook secret", format!("whsec_{}", key(32))),
        ("Twilio key", format!("SK{}", hex(32))),
        ("Twilio key", format!("AC{}", hex(32))),
        ("Twilio key", format!("AC{}:{}", hex(32), hex(32))),
        ("LangSmith key", format!("lsv2_pt_{}_{}", hex(32), hex(10))),
        ("LangSmith key", format!("lsv2_sk_{}_{}", hex(32), hex(10))),
        ("Supabase key", format!("sbp_{}", hex(40))),
        ("Supabase key", format!("sb_secret_{}", key(31))),
        ("SendGrid key", format!("SG.{}.{}", key(22), key(43))),
        ("Mailgun key", format!("key-{}", hex(32))),
        ("Mailchimp key", format!("{}-us12", hex(32))),
        ("npm token", format!("npm_{}", key(36))),
        ("PyPI token", format!("pypi-AgEIcHlwaS5vcmc{}", key(80))),
        ("RubyGems key", format!("rubygems_{}", hex(48))),
        ("Docker token", format!("dckr_pat_{}", key(27))),
        ("DigitalOcean token", format!("dop_v1_{}", hex(64))),
        ("Databricks token", format!("dapi{}", hex(32))),
        ("Shopify token", format!("shpat_{}", hex(32))),
        ("Square token", format!("sq0csp-{}", key(43))),
        ("Vault token", format!("hvs.{}", key(90))),
        (
            "Terraform token",
            format!("{}.atlasv1.{}", key(14), key(67)),
        ),
        ("Grafana token", format!("glsa_{}_{}", key(32), hex(8))),
        ("Linear key", format!("lin_api_{}", key(40))),
        ("Notion token", format!("ntn_{}", key(46))),
        ("Atlassian token", format!("ATATT3{}", key(186))),
        (
            "age key",
            format!("AGE-SECRET-KEY-1{}", made_of(BASE32, 58)),
        ),
        ("JWT", format!("eyJ{jwt_head}.eyJ{jwt_body}.{}", key(43))),
    ]
}

/// Texts with their secret between two brackets.
fn told() -> Vec<(&'static str, String)> {
    let pem = |name: &str| {
        let (begin, end) = (["-----BEGIN", name], ["-----END", name]);
        let body = [key(64), key(64), key(40)].join("\n");
        format!(
            "⟦{}-----\n{body}==\n{}-----⟧\nThanks!",
            begin.join(" "),
            end.join(" ")
        )
    };
    let cut = format!("{} {}-----\n{}", "-----BEGIN", "RSA PRIVATE KEY", key(64));
    let json = pem("PRIVATE KEY")
        .replace('\n', "\\n")
        .replace('⟧', "⟧\\n\", \"id\": 1");
    let signed = format!(
        "https://a.blob.core.windows.net/b?se=2026-11-22&sig=⟦{}%3D⟧",
        key(43)
    );
    let uuid = "0b5f4f5e-98c1-4d2f-9d0a-6a1f0c9f4b7e";
    let teams = format!("{uuid}@{uuid}/IncomingWebhook/{}/{uuid}", hex(32));
    vec![
        ("private key", pem("PRIVATE KEY")),
        ("private key", pem("RSA PRIVATE KEY")),
        ("private key", pem("OPENSSH PRIVATE KEY")),
        ("PGP private key", pem("PGP PRIVATE KEY BLOCK")),
        ("private key", format!("my key: ⟦{cut}⟧")),
        ("private key", format!("{{\"private_key\": \"{json}")),
        (
            "AWS secret key",
            format!("my aws secret access key is ⟦{}⟧", secret(40)),
        ),
        (
            "AWS secret key",
            format!("AWS_SECRET_ACCESS_KEY=⟦{}⟧", secret(40)),
        ),
        (
            "Twilio token",
            format!("my twilio auth token ⟦{}⟧, keep it", hex(32)),
        ),
        ("Twilio token", format!("TWILIO_AUTH_TOKEN=⟦{}⟧", hex(32))),
        (
            "Azure account key",
            format!("AccountName=a;AccountKey=⟦{}==⟧;B=c", key(86)),
        ),
        ("signed address", signed),
        (
            "Slack webhook",
            format!(
                "https://hooks.slack.com/services/⟦T{}/B{}⟧",
                key(20),
                key(23)
            ),
        ),
        (
            "Discord webhook",
            format!(
                "https://discord.com/api/webhooks/⟦{}/{}⟧",
                digits(18),
                key(68)
            ),
        ),
        (
            "Teams webhook",
            format!("https://a.webhook.office.com/webhookb2/⟦{teams}⟧"),
        ),
        (
            "Telegram bot token",
            format!("api.telegram.org/bot⟦{}:A{}⟧/getMe", digits(10), key(34)),
        ),
        (
            "password in an address",
            format!("postgres://ann:⟦{}⟧@db.local:5432/app", "s3cr3t!pw"),
        ),
        (
            "password in an address",
            format!("redis://:⟦{}⟧@10.0.0.1", key(12)),
        ),
        (
            "token",
            format!("curl -H 'Authorization: Bearer ⟦{}⟧' host", key(32)),
        ),
        ("token", format!("Authorization: Basic ⟦{}=⟧", key(31))),
        (
            "password",
            "The wifi password is ⟦Blue-Horse-42⟧.".to_owned(),
        ),
        (
            "password",
            "my password is ⟦hunter22⟧, please keep it".to_owned(),
        ),
        (
            "password",
            "password for the old router is ⟦pa$$word!⟧".to_owned(),
        ),
        (
            "password",
            "Her passcode was changed to ⟦482913⟧.".replace("was ", ""),
        ),
        ("password", "DB_PASSWORD=⟦Zx81_spectrum⟧".to_owned()),
        ("password", "\"password\": \"⟦tr0ub4dor&3⟧\"".to_owned()),
        ("password", "<password>⟦tr0ub4dor3⟧</password>".to_owned()),
        ("password", "mysql --password ⟦tr0ub4dor3⟧ app".to_owned()),
        ("password", "Das Passwort ist ⟦Sommer2026!⟧".to_owned()),
        ("password", "la contraseña es ⟦Verano2026⟧".to_owned()),
        ("token", format!("api_key: ⟦{}⟧", key(24))),
        ("token", format!("Her API key is `⟦{}⟧`.", key(32))),
        ("token", format!("client-secret => '⟦{}⟧'", hex(40))),
        ("token", format!("export MY_TOKEN=⟦{}⟧", key(20))),
        ("token", format!("access token: ⟦{uuid}⟧")),
        (
            "token",
            format!("token={{'a': 1}} token: \"⟦{}⟧\"", key(2_000)),
        ),
        (
            "password",
            "passwords: [] password: '⟦p\"ss`w0rd⟧'".to_owned(),
        ),
        (
            "recovery phrase",
            "seed phrase: ⟦army van defense carry jealous true garbage claim echo media make \
             crunch⟧"
                .to_owned(),
        ),
        (
            "card number",
            "my card is ⟦4111 1111 1111 1111⟧, exp 12/28".to_owned(),
        ),
        ("card number", "pay with ⟦4012888888881881⟧".to_owned()),
        ("card number", "⟦5555-5555-5555-4444⟧".to_owned()),
        ("card number", "amex ⟦3782 822463 10005⟧".to_owned()),
        ("card number", "⟦6011111111111117⟧".to_owned()),
        ("card number", "⟦3530111333300000⟧".to_owned()),
        ("card number", "diners ⟦3056 930902 5904⟧".to_owned()),
        ("card number", "visa card ⟦4222222222222⟧".to_owned()),
        ("card number", "card=⟦2223003122003222⟧&cvc=1".to_owned()),
        ("card number", "my card: ⟦4111.1111.1111.1111⟧.".to_owned()),
        (
            "card number",
            "⟦4111\u{a0}1111\u{a0}1111\u{a0}1111⟧".to_owned(),
        ),
        ("card number", "⟦4111–1111–1111–1111⟧".to_owned()),
        (
            "card number",
            "a\u{200b} ⟦4111\u{200b}1111\u{2060}1111\u{ad}1111⟧".to_owned(),
        ),
        (
            "card number",
            "是 ⟦４１１１１１１１１１１１１１１１⟧ é".to_owned(),
        ),
        ("card number", "⟦٤١١١١١١١١١١١١١١١⟧".to_owned()),
        ("card number", "⟦४१११ ११११ ११११ ११११⟧".to_owned()),
        (
            "GitHub token",
            format!("é ⟦ghp_{}\u{200b}{}⟧ é", key(12), key(24)),
        ),
        (
            "GitHub token",
            format!("note ⟦ghp_{}\n{}⟧ end", key(19), key(17)),
        ),
        (
            "GitHub token",
            format!("⟦ｇｈｐ＿{}\r\n{}⟧", key(19), key(17)),
        ),
        (
            "Google client secret",
            format!("{{\"client_secret\":\"⟦GOCSPX-{}⟧\"}}", key(24)),
        ),
        ("password", "pwd='⟦correct horse⟧'".to_owned()),
        (
            "password",
            "\"password\": \"⟦Blue horses fly⟧\", \"id\": 1".to_owned(),
        ),
    ]
}

/// Passwords with labels in other languages. The secret is between the brackets.
const FOREIGN: &[&str] = &[
    // Portuguese
    "a senha é ⟦Verao2026!⟧",
    "Minha senha do wifi é ⟦cafe1234⟧.",
    "senha: ⟦hunter22⟧",
    "A palavra-passe do router é agora ⟦Azul-42x⟧",
    "password é ⟦hunter22⟧",
    // Italian
    "la password è ⟦Estate2026!⟧",
    "la password del wifi è ⟦estate26⟧",
    "La mia parola d'ordine: ⟦estate26⟧",
    "password: «⟦estate26⟧»",
    // Dutch
    "mijn wachtwoord is ⟦zomer2026⟧",
    "Het wifiwachtwoord luidt ⟦Zomer-26x⟧",
    "wachtwoord voor de mail: ⟦zomer2026⟧",
    // Polish
    "moje hasło to ⟦lato2026⟧",
    "Hasło do wifi: ⟦Lato2026!⟧",
    "Hasło do wifi jest ⟦Lato2026!⟧",
    "hasło: ⟦lato2026⟧",
    "haslo = ⟦lato2026⟧",
    // Russian
    "пароль: ⟦leto2026⟧",
    "Мой пароль ⟦leto2026⟧",
    "Пароль от вайфая — ⟦leto2026⟧",
    "пароль от почты: ⟦Лето2026⟧",
    "ПАРОЛЬ: ⟦leto2026⟧",
    // Ukrainian
    "мій пароль — ⟦lito2026⟧",
    "Пароль до пошти це ⟦lito2026⟧",
    // Chinese
    "密码是⟦hunter22⟧",
    "我的密码：⟦hunter22⟧",
    "WiFi 密碼為 ⟦hunter22⟧。",
    "密码是⟦hunter22⟧，请记住",
    "我的密码现在是「⟦hunter22⟧」",
    // Japanese
    "パスワードは⟦hunter22⟧です",
    "WiFiのパスワードは「⟦hunter22⟧」です。",
    "パスワード：⟦hunter22⟧",
    // Korean
    "비밀번호는 ⟦hunter22⟧입니다",
    "비밀번호: ⟦hunter22⟧",
    "와이파이 비번은 ⟦hunter22⟧이야",
    // Arabic
    "كلمة المرور هي ⟦hunter22⟧",
    "كلمة السر: ⟦hunter22⟧",
    "كلمة مرور الواي فاي هي ⟦hunter22⟧",
    // Turkish
    "şifrem ⟦hunter22⟧",
    "Wifi şifresi: ⟦Yaz2026!⟧",
    "ŞİFRE: ⟦hunter22⟧",
    "parolam ⟦hunter22⟧",
    // Hindi
    "मेरा पासवर्ड ⟦hunter22⟧ है",
    "पासवर्ड: ⟦hunter22⟧",
    "वाईफाई का पासवर्ड है ⟦hunter22⟧।",
    // Swedish
    "mitt lösenord är ⟦sommar26⟧",
    "Lösenordet till wifi är ⟦Sommar26!⟧",
    "lo\u{308}senord: ⟦sommar26⟧",
    // Others
    "le mot de passe est ⟦Ete2026!⟧",
    "Das WLAN-Passwort lautet ⟦Sommer26⟧",
    "adgangskoden er ⟦sommer26⟧",
    "Passordet er ⟦sommer26⟧",
    "heslo je ⟦leto2026⟧",
    "รหัสผ่านคือ ⟦hunter22⟧",
    "סיסמה: ⟦hunter22⟧",
    "mật khẩu là ⟦hunter22⟧",
];

/// Sentences about passwords that contain none.
const FOREIGN_HARMLESS: &[&str] = &[
    "Das Passwort ist zu kurz",
    "I forgot my password",
    "Esqueci a minha senha, ela é muito curta e precisa de 8 caracteres",
    "A senha é obrigatória e expira em 2026-11-22",
    "ela desenha bem: desenhar2",
    "Ho dimenticato la password, è troppo corta",
    "La parola chiave è fiducia",
    "Ik ben mijn wachtwoord vergeten, het is te kort",
    "Het wachtwoord is verplicht",
    "Zapomniałem hasła, hasło to podstawa",
    "hasło musi mieć co najmniej 8 znaków",
    "Я забыл пароль от почты",
    "пароль должен быть не короче 12345 символов",
    "Пароль слишком короткий",
    "пароль хранится в 1Password, пароль Windows10 сброшен",
    "Я забув пароль до пошти",
    "我忘记了密码",
    "密码必须至少8位，密码是必填项",
    "密码是SHA256加密的",
    "パスワードを忘れました",
    "パスワードは8文字以上です",
    "パスワードはSHA256で保存されます",
    "비밀번호를 잊어버렸어요",
    "비밀번호는 8자 이상이어야 합니다",
    "نسيت كلمة المرور الخاصة بي",
    "كلمة المرور قصيرة جدا",
    "şifremi unuttum, şifre çok kısa",
    "मैं अपना पासवर्ड भूल गया, पासवर्ड बहुत छोटा है",
    "Jag har glömt mitt lösenord, det är för kort",
    "Lösenordet är för kort och byts 2026-11-22",
    "le mot de passe est trop court",
    "La contraseña es demasiado corta",
    "I need the password to server42, and the password on router42",
    "user e password e hotel2026",
    "ACCESS to SKYLINE and sbp_ is a prefix, as is lsv2_pt_",
];

/// Texts without secrets.
fn harmless() -> Vec<String> {
    let image = format!(
        "![x](data:image/png;base64,iVBORw0KGgo{}+/{}=)",
        key(900),
        key(3_000)
    );
    let texts = HARMLESS.iter().chain(FOREIGN_HARMLESS);
    let mut texts: Vec<String> = texts.map(|text| (*text).to_owned()).collect();
    texts.extend([
        image,
        format!("commit {} fixed it, see also aws {}", hex(40), hex(40)),
        format!("sha256:{} of the image", hex(64)),
        format!(
            "{} is a public key",
            format_args!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{}", key(43))
        ),
        format!(
            "{0} PUBLIC KEY-----\n{1}\n{2} PUBLIC KEY-----",
            "-----BEGIN",
            key(64),
            "-----END"
        ),
        format!(
            "A key starts with {} PRIVATE KEY----- and so on.",
            "-----BEGIN"
        ),
        format!("AKIA{}EXAMPLE", made_of(BASE32, 9)),
        format!("ghp_{}", "x".repeat(36)),
    ]);
    texts
}

const HARMLESS: &[&str] = &[
    "",
    "Ann likes tea, not coffee.",
    "Her flight is LH454 on 2026-11-22, reservation EHGLP3, seat 12A.",
    "ticket number 220-2400123456",
    "id 0b5f4f5e-98c1-4d2f-9d0a-6a1f0c9f4b7e and 01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "call +49 151 23456789 or 0049 4012 8888 8888 1881 or (555) 010-4477",
    "phone 4012888888881881",
    "order 4012888888881881 and tracking no. 4111111111111111 are late",
    "invoice #4111111111111111",
    "EAN 4006381333931, ISBN 978-3-16-148410-0, IMEI 490154203237518",
    "UPS 1Z999AA10123456784, USPS 9400 1000 0000 0000 0000 00, DHL 00340434161094042557",
    "message 1049312345678901234 in channel 812345678901234567",
    "it costs 4,111,111,111,111,111 dollars or 0.4111111111111111 or 1.299,00 EUR",
    "4111 1111 1111 1112 fails its check digit and 1234 5678 9012 3452 has no issuer",
    "4111 1111-1111 1111 is no way to write it, nor is 41 11 11 11 11 11 11 11",
    "https://shop.example/items/4111111111111111?ref=4",
    "at 1763800000000 ms, 1763800000000000000 ns",
    "DE89 3704 0044 0532 0130 00 is her IBAN",
    "The password is required and must be at least 8 characters.",
    "Her password is stored in 1Password, not here.",
    "password: optional",
    "The password is SHA256-hashed with 12-character salts",
    "password = os.environ['DB_PASSWORD']",
    "password = getpass.getpass()",
    "password == user.password1",
    "password: ${DB_PASSWORD} or {{ db_password }} or <your password> or ********",
    "\"password\": \"string\", \"token\": \"string\"",
    "Forgot your password? Reset it until 2026-11-22.",
    "The token is in the vault; the secret is out: she likes Mondays.",
    "max_tokens: 128000, token count: 12800000, next_page_token: eyJvZmZzZXQiOjEwMH0",
    "the api key is read from config.services.payment_v2",
    "api_key: see-the-wiki-page-2026",
    "API_KEY=your_api_key_goes_here_12345",
    "secret santa is Bob this year; the secret ingredient is cinnamon",
    "the bearer of good news; bearer token authentication is on",
    "basic research is fun: basic income experiment2024",
    "https://medium.com:443/@ann and http://localhost:8080/a@b",
    "postgres://user:password@localhost/db and https://<user>:<token>@host",
    "mailto:ann@example.com, ssh git@github.com:ann/notes.git",
    "https://indieweb.org/images/3/35/2018-250-xoxo-indieweb-1.jpg",
    "sk-learn, sk-SK locale, hf_transfer, npm_config_registry, ghp_ is a prefix",
    "the seed phrase is something you keep in a safe place and never share with anyone else",
    "TODAYINASIAASACKOFRICEFELLOVER",
    "v1.2.3-rc.4+build.5678, x86_64-unknown-linux-gnu, 192.168.178.100:7717",
    "Größe 41, Straße 12, 東京都 100-0001, 😀 4111",
    "resetPasswordConfirmation = forgottenPasswordToken",
    "token: resetPasswordConfirmation",
    "the keyboard is a Model M 1391401",
    "\"password\": \"wrong password\", pwd='enter it here'",
    "password: \"At least 8 characters\", passcode = 'too short'",
    "versions 4111.1111.1111.1112, 10.11.12.13 and ４１ or ٤١١١",
    "it begins with ghp_\nand goes on in the next line, or sk-\nthe other",
];

/// Removes the brackets from a text, and returns the range of the secret.
fn unmarked(text: &str) -> (String, Range<usize>) {
    let start = text.find('⟦').expect("a mark");
    let end = text.find('⟧').expect("its end") - '⟦'.len_utf8();
    (text.replace(['⟦', '⟧'], ""), start..end)
}

fn all() -> Vec<(&'static str, String)> {
    let bare = of_providers().into_iter().flat_map(|(what, key)| {
        let texts = ["⟦{}⟧", "use ⟦{}⟧, please", "x=\"⟦{}⟧\"", "Ünï:\n⟦{}⟧\n"];
        texts.map(|text| (what, text.replace("{}", &key)))
    });
    let foreign = FOREIGN.iter().map(|text| ("password", (*text).to_owned()));
    bare.chain(told()).chain(foreign).collect()
}

/// Reports all mistakes at once.
#[track_caller]
fn none(mistakes: impl Iterator<Item = String>) {
    let mistakes: Vec<String> = mistakes.collect();
    assert!(
        mistakes.is_empty(),
        "{} mistakes:\n{}",
        mistakes.len(),
        mistakes.join("\n\n")
    );
}

#[test]
fn secrets_are_found_with_exact_ranges() {
    let missed = all().into_iter().filter_map(|(what, text)| {
        let (text, range) = unmarked(&text);
        let found = find(&text);
        (found != [Finding { range, what }]).then(|| format!("{what}: {text}\n{found:?}"))
    });
    none(missed);
}

#[test]
fn every_rule_has_a_finding() {
    let shown: Vec<&str> = all().into_iter().map(|(what, _)| what).collect();
    for name in rules::tests::names() {
        assert!(shown.contains(&name), "{name} is not shown");
    }
}

#[test]
fn texts_without_secrets_pass() {
    let taken = harmless().into_iter().filter_map(|text| {
        let found = find(&text);
        let shown: Vec<&str> = found
            .iter()
            .map(|found| &text[found.range.clone()])
            .collect();
        (!found.is_empty()).then(|| format!("{text}\n{found:?} {shown:?}"))
    });
    none(taken);
}

#[test]
fn policy_blocks_redacts_or_allows() {
    let token = format!("ghp_{}", key(36));
    let text = format!("é {token} and password=hunter22");
    let error = admit("content", &text, SecretPolicy::Block).unwrap_err();
    assert_eq!(
        error,
        MemoryError::SecretFound {
            field: "content",
            what: "GitHub token"
        }
    );
    assert!(!error.to_string().contains(&token[4..12]));
    let (kept, count) = admit("content", &text, SecretPolicy::Redact).unwrap();
    assert_eq!(
        kept,
        "é [redacted: GitHub token] and password=[redacted: password]"
    );
    assert_eq!(count, 2);
    assert_eq!(
        admit("content", &text, SecretPolicy::Allow).unwrap(),
        (text, 0)
    );
    let plain = "nothing here".to_owned();
    assert_eq!(
        admit("content", &plain, SecretPolicy::Block).unwrap(),
        (plain, 0)
    );
}

#[test]
fn redacted_text_contains_no_secret() {
    let left = all().into_iter().filter_map(|(_, text)| {
        let (text, range) = unmarked(&text);
        let kept = redacted(&text, &find(&text));
        (kept.contains(&text[range]) || !find(&kept).is_empty()).then_some(kept)
    });
    none(left);
}

#[test]
fn most_certain_rule_names_the_finding() {
    let token = format!("glpat-{}", key(20));
    let text = format!("GITLAB_TOKEN={token}; password = {token}");
    let what: Vec<&str> = find(&text).iter().map(|found| found.what).collect();
    assert_eq!(what, ["GitLab token", "GitLab token"]);
}

/// Texts that would take hours if time were not linear.
#[test]
fn hostile_texts_are_searched_completely() {
    let header = format!("{} PRIVATE KEY-----", "-----BEGIN");
    let pieces = [
        "4",
        "4111 ",
        "4-",
        "://a:",
        "://:",
        "password ",
        "password for a ",
        "password is ",
        "secret secret_",
        "token=",
        "eyJ-",
        "eyJaaaaaaaaaa.",
        "a.aaaaaa.",
        "aws ",
        "aws=aaaaaaaa ",
        "seed phrase army ",
        "sk-",
        "sk-ant-a-",
        "1:A",
        "Q~",
        "gl",
        "bearer ",
        "key \"",
        "=",
        "é",
        &header,
        "-----END ",
        "-----",
    ];
    let token = format!("\nghp_{}", key(36));
    let all = pieces.concat();
    let texts = pieces
        .iter()
        .map(|piece| (*piece, 1 << 18))
        .chain([(all.as_str(), 1 << 20)]);
    for (piece, bytes) in texts {
        let text = piece.repeat(bytes / piece.len()) + &token;
        let expected = Finding {
            range: text.len() - 40..text.len(),
            what: "GitHub token",
        };
        assert_eq!(find(&text).last(), Some(&expected), "{piece}");
    }
}

proptest! {
    #[test]
    fn findings_are_ordered_disjoint_and_on_character_boundaries(
        parts in proptest::collection::vec(
            prop_oneof![
                proptest::sample::select(vec![
                    "password: ", "hunter22", "é", " ", "\n", "4111 1111 1111 1111", "://", "a:b@c",
                    "token=", "Zx81Qq2b7Rr9Kk3m", "-----BEGIN RSA PRIVATE ", "KEY-----", "\"", "eyJ",
                ]).prop_map(str::to_owned),
                "(?s).{0,8}",
            ],
            0..20,
        ),
    ) {
        let text = parts.concat();
        let found = find(&text);
        let mut end = 0;
        for finding in &found {
            prop_assert!(finding.range.start >= end && !finding.range.is_empty());
            prop_assert!(text.get(finding.range.clone()).is_some());
            end = finding.range.end;
        }
        prop_assert_eq!(redacted(&text, &found).matches("[redacted: ").count(),
            found.len() + text.matches("[redacted: ").count());
    }
}
