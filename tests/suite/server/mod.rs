//! The daemon: starts, reloads, keys, limits and hostile clients.

mod admin;
mod conversations;
mod flood;
mod http;
mod http_abuse;
mod input;
mod keys;
mod notify;
mod rates;
mod refused_fields;
mod reload;
mod reload_keys;
mod reload_traffic;
mod revocation;
mod secured;
mod start;
mod tenants;
mod unauthenticated;
