//! Several structs in one section of a file.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, forward_to_deserialize_any};
use serde_json::{Map, Value};

/// Up to three structs whose keys share one mapping.
///
/// `#[serde(flatten)]` would buffer all values, lose the line and column of errors, and accept
/// unknown keys. Here the struct that has a key reads its value in place. Every key needs a
/// default.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Flat<A, B, C = NoKeys> {
    #[serde(flatten)]
    pub first: A,
    #[serde(flatten)]
    pub second: B,
    #[serde(flatten)]
    pub third: C,
}

/// A struct without keys.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct NoKeys {}

type Keys = &'static [&'static str];

/// A struct of settings, each with a default.
trait Section: DeserializeOwned + Serialize {}

impl<T: DeserializeOwned + Serialize> Section for T {}

impl<'de, A: Section, B: Section, C: Section> Deserialize<'de> for Flat<A, B, C> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FlatVisitor(PhantomData))
    }
}

struct FlatVisitor<T>(PhantomData<T>);

impl<'de, A: Section, B: Section, C: Section> Visitor<'de> for FlatVisitor<Flat<A, B, C>> {
    type Value = Flat<A, B, C>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let keys = [keys_of::<A>(), keys_of::<B>(), keys_of::<C>()];
        let mut parts = [Map::new(), Map::new(), Map::new()];
        while let Some((part, key)) = map.next_key_seed(KnownKey(&keys))? {
            let value = match part {
                0 => value::<A, M>(key, &mut map)?,
                1 => value::<B, M>(key, &mut map)?,
                _ => value::<C, M>(key, &mut map)?,
            };
            parts[part].insert(key.to_owned(), value);
        }
        let [first, second, third] = parts.map(Value::Object);
        Ok(Flat {
            first: A::deserialize(first).map_err(de::Error::custom)?,
            second: B::deserialize(second).map_err(de::Error::custom)?,
            third: C::deserialize(third).map_err(de::Error::custom)?,
        })
    }
}

/// Reads the value of one key through its struct.
fn value<'de, T: Section, M: MapAccess<'de>>(
    key: &'static str,
    map: &mut M,
) -> Result<Value, M::Error> {
    let key_left = Some(key);
    let part = T::deserialize(MapAccessDeserializer::new(SingleEntry { key_left, map }))?;
    let mut fields = serde_json::to_value(part).map_err(de::Error::custom)?;
    // A key with `skip_serializing_if` may be missing here, so its value is null.
    Ok(fields.get_mut(key).map(Value::take).unwrap_or_default())
}

/// An entry of a mapping whose key has already been read.
struct SingleEntry<'a, M> {
    key_left: Option<&'static str>,
    map: &'a mut M,
}

impl<'de, M: MapAccess<'de>> MapAccess<'de> for SingleEntry<'_, M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, M::Error> {
        let key = self.key_left.take();
        key.map(|key| seed.deserialize(key.into_deserializer()))
            .transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, M::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Reads a key and finds the struct that has it.
struct KnownKey<'a>(&'a [Keys; 3]);

impl<'de> DeserializeSeed<'de> for KnownKey<'_> {
    type Value = (usize, &'static str);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for KnownKey<'_> {
    type Value = (usize, &'static str);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<Self::Value, E> {
        for (part, keys) in self.0.iter().enumerate() {
            if let Some(known) = keys.iter().find(|known| **known == key) {
                return Ok((part, known));
            }
        }
        let known = self.0.concat().join(", ");
        Err(E::custom(format!(
            "unknown field `{key}`, expected one of {known}"
        )))
    }
}

/// The keys of a struct, which its derived `Deserialize` passes to every deserializer.
fn keys_of<T: DeserializeOwned>() -> Keys {
    let mut keys: Keys = &[];
    // This always fails, but only after it received the keys.
    let _ = T::deserialize(KeysOnly(&mut keys));
    keys
}

struct KeysOnly<'a>(&'a mut Keys);

impl<'de> Deserializer<'de> for KeysOnly<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("only a struct tells its keys"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        keys: Keys,
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = keys;
        Err(de::Error::custom("only the keys are wanted"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
    #[serde(default, deny_unknown_fields)]
    struct Limits {
        turns: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes: Option<u32>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
    #[serde(default, deny_unknown_fields)]
    struct Names {
        first: String,
        #[serde(rename = "given")]
        second: Vec<String>,
    }

    type Both = Flat<Limits, Names>;

    #[test]
    fn flat_mapping_fills_both_structs() {
        let text = json!({"given": ["a", "b"], "turns": 5, "first": "c", "bytes": null});
        let both: Both = from_value(text).expect("known keys");
        assert_eq!((both.first.turns, both.first.bytes), (5, None));
        assert_eq!(both.second.second, ["a", "b"]);
        let again = json!({"turns": 5, "first": "c", "given": ["a", "b"]});
        assert_eq!(to_value(&both).expect("JSON"), again);
        let none: Both = from_value(json!({})).expect("defaults");
        assert_eq!(none.first, Limits::default());
        assert_eq!(none.second, Names::default());
    }

    #[test]
    fn unknown_key_or_wrong_type_is_refused() {
        for (text, part) in [
            (
                json!({"second": []}),
                "unknown field `second`, expected one of turns, bytes, first, given",
            ),
            (json!({"turns": "many"}), "invalid type: string \"many\""),
            (json!([]), "expected a mapping"),
        ] {
            let error = from_value::<Both>(text).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
