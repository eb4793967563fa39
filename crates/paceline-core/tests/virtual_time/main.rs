//! The pacer in virtual time: jobs that take hours in a blink, the same each time.

mod background;
mod causes;
mod classic_defects;
mod configured;
mod configured_under_auto;
mod divided;
mod evicted;
mod extremes;
mod hanging;
mod job;
mod learning;
mod leases;
mod model;
mod models;
mod observed;
mod one_wait;
mod outage;
mod promises;
mod replay;
mod restored;
mod separate;
mod slowed_down;
mod spacing;
mod stuck_item;
mod turns;
mod two_levels;
