//! Which collection of a DSP's database holds a cookie. Pure.

use std::{borrow::Cow, fmt, str::FromStr};

/// How the cookies of a DSP are spread over the collections of its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// One collection, `cookies`.
    #[default]
    One,
    /// 256 collections, `00` to `ff`: the user id modulo 256.
    Split256,
}

/// Neither layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `one` or `split256`")]
pub struct LayoutError;

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        match text {
            "one" => Ok(Self::One),
            "split256" => Ok(Self::Split256),
            _ => Err(LayoutError),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "one",
            Self::Split256 => "split256",
        })
    }
}

impl Layout {
    /// The number, below 256, of the collection that holds this user's cookies.
    ///
    /// In [`Layout::Split256`] a user id that ends in two hexadecimal digits is taken for a hexadecimal number, so
    /// that these digits are its value modulo 256; of any other, the last byte counts.
    #[must_use]
    pub fn part(self, user_id: &[u8]) -> u8 {
        let digit = |byte: u8| {
            char::from(byte)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        };
        match (self, user_id) {
            (Self::One, _) | (_, []) => 0,
            (Self::Split256, [.., high, low]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => *low,
            },
            (Self::Split256, [only]) => digit(*only).unwrap_or(*only),
        }
    }

    /// The name of the collection with this number.
    #[must_use]
    pub fn collection(self, part: u8) -> Cow<'static, str> {
        match self {
            Self::One => Cow::Borrowed("cookies"),
            Self::Split256 => Cow::Owned(format!("{part:02x}")),
        }
    }

    /// The names of all collections.
    pub fn collections(self) -> impl Iterator<Item = Cow<'static, str>> {
        let last = match self {
            Self::One => 0,
            Self::Split256 => u8::MAX,
        };
        (0..=last).map(move |part| self.collection(part))
    }

    /// Whether a collection of this name is one of ours.
    #[must_use]
    pub fn is_ours(self, collection: &str) -> bool {
        match self {
            Self::One => collection == "cookies",
            Self::Split256 => u8::from_str_radix(collection, 16)
                .is_ok_and(|part| self.collection(part) == collection),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_id_modulo_256_names_the_collection() {
        let name = |user: &str| {
            let layout = Layout::Split256;
            layout.collection(layout.part(user.as_bytes())).into_owned()
        };
        for (user, collection) in [
            ("0123456789abcdef0123", "23"),
            ("0123456789ABCDEF01AF", "af"),
            ("256", "56"),
            ("7", "07"),
            ("user-z", "7a"),
            ("z", "7a"),
        ] {
            assert_eq!(name(user), collection, "{user}");
        }
        assert_eq!(Layout::One.collection(Layout::One.part(b"0a")), "cookies");
    }

    #[test]
    fn only_own_collections_are_ours() {
        assert!(Layout::One.is_ours("cookies") && !Layout::One.is_ours("3f"));
        let split = Layout::Split256;
        assert!(split.is_ours("3f") && split.is_ours("00"));
        for other in ["cookies", "3F", "f", "100", "+f", ""] {
            assert!(!split.is_ours(other), "{other}");
        }
    }

    #[test]
    fn layout_is_named_as_on_the_command_line() {
        for layout in [Layout::One, Layout::Split256] {
            assert_eq!(layout.to_string().parse(), Ok(layout));
        }
        assert_eq!("split".parse::<Layout>(), Err(LayoutError));
    }
}
