//! A value in memory of its own, for which there may be none.

use std::ops::{Deref, DerefMut};

pub(crate) struct FallibleBox<T>(Box<[T; 1]>);

impl<T> FallibleBox<T> {
    /// Moves a value into memory of its own.
    ///
    /// # Errors
    /// The value, if there is no memory for it.
    pub(crate) fn try_new(value: T) -> Result<Self, T> {
        let mut memory = Vec::new();
        if memory.try_reserve_exact(1).is_err() {
            return Err(value);
        }
        memory.push(value);
        // With as much room as it needs, it stays where it is.
        match memory.into_boxed_slice().try_into() {
            Ok(one) => Ok(Self(one)),
            Err(_) => unreachable!("one value was pushed"),
        }
    }

    pub(crate) fn into_inner(self) -> T {
        let [value] = *self.0;
        value
    }
}

impl<T> Deref for FallibleBox<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let [value] = &*self.0;
        value
    }
}

impl<T> DerefMut for FallibleBox<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        let [value] = &mut *self.0;
        value
    }
}
