//! The programs of `docs/tutorial.md` are in `src/bin`, one for each listing; the tests compare them, run them as a reader
//! would, and compare what they print.
