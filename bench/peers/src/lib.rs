//! Nothing: what is built is what it depends on.
