//! What does not move, and says why.
