//! Stream operators over Arrow and DataFusion expressions.
