//! Operator harness and reference models for tests.
