//! Rivulet: a stream processing engine for the Internet of Things.
