//! The key/value part of a GGUF file: values borrowed from the file, and lookups that say what was wrong.
//!
//! An array stays in its bytes and is walked on demand, so that a file's counts never decide an allocation.

use super::error::GgufError;
use super::reader::{Cursor, read_value};
use std::collections::BTreeMap;

/// One metadata value. Integers are widened; strings and arrays borrow from the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit float.
    F64(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(&'a str),
    /// Values of one type.
    Array(Array<'a>),
}

/// An array whose elements were checked when the file was opened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Array<'a> {
    pub(super) element: u32,
    pub(super) count: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True when there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes);
        let element = self.element;
        (0..self.count).map_while(move |_| read_value(&mut cursor, "array", element, 0).ok())
    }
}

impl Value<'_> {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) => "an unsigned integer",
            Self::Signed(_) => "a signed integer",
            Self::F32(_) | Self::F64(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
        }
    }
}

/// All metadata of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata<'a> {
    pub(super) values: BTreeMap<&'a str, Value<'a>>,
}

impl<'a> Metadata<'a> {
    /// The value of `key`, if the file has it.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.values.get(key).copied()
    }

    /// All keys and values, keys in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> {
        self.values.iter().map(|(key, value)| (*key, *value))
    }

    /// A string.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] when the value is something else.
    pub fn string(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    /// An integer of at least 0 that fits 32 bits.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] when the value is something else.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.typed(key, "an integer from 0 to 2^32-1", |value| match value {
            Value::Unsigned(number) => u32::try_from(number).ok(),
            Value::Signed(number) => u32::try_from(number).ok(),
            _ => None,
        })
    }

    /// A float, or an integer that a 32-bit float holds.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] when the value is something else or not finite.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.typed(key, "a finite number", |value| {
            match value {
                Value::F32(number) => Some(number),
                Value::F64(number) => Some(number as f32),
                Value::Unsigned(number) => Some(number as f32),
                Value::Signed(number) => Some(number as f32),
                _ => None,
            }
            .filter(|number| number.is_finite())
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] when the value is something else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a boolean", |value| match value {
            Value::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    /// An array.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] when the value is something else.
    pub fn array(&self, key: &str) -> Result<Option<Array<'a>>, GgufError> {
        self.typed(key, "an array", |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`] or [`GgufError::KeyType`].
    pub fn strings(&self, key: &str) -> Result<Vec<&'a str>, GgufError> {
        let array = require(key, self.array(key)?)?;
        array
            .iter()
            .map(|value| match value {
                Value::String(text) => Ok(text),
                other => Err(GgufError::KeyType {
                    key: key.to_owned(),
                    expected: "an array of strings",
                    found: other.kind(),
                }),
            })
            .collect()
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        pick(value).map(Some).ok_or_else(|| GgufError::KeyType {
            key: key.to_owned(),
            expected,
            found: value.kind(),
        })
    }
}

/// Turns an absent value into [`GgufError::MissingKey`].
pub(super) fn require<T>(key: &str, value: Option<T>) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })
}
