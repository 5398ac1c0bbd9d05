//! Filters documents by the members of their JSON, with equality and order operators.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

/// A condition on the JSON of a document.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentFilter(Test);

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Is(Value),
    IsNot(Value),
    /// A number or text in one of these orders relative to this one.
    IsOrdered(Value, &'static [Ordering]),
    All(Vec<Test>),
    /// An object whose members pass these tests. A missing member counts as null.
    Members(Vec<(String, Test)>),
}

const OPERATORS: &str = "$eq, $ne, $gt, $gte, $lt, $lte";

impl DocumentFilter {
    /// Maximum bytes of a filter as JSON.
    pub const BYTES_MAX: usize = 16 << 10;
    /// Maximum number of values to compare with.
    pub const CONDITIONS_MAX: usize = 64;
    /// Maximum nesting depth of objects.
    pub const LEVELS_MAX: usize = 8;

    /// Parses a filter.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn parse(json: &str) -> Result<Self, String> {
        if json.len() > Self::BYTES_MAX {
            let (bytes, limit) = (json.len(), Self::BYTES_MAX);
            return Err(format!("has {bytes} bytes, the limit is {limit}"));
        }
        let value: Value =
            serde_json::from_str(json).map_err(|error| format!("is not JSON: {error}"))?;
        let Value::Object(members) = value else {
            return Err("is no object; name members and what they are".to_owned());
        };
        let mut conditions_left = Self::CONDITIONS_MAX;
        let members = read_members(members, Self::LEVELS_MAX, &mut conditions_left)?;
        Ok(Self(Test::Members(members)))
    }

    /// Whether the JSON passes. Invalid JSON does not.
    pub fn takes(&self, json: &[u8]) -> bool {
        serde_json::from_slice(json).is_ok_and(|value| self.0.passes(&value))
    }
}

fn read_members(
    members: Map<String, Value>,
    levels_left: usize,
    conditions_left: &mut usize,
) -> Result<Vec<(String, Test)>, String> {
    let Some(levels_left) = levels_left.checked_sub(1) else {
        let limit = DocumentFilter::LEVELS_MAX;
        return Err(format!("has more than {limit} levels"));
    };
    let mut tests = Vec::with_capacity(members.len());
    for (name, wanted) in members {
        if name.starts_with('$') {
            let problem = format!("{name:?} stands where a member's name is expected");
            return Err(problem);
        }
        let test = match wanted {
            Value::Object(wanted) if wanted.keys().any(|name| name.starts_with('$')) => {
                let tests = wanted.into_iter().map(|(name, value)| {
                    count(conditions_left)?;
                    operator(&name, value)
                });
                Test::All(tests.collect::<Result<_, _>>()?)
            }
            Value::Object(wanted) => {
                Test::Members(read_members(wanted, levels_left, conditions_left)?)
            }
            value => {
                count(conditions_left)?;
                Test::Is(value)
            }
        };
        tests.push((name, test));
    }
    Ok(tests)
}

fn count(conditions_left: &mut usize) -> Result<(), String> {
    let left = conditions_left.checked_sub(1);
    let limit = DocumentFilter::CONDITIONS_MAX;
    *conditions_left = left.ok_or_else(|| format!("has more than {limit} conditions"))?;
    Ok(())
}

fn operator(name: &str, value: Value) -> Result<Test, String> {
    use Ordering::{Equal, Greater, Less};
    let orders: &'static [Ordering] = match name {
        "$eq" => return Ok(Test::Is(value)),
        "$ne" => return Ok(Test::IsNot(value)),
        "$gt" => &[Greater],
        "$gte" => &[Greater, Equal],
        "$lt" => &[Less],
        "$lte" => &[Less, Equal],
        _ => {
            let problem = format!("{name:?} is no operator; there are {OPERATORS}");
            return Err(problem);
        }
    };
    if value.is_number() || value.is_string() {
        Ok(Test::IsOrdered(value, orders))
    } else {
        Err(format!("{name} takes a number or a text"))
    }
}

