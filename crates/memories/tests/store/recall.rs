//! Which subject finds which memories.

use memoird_core::ids::SessionId;
use memoird_core::time::Timestamp;
use memoird_memories::rules::{MemoryKind, Patch, Source, Visibility};
use memoird_memories::{ForgetRequest, ListRequest, RecallRequest, RememberRequest};

use crate::kit::*;

fn numbers(kit: &Kit, ask: &RecallRequest) -> Vec<u64> {
    numbers_at(kit, at(1), ask)
}

fn numbers_at(kit: &Kit, now: Timestamp, ask: &RecallRequest) -> Vec<u64> {
    let mut found = by_words(&kit.recall_at(now, ask, None));
    found.sort_unstable();
    found
}

#[test]
fn words_match_with_other_endings_best_first() {
    let kit = Kit::new();
    kit.say(1, "ann", "The deployments run on Fridays");
    kit.say(2, "ann", "Crème brûlée is a dessert");
    kit.say(
        3,
        "ann",
        "The deployment needs a second reviewer on friday evenings",
    );
    assert_eq!(kit.found("ann", "creme"), [2]);
    assert_eq!(
        kit.found("ann", "who reviews the deployment?").first(),
        Some(&3)
    );
    assert_eq!(kit.found("ann", "deployment").len(), 2);
    assert_eq!(
        kit.found("ann", "\"NEAR(a) AND * -\""),
        [0; 0],
        "a query has no syntax"
    );
    assert_eq!(kit.found("ann", "nowhere"), [0; 0]);
}

#[test]
fn words_of_every_script_are_found() {
    // Content, words that find it, and words that do not.
    let cases: [(&str, &[&str], &[&str]); 20] = [
        (
            "मुझे चाय बहुत पसंद है",
            &["चाय", "क्या चाय पसंद"],
            &["कॉफ़ी", "चार"],
        ),
        ("আমার বিড়ালের নাম মিনি", &["মিনি", "নাম"], &["কুকুর"]),
        ("எனக்கு காபி பிடிக்கும்", &["காபி", "காபியை"], &["தேநீர்"]),
        ("నా కుక్క పేరు రాజు", &["రాజు", "కుక్క"], &["పిల్లి"]),
        ("කොළඹ ජීවත් වෙනවා", &["කොළඹ"], &["මහනුවර"]),
        ("ကျွန်တော် ရန်ကုန် မှာ နေတယ်", &["ရန်ကုန်"], &["မန္တလေး"]),
        ("ខ្ញុំចូលចិត្តកាហ្វេ", &["កាហ្វេ"], &["តែ"]),
        ("ຂ້ອຍຢູ່ວຽງຈັນ", &["ວຽງຈັນ"], &["ປາກເຊ"]),
        ("ฉันชอบกินขนมไทยตอนเช้า", &["ขนม", "เช้า"], &["กาแฟ"]),
        (
            "اسمه مُحَمَّد ويسكن في القاهرة",
            &["محمد", "القاهرة"],
            &["دمشق"],
        ),
        ("הוא גר בירושלים עם שָׁלוֹם", &["ירושלים", "שלום"], &["חיפה"]),
        ("私の名前は太郎です", &["太郎", "名前"], &["次郎", "住所"]),
        ("猫を二匹飼っている", &["猫", "猫はいますか"], &["犬"]),
        (
            "我用Python写代码，住在上海",
            &["python", "上海", "代码"],
            &["rust", "北京"],
        ),
        (
            "저는 서울에 살아요",
            &["서울", "\u{1109}\u{1165}\u{110b}\u{116e}\u{11af}"],
            &["부산"],
        ),
        ("Она живёт в Москве", &["Москва", "живет"], &["Минск"]),
        (
            "Der Kunde trägt Größe 42 und ist zufrieden",
            &["grösse", "GROESSE GRÖßE"],
            &["farbe"],
        ),
        ("Μένει στην Αθήνα", &["ΑΘΗΝΑ", "αθηνα"], &["Πάτρα"]),
        ("Köpeğimin adı Karabaş", &["karabas", "adi"], &["kedi"]),
        ("Ｆｕｌｌ ｗｉｄｔｈ ｶﾞｸｾｲ", &["full", "ガクセイ"], &["half"]),
    ];
    let kit = Kit::new();
    for (number, (said, ..)) in (1..).zip(cases) {
        kit.say(number, "ann", said);
    }
    kit.check_indexes();
    for (number, (said, asked, others)) in (1..).zip(cases) {
        for query in asked {
            assert_eq!(
                kit.found("ann", query).first(),
                Some(&number),
                "{query}: {said}"
            );
        }
        for query in others {
            assert!(
                !kit.found("ann", query).contains(&number),
                "{query}: {said}"
            );
        }
    }
}

