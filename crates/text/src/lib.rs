//! Tokens and strings: encode, decode, stream, and chat templates.
#![forbid(unsafe_code)]