impl Test {
    fn passes(&self, value: &Value) -> bool {
        match self {
            Self::Is(wanted) => equals(value, wanted),
            Self::IsNot(unwanted) => !equals(value, unwanted),
            Self::IsOrdered(than, orders) => {
                order(value, than).is_some_and(|order| orders.contains(&order))
            }
            Self::All(tests) => tests.iter().all(|test| test.passes(value)),
            Self::Members(members) => value.as_object().is_some_and(|object| {
                let mut members = members.iter();
                members.all(|(name, test)| test.passes(object.get(name).unwrap_or(&Value::Null)))
            }),
        }
    }
}

/// Compares values. Numbers are compared by value, so 1 equals 1.0.
fn equals(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            number_order(one, other) == Some(Ordering::Equal)
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equals(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let is_in = |(name, value)| other.get(name).is_some_and(|other| equals(value, other));
            one.len() == other.len() && one.iter().all(is_in)
        }
        _ => one == other,
    }
}

fn order(one: &Value, other: &Value) -> Option<Ordering> {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => number_order(one, other),
        (Value::String(one), Value::String(other)) => Some(one.cmp(other)),
        _ => None,
    }
}

fn number_order(one: &Number, other: &Number) -> Option<Ordering> {
    let whole = |number: &Number| {
        number
            .as_i64()
            .map(i128::from)
            .or(number.as_u64().map(i128::from))
    };
    match (whole(one), whole(other)) {
        (Some(one), Some(other)) => Some(one.cmp(&other)),
        _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{"a": 1, "b": "müll", "c": {"d": [1, {"e": null}], "f": 2.5},
        "g": null, "h": true, "i": 18446744073709551615}"#;

    fn takes(filter: &str) -> bool {
        DocumentFilter::parse(filter)
            .unwrap()
            .takes(DOCUMENT.as_bytes())
    }

    #[test]
    fn members_are_compared_by_equality_and_order() {
        for fits in [
            "{}",
            r#"{"a": 1}"#,
            r#"{"a": 1.0, "b": "müll"}"#,
            r#"{"a": {"$eq": 1}}"#,
            r#"{"a": {"$gt": 0, "$lte": 1, "$ne": 2}}"#,
            r#"{"b": {"$gte": "m", "$lt": "n"}}"#,
            r#"{"c": {"f": {"$lt": 3}}}"#,
            r#"{"c": {"d": [1.0, {"e": null}]}}"#,
            r#"{"c": {}}"#,
            r#"{"g": null, "nowhere": null}"#,
            r#"{"nowhere": {"$ne": 1}}"#,
            r#"{"h": true}"#,
            r#"{"i": 18446744073709551615}"#,
            r#"{"i": {"$gt": 18446744073709551614}}"#,
        ] {
            assert!(takes(fits), "{fits}");
        }
        for fits_not in [
            r#"{"a": 2}"#,
            r#"{"a": "1"}"#,
            r#"{"a": {"$gt": 1}}"#,
            r#"{"a": {"$gt": "0"}}"#,
            r#"{"a": {"b": null}}"#,
            r#"{"b": {"$lt": 1}}"#,
            r#"{"nowhere": {"$lt": 1}}"#,
            r#"{"nowhere": {"b": {"$ne": 1}}}"#,
            r#"{"c": {"d": [1]}}"#,
            r#"{"h": 1}"#,
            r#"{"i": 18446744073709551614}"#,
        ] {
            assert!(!takes(fits_not), "{fits_not}");
        }
        let any = DocumentFilter::parse("{}").unwrap();
        for no_object in ["[]", "1", "{", ""] {
            assert!(!any.takes(no_object.as_bytes()), "{no_object}");
        }
    }

    #[test]
    fn invalid_filters_are_rejected() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(9), "}".repeat(9));
        let many: Vec<String> = (0..65).map(|number| format!(r#""{number}": 1"#)).collect();
        let long = format!(r#"{{"a": "{}"}}"#, "x".repeat(16 << 10));
        for bad in [
            "",
            "[]",
            "{",
            r#"{"$gt": 1}"#,
            r#"{"a": {"$regex": "x"}}"#,
            r#"{"a": {"$gt": 1, "b": 2}}"#,
            r#"{"a": {"$gt": null}}"#,
            &deep,
            &format!("{{{}}}", many.join(",")),
            &long,
        ] {
            assert!(DocumentFilter::parse(bad).is_err(), "{bad}");
        }
    }
}