#[test]
fn query_uses_languages_of_subject() {
    let kit = Kit::new();
    kit.say(1, "ann", "Die Hunde sind im Garten und nicht im Haus");
    kit.say(2, "bob", "The dogs are in the garden");
    assert_eq!(kit.found("ann", "Hund"), [1]);
    assert_eq!(kit.found("ann", "Häuser"), [1]);
    assert_eq!(kit.found("bob", "dog"), [2]);
    assert_eq!(
        kit.peek("SELECT count(*) FROM partitions WHERE languages & 2 = 2"),
        1
    );
}

#[test]
fn subject_finds_only_its_own_and_team_memories() {
    let kit = Kit::new();
    kit.say(1, "ann", "the secret plan");
    kit.say(2, "bob", "the secret diary");
    let team = RememberRequest {
        visibility: Visibility::Team,
        ..fact("bob", MemoryKind::Project, "the secret handshake")
    };
    kit.remember(order(3, team));
    for (who, expected) in [
        (vec!["ann"], vec![1, 3]),
        (vec!["bob"], vec![2, 3]),
        (vec!["ann", "bob", "ann"], vec![1, 2, 3]),
        (vec!["nobody"], vec![3]),
        (vec![], vec![3]),
    ] {
        assert_eq!(numbers(&kit, &ask(&who, "secret")), expected, "{who:?}");
    }
}

#[test]
fn filters_apply_before_the_limit() {
    let kit = Kit::new();
    for number in 0..30 {
        let mut plain = fact(
            "ann",
            MemoryKind::Project,
            &format!("tea tea number {number}"),
        );
        plain.observed_at = Some(at(0));
        kit.remember(order(number, plain));
    }
    let mut rare = fact(
        "ann",
        MemoryKind::Reference,
        "one more word about a cup of tea",
    );
    (rare.tags, rare.observed_at) = (vec!["a".into(), "b".into()], Some(at(-50)));
    kit.remember(order(100, rare));
    let mut partly = fact("ann", MemoryKind::Project, "tea with a tag");
    partly.tags = vec!["a".into()];
    kit.remember(order(101, partly));
    let base = RecallRequest {
        limit: 3,
        ..ask(&["ann"], "tea")
    };
    let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect();
    for (asked, expected) in [
        (
            RecallRequest {
                kinds: vec![MemoryKind::Reference],
                ..base.clone()
            },
            vec![100],
        ),
        (
            RecallRequest {
                tags: tags(&["a"]),
                ..base.clone()
            },
            vec![100, 101],
        ),
        (
            RecallRequest {
                tags: tags(&["b", "a"]),
                ..base.clone()
            },
            vec![100],
        ),
        (
            RecallRequest {
                tags: tags(&["a", "c"]),
                ..base.clone()
            },
            vec![],
        ),
        (
            RecallRequest {
                before: Some(at(0)),
                ..base.clone()
            },
            vec![100],
        ),
        (
            RecallRequest {
                kinds: vec![MemoryKind::User],
                ..base.clone()
            },
            vec![],
        ),
    ] {
        assert_eq!(numbers(&kit, &asked), expected, "{asked:?}");
    }
    let later = RecallRequest {
        after: Some(at(0)),
        ..base.clone()
    };
    assert_eq!(numbers(&kit, &later).len(), 3);
}

#[test]
fn memory_is_found_until_it_expires() {
    let kit = Kit::new();
    let mut short = fact("ann", MemoryKind::Project, "a short truth");
    short.expires_at = Some(at(2));
    kit.remember(order(1, short));
    assert_eq!(numbers_at(&kit, at(1), &ask(&["ann"], "truth")), [1]);
    assert_eq!(numbers_at(&kit, at(2), &ask(&["ann"], "truth")), [0; 0]);
}

#[test]
fn list_is_paged_by_id_and_filtered() {
    let kit = Kit::new();
    for number in 1..=5 {
        let who = if number % 2 == 0 { "ann" } else { "bob" };
        let mut said = fact(who, MemoryKind::Project, &format!("fact {number}"));
        said.tags = vec![format!("tag {}", number % 3)];
        kit.remember(order(number, said));
    }
    let team = RememberRequest {
        visibility: Visibility::Team,
        ..fact("ann", MemoryKind::Reference, "for all of us")
    };
    kit.remember(order(6, team));
    let list = |filter: ListRequest, max| {
        let memories = kit
            .memories
            .read(|reader| reader.list(&filter, max, at(0)))
            .unwrap();
        memories
            .iter()
            .map(|memory| number(memory.id))
            .collect::<Vec<_>>()
    };
    let base = ListRequest::default();
    assert_eq!(list(base.clone(), 3), [1, 2, 3]);
    assert_eq!(
        list(
            ListRequest {
                after: Some(id(3)),
                ..base.clone()
            },
            9
        ),
        [4, 5, 6]
    );
    let of_ann = ListRequest {
        subject: Some(subject("ann")),
        ..base.clone()
    };
    assert_eq!(
        list(of_ann.clone(), 9),
        [2, 4, 6],
        "also what it told the team"
    );
    assert_eq!(
        list(
            ListRequest {
                kind: Some(MemoryKind::Reference),
                ..of_ann
            },
            9
        ),
        [6]
    );
    assert_eq!(
        list(
            ListRequest {
                tag: Some("tag 1".into()),
                ..base.clone()
            },
            9
        ),
        [1, 4]
    );
    assert_eq!(
        list(
            ListRequest {
                subject: Some(subject("nobody")),
                ..base
            },
            9
        ),
        [0; 0]
    );
}

