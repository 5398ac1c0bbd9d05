//! A session that is changed by several daemons in turn.

use crate::bot::named;
use crate::cluster::Daemons;
use crate::kit::unswept;

/// Each daemon reads a session again before it appends, once it knows that others change it.
#[tokio::test(start_paused = true)]
async fn appends_alternating_between_daemons_are_rarely_rejected() {
    let daemons = Daemons::open(unswept(), 2).await;
    let turns: Vec<String> = (1..=40).map(|turn| turn.to_string()).collect();
    for (place, (text, bot)) in turns.iter().zip(daemons.bots.iter().cycle()).enumerate() {
        let key = format!("k{place}");
        let appended = bot.append("s", named(&key, &[text])).await.unwrap();
        assert!(!appended.duplicate);
    }
    assert_eq!(daemons.bots[0].live("s").await.unwrap(), turns);
    let store = &daemons.store;
    assert!(store.rejections() <= 2, "{} rejections", store.rejections());
    // One load each, of new turns and of one key.
    assert!(store.loads() <= 42, "{} loads", store.loads());
    assert!(store.reloads() >= store.loads() - 3);
    assert!(
        store.key_reads() <= 2,
        "{} reads of keys",
        store.key_reads()
    );
    // A daemon that is the only one again stops reading the session.
    for text in 1..=10 {
        daemons.bots[0].say("s", &text.to_string()).await.unwrap();
    }
    let loads = store.loads();
    for text in 1..=10 {
        daemons.bots[0].say("s", &text.to_string()).await.unwrap();
    }
    assert_eq!(store.loads(), loads);
}

/// A session that was loaded for one key is not assumed to lack the others.
#[tokio::test(start_paused = true)]
async fn key_used_on_another_daemon_is_known_after_load_for_other_key() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    for (place, bot) in [a, b, a, b, a, b].into_iter().enumerate() {
        let key = format!("k{place}");
        bot.append("s", named(&key, &[&key])).await.unwrap();
    }
    // Now `a` has loaded the session for `k6` alone.
    a.append("s", named("k6", &["k6"])).await.unwrap();
    for (place, key) in ["k1", "k3", "k0", "k5", "k6"].into_iter().enumerate() {
        let again = a.append("s", named(key, &[key])).await.unwrap();
        assert!(again.duplicate, "{key}");
        let other = b.append("s", named(key, &["other"])).await;
        assert!(other.is_err(), "{key}");
        let next = format!("n{place}");
        assert!(
            !b.append("s", named(&next, &[&next]))
                .await
                .unwrap()
                .duplicate
        );
        assert!(
            a.append("s", named(&next, &[&next]))
                .await
                .unwrap()
                .duplicate
        );
    }
    assert_eq!(a.live("s").await.unwrap().len(), 12);
}
