//! Deliberate defects, which test that the simulation finds errors.

/// A deliberate defect, to test that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Messages are acknowledged when the log has them in memory only.
    AcknowledgesBeforeSync,
    /// Repeated messages are not recognised.
    DuplicatesAreNew,
    /// Syncs of the log's files do nothing.
    LogIsNotSynced,
    /// Syncs of the checkpoints' files do nothing: files get their names before their content.
    CheckpointsAreNotSynced,
    /// Syncs of folders do nothing.
    NamesAreNotSynced,
    /// The catalog forgets when queries were created, paused and resumed.
    LifecycleLogIsForgotten,
    /// The catalog forgets the earlier values of altered queries.
    AlterationsAreForgotten,
    /// Repeated results are not recognised by their identity.
    ResultsHaveNoIdentity,
}

impl Defect {
    /// All defects.
    pub const ALL: [Self; 8] = [
        Self::AcknowledgesBeforeSync,
        Self::DuplicatesAreNew,
        Self::LogIsNotSynced,
        Self::CheckpointsAreNotSynced,
        Self::NamesAreNotSynced,
        Self::LifecycleLogIsForgotten,
        Self::AlterationsAreForgotten,
        Self::ResultsHaveNoIdentity,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::AcknowledgesBeforeSync => "acknowledges-before-sync",
            Self::DuplicatesAreNew => "duplicates-are-new",
            Self::LogIsNotSynced => "log-is-not-synced",
            Self::CheckpointsAreNotSynced => "checkpoints-are-not-synced",
            Self::NamesAreNotSynced => "names-are-not-synced",
            Self::LifecycleLogIsForgotten => "lifecycle-log-is-forgotten",
            Self::AlterationsAreForgotten => "alterations-are-forgotten",
            Self::ResultsHaveNoIdentity => "results-have-no-identity",
        }
    }
}
