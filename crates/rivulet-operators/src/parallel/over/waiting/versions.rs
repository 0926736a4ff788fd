//! Rows that meet versions: the last step of `FOR SYSTEM_TIME AS OF`.
//!
//! Both kinds of rows wait for their turn together. A version takes the place of the one before it as the only row in
//! the frame of its partition, and any other row comes out with the version that is there. So older versions are
//! dropped as soon as no row can ask for them.

use rivulet_dataflow::{Context, OperatorError};

use super::WaitingOperator;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::keys::NONE;
use crate::parallel::over::Versions;

impl WaitingOperator {
    /// Emits sorted rows with their versions.
    pub(super) fn give_with_versions(
        &mut self,
        rows: &[u32],
        versions: &Versions,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        let mut nothing = plan.groups.states();
        nothing.grow(&plan.groups, 1);
        // Rows that come out, and for each of them its version.
        let (mut given, mut found): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut gone: Vec<u32> = Vec::new();
        for &row in rows {
            let time_us = self.time_of(row);
            let frame = &mut self.frames[self.partition_of[row as usize] as usize];
            if self.store.word(versions.is_version, row) != 0 {
                frame.push(&plan.groups, row, time_us, &nothing, 0);
                while plan.leaves(frame, time_us) {
                    gone.extend(frame.pop(&plan.groups));
                }
                continue;
            }
            match frame.before(0) {
                None if !versions.keeps_unmatched => gone.push(row),
                version => {
                    given.push(row);
                    found.push(version.map_or(NONE, |version| version.row));
                }
            }
        }
        for (rows, found) in given.chunks(OUTPUT_ROWS).zip(found.chunks(OUTPUT_ROWS)) {
            let of_rows = versions.columns.iter().map(|&column| self.store.column(column, rows));
            let of_versions = versions.of_version.iter().map(|&column| self.store.column(column, found));
            let columns = of_rows.chain(of_versions).collect::<Result<Vec<_>, _>>()?;
            context.emit(self.store.batch(rows, &plan.output, columns)?);
        }
        self.forget_without_version(rows);
        given.into_iter().chain(gone).for_each(|row| self.store.remove(row));
        Ok(())
    }

    /// Forgets the partitions of rows that had their turn, if they have neither a version nor a waiting row.
    fn forget_without_version(&mut self, rows: &[u32]) {
        for rows in rows.chunk_by(|&a, &b| self.partition_of[a as usize] == self.partition_of[b as usize]) {
            let partition = self.partition_of[rows[0] as usize];
            let left = &mut self.waiting_of[partition as usize];
            *left -= rows.len() as u32;
            if *left == 0 && self.frames[partition as usize].len() == 0 {
                self.ttl.iter_mut().for_each(|ttl| ttl.remove(partition));
                self.index.remove(partition);
            }
        }
    }
}
