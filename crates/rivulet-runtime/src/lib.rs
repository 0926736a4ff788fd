//! Inboxes, groups, workers and schedulers.
