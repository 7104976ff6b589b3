//! Model files on disk: read with every bound proven, converted, stored and fetched.
#![deny(unsafe_code)]
