//! Words that tell what stands beside them.

/// Names of months. "may" with a small letter is a verb.
pub(super) const MONTHS: &[&str] = &[
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
    "Jan",
    "Feb",
    "Mar",
    "Apr",
    "Jun",
    "Jul",
    "Aug",
    "Sep",
    "Sept",
    "Oct",
    "Nov",
    "Dec",
];

/// Units and currencies, as they stand behind a number.
pub(super) const UNITS: &[&str] = &[
    "%", "percent", "USD", "EUR", "GBP", "JPY", "CHF", "CAD", "AUD", "INR", "CNY", "SEK", "NOK",
    "PLN", "dollars", "dollar", "euros", "euro", "pounds", "cents", "yen", "B", "KB", "kB", "MB",
    "GB", "TB", "KiB", "MiB", "GiB", "TiB", "bytes", "byte", "bits", "ns", "us", "µs", "ms", "s",
    "sec", "secs", "seconds", "second", "min", "mins", "minutes", "minute", "h", "hr", "hrs",
    "hours", "hour", "d", "days", "day", "weeks", "week", "months", "month", "years", "year", "mm",
    "cm", "m", "km", "mi", "ft", "miles", "mile", "g", "kg", "mg", "lb", "lbs", "oz", "ml", "l",
    "Hz", "kHz", "MHz", "GHz", "W", "kW", "kWh", "mAh", "°C", "°F", "°", "px", "pt", "tokens",
    "rows", "points", "fps", "Mbps", "Gbps", "rpm",
];

/// Currencies that also stand before a number.
pub(super) const CURRENCIES: &[&str] = &[
    "USD", "EUR", "GBP", "JPY", "CHF", "CAD", "AUD", "INR", "CNY",
];

/// Words before the number of an error or status.
pub(super) const CODES: &[&str] = &[
    "HTTP", "code", "status", "errno", "signal", "Error", "error", "Status", "Code",
];

/// Extensions of files.
pub(super) const EXTENSIONS: &[&str] = &[
    "rs", "py", "js", "ts", "tsx", "jsx", "mjs", "go", "c", "h", "cc", "cpp", "hpp", "java", "kt",
    "swift", "rb", "php", "cs", "scala", "sh", "bash", "ps1", "bat", "sql", "html", "css", "scss",
    "vue", "json", "jsonl", "yaml", "yml", "toml", "xml", "ini", "cfg", "conf", "env", "lock",
    "md", "rst", "txt", "csv", "tsv", "pdf", "doc", "docx", "xls", "xlsx", "ppt", "pptx", "odt",
    "png", "jpg", "jpeg", "gif", "svg", "webp", "mp3", "mp4", "wav", "zip", "gz", "tar", "tgz",
    "log", "db", "sqlite", "proto", "ipynb", "tex", "exe", "dll", "so", "whl", "jar", "patch",
    "diff", "bak", "tmp", "pem", "key", "crt",
];

/// Ends of names of hosts.
pub(super) const HOSTS: &[&str] = &[
    "com", "org", "net", "io", "dev", "app", "gov", "edu", "co", "uk", "de", "fr", "eu", "ai",
];

/// In the name of a value: it is money.
const MONEY: &[&str] = &[
    "price", "cost", "amount", "fee", "fare", "balance", "refund", "charge", "salary", "budget",
    "subtotal",
];

/// True of a key or label whose bare number is an amount: `price`, `unit_cost`, `total`.
pub(super) fn is_money(label: &str) -> bool {
    let label = label.to_ascii_lowercase();
    let is_count = ["count", "number", "items", "bag", "quantity", "id"]
        .iter()
        .any(|word| label.ends_with(word) || label.ends_with(&format!("{word}s")));
    let is_total = label == "total" || label.ends_with("_total") || label == "grandtotal";
    !is_count && (is_total || MONEY.iter().any(|word| label.contains(word)))
}

/// True of a key or label whose bare number is an id: `id`, `orderId`, `zip`, `last_four`.
pub(super) fn is_number_of(label: &str) -> bool {
    label.ends_with("id")
        || label.ends_with("Id")
        || label.ends_with("ID")
        || [
            "number",
            "no",
            "zip",
            "last_four",
            "port",
            "pid",
            "phone",
            "sku",
            "version",
            "code",
        ]
        .iter()
        .any(|word| label.eq_ignore_ascii_case(word))
        || label.ends_with("_number")
        || label.ends_with("_code")
}

/// Words that begin sentences or stand capitalised, and are no names. Sorted.
pub(super) const COMMON: &[&str] = &[
    "A",
    "AM",
    "AND",
    "Additionally",
    "After",
    "All",
    "Also",
    "Although",
    "Am",
    "An",
    "And",
    "Any",
    "Are",
    "As",
    "At",
    "Based",
    "Be",
    "Because",
    "Before",
    "But",
    "By",
    "Can",
    "Certainly",
    "Could",
    "Currently",
    "DO",
    "Dear",
    "Did",
    "Do",
    "Does",
    "Done",
    "Each",
    "Either",
    "Even",
    "First",
    "For",
    "From",
    "Given",
    "Go",
    "Good",
    "Great",
    "Had",
    "Has",
    "Have",
    "He",
    "Hello",
    "Her",
    "Here",
    "Hey",
    "Hi",
    "His",
    "How",
    "However",
    "I",
    "I'd",
    "I'll",
    "I'm",
    "I've",
    "ID",
    "IF",
    "IN",
    "IS",
    "IT",
    "If",
    "In",
    "Is",
    "It",
    "It's",
    "Its",
    "Just",
    "Let",
    "Let's",
    "Like",
    "Many",
    "May",
    "Maybe",
    "My",
    "NOT",
    "Need",
    "Neither",
    "No",
    "Not",
    "Note",
    "Now",
    "OF",
    "OK",
    "ON",
    "OR",
    "Of",
    "Oh",
    "Ok",
    "Okay",
    "On",
    "Once",
    "One",
    "Only",
    "Or",
    "Our",
    "PM",
    "Perhaps",
    "Please",
    "Second",
    "See",
    "Shall",
    "She",
    "Should",
    "Since",
    "So",
    "Some",
    "Sorry",
    "Sure",
    "TO",
    "Thank",
    "Thanks",
    "That",
    "That's",
    "The",
    "Their",
    "Then",
    "There",
    "There's",
    "These",
    "They",
    "Third",
    "This",
    "Those",
    "To",
    "Two",
    "Unfortunately",
    "Until",
    "Use",
    "Very",
    "Was",
    "We",
    "We'll",
    "We're",
    "Well",
    "Were",
    "What",
    "What's",
    "When",
    "Where",
    "Which",
    "While",
    "Who",
    "Why",
    "Will",
    "With",
    "Would",
    "YES",
    "Yes",
    "You",
    "You'll",
    "You're",
    "Your",
];

/// True of a word that is capitalised without being a name.
pub(super) fn is_common(word: &str) -> bool {
    // "I'm" and "It's", with any apostrophe.
    let word = word.split_once(['\'', '’']).map_or(word, |(word, _)| word);
    COMMON.binary_search(&word).is_ok()
}
