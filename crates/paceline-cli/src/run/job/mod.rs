//! A job as it is found or begun, and what earlier runs left for it.

pub(crate) mod begun;
pub(crate) mod done;
pub(crate) mod holds;
pub(crate) mod load;
pub(crate) mod lost;
pub(crate) mod places;
pub(crate) mod preparing;
pub(crate) mod reading;
pub(crate) mod refused;
pub(crate) mod sharing;