#[test]
fn manifest_orders_by_pin_importance_and_time() {
    let kit = Kit::new();
    let say = |number, who: &str, importance, pinned, expires: Option<i64>| {
        let mut said = fact(who, MemoryKind::Project, &format!("fact {number}"));
        (said.importance, said.pinned) = (Some(importance), pinned);
        said.expires_at = expires.map(at);
        if who == "team" {
            said.visibility = Visibility::Team;
        }
        kit.remember(order(number, said));
    };
    say(1, "ann", 0.5, false, None);
    say(2, "ann", 0.9, false, Some(7));
    say(3, "team", 0.7, false, Some(5));
    say(4, "ann", 0.1, true, None);
    say(5, "ann", 0.5, false, None);
    say(6, "bob", 1.0, true, Some(2));
    say(7, "ann", 1.0, true, Some(1));
    let manifest = |max| {
        let read = kit
            .memories
            .read(|reader| reader.manifest(&subject("ann"), at(1), max));
        let (memories, total) = read.unwrap();
        let numbers = memories.iter().map(|memory| number(memory.id));
        (numbers.collect::<Vec<_>>(), total)
    };
    assert_eq!(manifest(9), (vec![4, 2, 3, 5, 1], 5));
    assert_eq!(manifest(2), (vec![4, 2], 5));
}

/// States a text in a turn of a session.
fn say_in(kit: &Kit, number: u64, who: &str, session: &str, seq: u64, text: &str) {
    let mut said = fact(who, MemoryKind::Project, text);
    said.source = Some(Source {
        session: SessionId::parse(session).unwrap(),
        generation: None,
        seqs: vec![seq],
    });
    kit.remember(order(number, said));
}

fn pairs(kit: &Kit, who: &str, query: &str) -> Vec<(u64, u64)> {
    let found = kit.recall(&ask(&[who], query));
    let at = |place: usize| number(found.list[place].memory.id);
    let pairs = found.said_after.iter();
    let mut pairs: Vec<(u64, u64)> = pairs
        .map(|(first, second)| (at(*first), at(*second)))
        .collect();
    pairs.sort_unstable();
    pairs
}

#[test]
fn neighbors_of_a_hit_are_found_with_it() {
    let kit = Kit::new();
    say_in(&kit, 1, "ann", "s1", 6, "We met yesterday.");
    say_in(&kit, 2, "ann", "s1", 7, "Where does your sister live?");
    say_in(&kit, 3, "ann", "s1", 8, "In Lisbon, near the river.");
    say_in(&kit, 4, "ann", "s1", 9, "How nice.");
    say_in(&kit, 5, "ann", "s2", 8, "In another conversation.");
    say_in(&kit, 6, "bob", "s1", 8, "Of another subject.");
    assert_eq!(pairs(&kit, "ann", "sister"), [(1, 2), (2, 3)]);
    assert_eq!(pairs(&kit, "bob", "subject"), []);
    // Superseded, moved and forgotten memories have no position.
    let patch = Patch {
        content: Some("In Porto, near the river.".into()),
        ..Patch::default()
    };
    kit.write(move |writer| writer.update(id(3), None, &patch, at(2), &limits()));
    assert_eq!(pairs(&kit, "ann", "sister"), [(1, 2), (2, 3)]);
    kit.forget(100, &ForgetRequest::One(id(3)));
    assert_eq!(pairs(&kit, "ann", "sister"), [(1, 2)]);
    let patch = Patch {
        visibility: Some(Visibility::Team),
        ..Patch::default()
    };
    kit.write(move |writer| writer.update(id(1), None, &patch, at(2), &limits()));
    assert_eq!(pairs(&kit, "ann", "sister"), []);
    let strays = "SELECT count(*) FROM places WHERE no NOT IN
        (SELECT no FROM memories WHERE superseded_by IS NULL)";
    assert_eq!(kit.peek(strays), 0);
    assert_eq!(kit.peek("SELECT count(*) FROM places"), 5);
}
