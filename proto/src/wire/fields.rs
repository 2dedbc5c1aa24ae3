//! Iterates over the fields of a protobuf message.

use super::WireError;

/// Protobuf wire types.
pub(super) const VARINT: u64 = 0;
pub(super) const FIXED64: u64 = 1;
pub(super) const LEN: u64 = 2;
pub(super) const FIXED32: u64 = 5;

/// Value of a field.
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// A cursor over the fields of a message. An error moves it to the end.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    #[inline]
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Moves to the end and returns the error.
    pub(super) fn fail<T>(&mut self, error: WireError) -> Result<T, WireError> {
        self.rest = &[];
        Err(error)
    }

    /// The remaining bytes.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Number and value of the next field; `None` at the end.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        match self.read_field() {
            Ok(field) => Ok(Some(field)),
            Err(error) => self.fail(error),
        }
    }

    #[inline]
    fn read_field(&mut self) -> Result<(u64, Value<'a>), WireError> {
        let key = self.read_varint()?;
        let value = match key & 7 {
            VARINT => Value::Varint(self.read_varint()?),
            FIXED64 => Value::Fixed64(u64::from_le_bytes(self.read_array()?)),
            LEN => {
                let length = self.read_varint()?;
                let length = usize::try_from(length).map_err(|_| WireError::Truncated)?;
                let (bytes, rest) = self
                    .rest
                    .split_at_checked(length)
                    .ok_or(WireError::Truncated)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            FIXED32 => Value::Fixed32(u32::from_le_bytes(self.read_array()?)),
            _ => return Err(WireError::WireType),
        };
        Ok((key >> 3, value))
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*array)
    }

    #[inline]
    fn read_varint(&mut self) -> Result<u64, WireError> {
        // Fast path for nearly all integers.
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        self.read_long_varint()
    }

    fn read_long_varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0;
        for index in 0..10 {
            let (&byte, rest) = self.rest.split_first().ok_or(WireError::Truncated)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(WireError::Varint)
    }
}
