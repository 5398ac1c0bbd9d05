//! Options of one session: labels, TTL class, and whether it retains its whole history.
//!
//! They are part of the stored session metadata and rarely written.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::CoreError;
use crate::limits::Limits;

pub const LABELS_MAX: usize = 16;
pub const LABEL_NAME_BYTES_MAX: usize = 64;
pub const LABEL_VALUE_BYTES_MAX: usize = 256;

/// TTL class of sessions that use the tenant's default TTL.
pub const DEFAULT_CLASS: &str = "default";
/// TTL class of sessions that never expire, unless the tenant's classes include its name.
pub const NEVER_CLASS: &str = "never";
pub const CLASS_NAME_BYTES_MAX: usize = 64;

/// Options of a session. The defaults apply unless the bot sets them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// TTL class of the tenant's configuration.
    ///
    /// `None`, or a class that is no longer configured, means the default TTL.
    pub ttl_class: Option<Arc<str>>,
    /// Exempts the history from first in, first out. It is bounded by bytes only.
    pub keep_all: bool,
}

/// A change of options. Absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionsPatch {
    /// Labels to set. An empty value removes the label.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// New TTL class. [`DEFAULT_CLASS`] selects the default TTL.
    pub ttl_class: Option<Arc<str>>,
    pub keep_all: Option<bool>,
}

impl OptionsPatch {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks everything that does not depend on the session.
    ///
    /// # Errors
    /// [`CoreError::LabelInvalid`], [`CoreError::TtlClassInvalid`].
    pub fn check(&self) -> Result<(), CoreError> {
        let mut labels = self.labels.iter();
        labels.try_for_each(|(name, value)| check_label(name, value))?;
        match &self.ttl_class {
            Some(class) if !is_class_name(class) => Err(CoreError::TtlClassInvalid {
                text: class.chars().take(80).collect(),
            }),
            _ => Ok(()),
        }
    }
}

pub fn is_class_name(text: &str) -> bool {
    let is_good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    (1..=CLASS_NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_good)
}

/// Checks a label. Its value may be empty.
///
/// # Errors
/// [`CoreError::LabelInvalid`].
pub fn check_label(name: &str, value: &str) -> Result<(), CoreError> {
    let problem = match (name.len(), value.len()) {
        (1..=LABEL_NAME_BYTES_MAX, 0..=LABEL_VALUE_BYTES_MAX) => return Ok(()),
        (1..=LABEL_NAME_BYTES_MAX, bytes) => {
            format!("its value has {bytes} bytes, and takes {LABEL_VALUE_BYTES_MAX} at most")
        }
        (bytes, _) => format!("its name has {bytes} bytes, and takes 1 to {LABEL_NAME_BYTES_MAX}"),
    };
    Err(CoreError::LabelInvalid {
        name: name.chars().take(LABEL_NAME_BYTES_MAX).collect(),
        problem,
    })
}

impl SessionOptions {
    /// Returns the patched options, or `None` if the patch changes nothing.
    ///
    /// # Errors
    /// [`CoreError::LabelsTooMany`].
    pub fn patched(
        &self,
        patch: &OptionsPatch,
        limits: &Limits,
    ) -> Result<Option<Self>, CoreError> {
        let mut patched = self.clone();
        for (name, value) in &patch.labels {
            if value.is_empty() {
                patched.labels.remove(name);
            } else {
                patched.labels.insert(name.clone(), value.clone());
            }
        }
        let actual = patched.labels.len();
        if actual > limits.labels {
            return Err(CoreError::LabelsTooMany {
                actual,
                limit: limits.labels,
            });
        }
        if let Some(class) = &patch.ttl_class {
            let class = Some(Arc::clone(class));
            patched.ttl_class = class.filter(|class| **class != *DEFAULT_CLASS);
        }
        patched.keep_all = patch.keep_all.unwrap_or(self.keep_all);
        Ok((patched != *self).then_some(patched))
    }

    /// Approximate memory usage in bytes.
    pub fn bytes(&self) -> usize {
        /// Overhead per entry in addition to its texts.
        const LABEL_BYTES: usize = 64;
        let labels = self.labels.iter();
        labels
            .map(|(name, value)| LABEL_BYTES + name.len() + value.len())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels<const N: usize>(labels: [(&str, &str); N]) -> BTreeMap<Arc<str>, Arc<str>> {
        let labels = labels.into_iter();
        labels
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn patched(options: &SessionOptions, patch: &OptionsPatch) -> Option<SessionOptions> {
        options.patched(patch, &Limits::default()).unwrap()
    }

    #[test]
    fn labels_are_added_replaced_and_removed() {
        let patch = |labels| OptionsPatch {
            labels,
            ..OptionsPatch::default()
        };
        let none = SessionOptions::default();
        let one = patched(&none, &patch(labels([("app", "shop"), ("lang", "de")]))).unwrap();
        let same = patch(labels([("lang", "de"), ("gone", "")]));
        assert_eq!(patched(&one, &same), None, "nothing changes");
        let other = patched(&one, &patch(labels([("app", ""), ("lang", "fr")]))).unwrap();
        assert_eq!(other.labels, labels([("lang", "fr")]));
    }

    #[test]
    fn too_many_or_too_long_labels_are_refused() {
        let many = (0..=LABELS_MAX).map(|number| (number.to_string().into(), "x".into()));
        let patch = OptionsPatch {
            labels: many.collect(),
            ..OptionsPatch::default()
        };
        let refused = SessionOptions::default().patched(&patch, &Limits::default());
        let expected = CoreError::LabelsTooMany {
            actual: LABELS_MAX + 1,
            limit: LABELS_MAX,
        };
        assert_eq!(refused, Err(expected));
        for (name, value) in [
            (String::new(), String::new()),
            ("x".repeat(LABEL_NAME_BYTES_MAX + 1), String::new()),
            ("x".to_owned(), "x".repeat(LABEL_VALUE_BYTES_MAX + 1)),
        ] {
            let refused = check_label(&name, &value);
            assert!(matches!(refused, Err(CoreError::LabelInvalid { .. })));
        }
    }

    #[test]
    fn patch_keeps_options_it_does_not_name() {
        let patch = OptionsPatch {
            ttl_class: Some("week".into()),
            keep_all: Some(true),
            ..OptionsPatch::default()
        };
        let week = patched(&SessionOptions::default(), &patch).unwrap();
        assert_eq!(
            (week.ttl_class.as_deref(), week.keep_all),
            (Some("week"), true)
        );
        assert_eq!(patched(&week, &patch), None);
        let label = OptionsPatch {
            labels: labels([("a", "b")]),
            ..OptionsPatch::default()
        };
        let labelled = patched(&week, &label).unwrap();
        assert_eq!(
            (labelled.ttl_class.as_deref(), labelled.keep_all),
            (Some("week"), true)
        );
        let default = OptionsPatch {
            ttl_class: Some(DEFAULT_CLASS.into()),
            keep_all: Some(false),
            ..OptionsPatch::default()
        };
        assert_eq!(patched(&week, &default), Some(SessionOptions::default()));
        for bad in ["", "A", "a b", &"x".repeat(CLASS_NAME_BYTES_MAX + 1)] {
            let patch = OptionsPatch {
                ttl_class: Some(bad.into()),
                ..OptionsPatch::default()
            };
            let refused = patch.check();
            assert!(
                matches!(refused, Err(CoreError::TtlClassInvalid { .. })),
                "{bad}"
            );
        }
    }
}
