//! Passwords of people: hashed with argon2id, and looked at a few at a time.
//!
//! What must hold: however many guesses come at once, their hashes take the memory of [`PARALLEL`] of them; a guess for
//! a user who has no password, or who is none, takes as long as any other; and none is looked at under a lock.

use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, Params, PasswordHasher, PasswordVerifier};
use parking_lot::{Condvar, Mutex};
use ring::rand::{SecureRandom, SystemRandom};
use rivulet_connectors::logins::{Failures, Proven, network};

use crate::service::{ErrorKind, FullName, ServiceError};

/// The shortest password, in characters. What it may consist of is not prescribed: length is what makes guesses hard.
const CHARACTERS_MIN: usize = 12;

/// The longest password, in bytes: longer ones are not looked at.
const BYTES_MAX: usize = 1_024;

/// Hashes that are computed at a time. Each takes 19 MiB and some tens of milliseconds of a core.
const PARALLEL: usize = 2;

/// The most memory of a hash that was saved, in KiB: one that says more is damaged.
const SAVED_KIB_MAX: u32 = 256 << 10;

/// The wrong passwords of a user that are free: more than of an address, because others may give them.
const FAILURES_FREE: u32 = 20;

const SALT_BYTES: usize = 16;

/// What is compared for a user without a password. No password has this hash, as far as anybody knows.
const OF_NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$cml2dWxldCBvZiBub2JvZHk$\
                         AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// The hash of a new password, as it is saved.
///
/// # Errors
/// The password is too short or too long.
fn hash(password: &str) -> Result<String, ServiceError> {
    if password.chars().count() < CHARACTERS_MIN {
        let message = format!("a password has {CHARACTERS_MIN} characters or more");
        return Err(ServiceError::invalid(message).with_hint("take some words that do not belong together"));
    }
    if password.len() > BYTES_MAX {
        let message = format!("a password has {BYTES_MAX} bytes at most");
        return Err(ServiceError::invalid(message).with_hint("programs log in with tokens, which are never guessed"));
    }
    static RANDOM: LazyLock<SystemRandom> = LazyLock::new(SystemRandom::new);
    let no_random = |_| ServiceError::new(ErrorKind::Unavailable, "the system gives no random bits for a password");
    let mut salt = [0; SALT_BYTES];
    RANDOM.fill(&mut salt).map_err(no_random)?;
    let hash: PasswordHash =
        Argon2::default().hash_password_with_salt(password.as_bytes(), &salt).map_err(|error| {
            ServiceError::new(ErrorKind::Internal, format!("the password could not be hashed: {error}"))
        })?;
    Ok(hash.to_string())
}

/// Whether a password has this hash. It is compared as a whole.
fn has_hash(password: &[u8], saved: &str) -> bool {
    let Ok(hash) = PasswordHash::new(saved) else { return false };
    let is_whole = Params::try_from(&hash).is_ok_and(|params| params.m_cost() <= SAVED_KIB_MAX);
    is_whole && Argon2::default().verify_password(password, &hash).is_ok()
}

/// What looks at passwords, one for a server.
pub(super) struct Passwords {
    /// How many hashes are being computed.
    running: Mutex<usize>,
    freed: Condvar,
    /// Of users without a password, whose names anybody may make up, and of those with one.
    wrong: [Failures<FullName>; 2],
    /// Who has logged in from where: whoever guesses elsewhere keeps no user from logging in here.
    proven: Proven<(FullName, IpAddr)>,
}

impl Default for Passwords {
    fn default() -> Self {
        let (running, freed, proven) = (Mutex::default(), Condvar::new(), Proven::default());
        Self { running, freed, wrong: [FAILURES_FREE; 2].map(Failures::new), proven }
    }
}

impl Passwords {
    /// The hash of a new password, as it is saved.
    ///
    /// # Errors
    /// The password is too short or too long.
    pub(super) fn hash(&self, password: &str) -> Result<String, ServiceError> {
        self.in_turn(|| hash(password))
    }

    /// Whether a password has this hash. Without one it takes as long, and has not.
    pub(super) fn is_right(&self, password: &[u8], saved: Option<&str>) -> bool {
        // The length is the guesser's own, and tells nothing.
        password.len() <= BYTES_MAX && self.in_turn(|| has_hash(password, saved.unwrap_or(OF_NOBODY)))
    }

    /// How long no password of this user is looked at that comes from this address.
    pub(super) fn must_wait(&self, user: &FullName, address: Option<IpAddr>) -> Option<Duration> {
        let wait = self.wrong.iter().find_map(|wrong| wrong.must_wait(user))?;
        let is_proven = address.is_some_and(|address| self.proven.has(&(user.clone(), network(address))));
        (!is_proven).then_some(wait)
    }

    /// Notes a wrong password of a user, who may have another.
    pub(super) fn note_wrong(&self, user: FullName, has_another: bool) {
        self.wrong[usize::from(has_another)].note(user);
    }

    /// Notes a right one.
    pub(super) fn note_right(&self, user: &FullName, address: Option<IpAddr>) {
        address.iter().for_each(|address| self.proven.note((user.clone(), network(*address))));
    }

