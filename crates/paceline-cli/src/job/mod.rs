//! A job as it is found or begun, and what earlier runs left for it.

pub(crate) mod acknowledge;
pub(crate) mod background_load;
pub(crate) mod check_paths;
pub(crate) mod done;
pub(crate) mod holds;
pub(crate) mod job_config;
pub(crate) mod load;
pub(crate) mod load_guard;
pub(crate) mod refused;
pub(crate) mod share_told;
