//! Setters of configurations and options: one definition for all that only assign a field.

/// Defines setters that assign a field and return the whole.
macro_rules! setters {
    ($($(#[$meta:meta])* $name:ident: $type:ty;)*) => {$(
        $(#[$meta])*
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

/// As [`setters`], for types that a constant expression may assign.
macro_rules! const_setters {
    ($($(#[$meta:meta])* $name:ident: $type:ty;)*) => {$(
        $(#[$meta])*
        #[must_use]
        pub const fn $name(mut self, $name: $type) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

pub(crate) use {const_setters, setters};