    /// Does what takes much memory, once there is a place for it.
    fn in_turn<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Turn<'p>(&'p Passwords);
        impl Drop for Turn<'_> {
            fn drop(&mut self) {
                *self.0.running.lock() -= 1;
                self.0.freed.notify_one();
            }
        }
        let mut running = self.running.lock();
        while *running >= PARALLEL {
            self.freed.wait(&mut running);
        }
        *running += 1;
        drop(running);
        let _turn = Turn(self);
        work()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rivulet_connectors::logins::REMEMBERED_MAX;

    use super::*;
    use crate::service::Tenant;

    #[test]
    fn a_password_is_right_for_its_own_hash_only() {
        let passwords = Passwords::default();
        let saved = passwords.hash("correct horse battery").expect("a hash");
        assert!(saved.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{saved}");
        assert!(passwords.is_right(b"correct horse battery", Some(&saved)));
        assert_ne!(passwords.hash("correct horse battery").expect("a hash"), saved, "each has a salt of its own");
        for wrong in ["correct horse batter", "correct horse battery ", "", "Correct horse battery"] {
            assert!(!passwords.is_right(wrong.as_bytes(), Some(&saved)), "{wrong:?}");
        }
        // Nothing that was damaged is anybody's password, or takes any memory it says.
        for damaged in ["", "rose", "$argon2id$v=19$m=4294967295,t=2,p=1$cml2dWxldCBvZiBub2JvZHk$AAAAAAAAAAAAAAAAAAAA"]
        {
            assert!(!passwords.is_right(b"", Some(damaged)) && !passwords.is_right(b"rose", Some(damaged)));
        }
    }

    #[test]
    fn passwords_have_a_least_and_a_most_length() {
        for wrong in ["", "eleven char", "ünfter-elf.", &"x".repeat(BYTES_MAX + 1)] {
            let error = hash(wrong).expect_err(wrong);
            assert!(error.hint.is_some() && !error.message.contains("eleven"), "{error}");
        }
        let longest = "x".repeat(BYTES_MAX);
        let saved = hash(&longest).expect("a hash");
        assert!(has_hash(longest.as_bytes(), &saved));
        // A longer guess is not hashed at all: none of its first bytes makes it right.
        assert!(!Passwords::default().is_right(format!("{longest}x").as_bytes(), Some(&saved)));
    }

    #[test]
    fn a_guess_for_nobody_costs_what_any_guess_costs() {
        let params = |saved: &str| {
            let params = Params::try_from(&PasswordHash::new(saved).expect("a hash")).expect("its costs");
            (params.m_cost(), params.t_cost(), params.p_cost(), params.output_len())
        };
        assert_eq!(params(OF_NOBODY), params(&hash("correct horse battery").expect("a hash")));
        assert!(!Passwords::default().is_right(b"correct horse battery", None));
    }

    #[test]
    fn few_hashes_are_computed_at_a_time() {
        let (passwords, running, most) = (Passwords::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    passwords.in_turn(|| {
                        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(1));
                        running.fetch_sub(1, Ordering::SeqCst);
                    });
                });
            }
        });
        assert!((1..=PARALLEL).contains(&most.load(Ordering::SeqCst)));
        // One that panics gives its place back.
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| passwords.in_turn(|| panic!("no"))));
        assert!(panicked.is_err());
        assert_eq!(*passwords.running.lock(), 0);
    }

    #[test]
    fn guesses_from_elsewhere_keep_nobody_out_where_it_has_logged_in() {
        let (passwords, ann) = (Passwords::default(), Tenant::default().named("ann"));
        let [home, elsewhere]: [Option<IpAddr>; 2] = ["10.0.0.7", "2001:db8::1"].map(|one| one.parse().ok());
        passwords.note_right(&ann, home);
        for _ in 0..FAILURES_FREE {
            assert_eq!(passwords.must_wait(&ann, elsewhere), None);
            passwords.note_wrong(ann.clone(), true);
        }
        passwords.note_wrong(ann.clone(), true);
        assert!(passwords.must_wait(&ann, elsewhere).is_some() && passwords.must_wait(&ann, None).is_some());
        assert_eq!(passwords.must_wait(&ann, home), None);
        assert_eq!(passwords.must_wait(&Tenant::new("acme").named("ann"), elsewhere), None);
        let address = |number: usize| Some(IpAddr::from(u32::try_from(number).unwrap_or(0).to_be_bytes()));
        (0..2 * REMEMBERED_MAX).for_each(|number| passwords.note_right(&ann, address(number)));
        // So many that the pause is not over by now, however slow the machine is.
        (0..8).for_each(|_| passwords.note_wrong(ann.clone(), true));
        assert!(passwords.must_wait(&ann, home).is_some(), "what is remembered is bounded");
    }

    #[test]
    fn names_that_are_made_up_let_no_guessed_user_be_forgotten() {
        let (passwords, ann) = (Passwords::default(), Tenant::default().named("ann"));
        let guess = |number: usize| passwords.note_wrong(Tenant::default().named(number.to_string()), false);
        // More than are remembered, twice each: one that failed once would give way to the next.
        (0..10_000).for_each(|number| guess(number / 2));
        for number in 0..=FAILURES_FREE as usize {
            passwords.note_wrong(ann.clone(), true);
            guess(10_000 + number);
        }
        assert!(passwords.must_wait(&ann, None).is_some());
    }
}
