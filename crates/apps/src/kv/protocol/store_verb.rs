//! Storage commands that the protocols share: the condition for a write, or the place of it.

/// The storage commands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StoreVerb {
    /// Whether or not there is an item.
    Set,
    /// Only if there is none.
    Add,
    /// Only if there is one.
    Replace,
    /// After the value of the item.
    Append,
    /// Before the value of the item.
    Prepend,
}
