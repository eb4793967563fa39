//! The programs of the cookbook, without a key and without network: the APIs are in memory, and time is virtual.
#![cfg(test)]

mod beside;
mod dynamodb;
mod openai;
mod page;
mod router;
mod scraper;
mod webhooks;
