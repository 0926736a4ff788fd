//! The algorithms of signatures, checked by `ring`.
//!
//! What must hold: an algorithm takes keys of its own kind only. There is none with a shared secret, so that no public
//! key can be taken for one.

use std::fmt;

use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

/// An algorithm, as heads of tokens name it.
pub(super) struct Algorithm {
    name: &'static str,
    check: Check,
}

enum Check {
    Rsa(&'static RsaParameters),
    Point(Curve, &'static dyn VerificationAlgorithm),
}

/// A curve, on which a public key is a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Curve {
    P256,
    P384,
    Ed25519,
}

/// A public key.
pub(super) enum PublicKey {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    Point(Curve, Vec<u8>),
}

static ALGORITHMS: [Algorithm; 9] = [
    Algorithm { name: "RS256", check: Check::Rsa(&RSA_PKCS1_2048_8192_SHA256) },
    Algorithm { name: "RS384", check: Check::Rsa(&RSA_PKCS1_2048_8192_SHA384) },
    Algorithm { name: "RS512", check: Check::Rsa(&RSA_PKCS1_2048_8192_SHA512) },
    Algorithm { name: "PS256", check: Check::Rsa(&RSA_PSS_2048_8192_SHA256) },
    Algorithm { name: "PS384", check: Check::Rsa(&RSA_PSS_2048_8192_SHA384) },
    Algorithm { name: "PS512", check: Check::Rsa(&RSA_PSS_2048_8192_SHA512) },
    Algorithm { name: "ES256", check: Check::Point(Curve::P256, &ECDSA_P256_SHA256_FIXED) },
    Algorithm { name: "ES384", check: Check::Point(Curve::P384, &ECDSA_P384_SHA384_FIXED) },
    Algorithm { name: "EdDSA", check: Check::Point(Curve::Ed25519, &ED25519) },
];

impl Algorithm {
    /// The algorithm of this name, in exactly these letters; `None` for `none` and those with a shared secret.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALGORITHMS.iter().find(|algorithm| algorithm.name == name)
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it takes a key.
    pub(super) fn takes(&self, key: &PublicKey) -> bool {
        match (&self.check, key) {
            (Check::Rsa(_), PublicKey::Rsa { .. }) => true,
            (Check::Point(curve, _), PublicKey::Point(other, _)) => curve == other,
            _ => false,
        }
    }

    /// Whether a signature of a message is by a key.
    pub(super) fn has_signed(&self, key: &PublicKey, message: &[u8], signature: &[u8]) -> bool {
        match (&self.check, key) {
            (Check::Rsa(parameters), PublicKey::Rsa { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }
            (Check::Point(curve, check), PublicKey::Point(other, point)) if curve == other => {
                UnparsedPublicKey::new(*check, point).verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_takes_keys_of_its_kind_and_none_takes_a_secret() {
        for name in ["none", "None", "NONE", "HS256", "HS384", "HS512", "rs256", "ES512", ""] {
            assert!(Algorithm::named(name).is_none(), "{name}");
        }
        let point = |curve| PublicKey::Point(curve, vec![4; 65]);
        let keys = [
            (PublicKey::Rsa { n: vec![1; 256], e: vec![1, 0, 1] }, "RS256 RS384 RS512 PS256 PS384 PS512"),
            (point(Curve::P256), "ES256"),
            (point(Curve::P384), "ES384"),
            (point(Curve::Ed25519), "EdDSA"),
        ];
        for (key, names) in keys {
            let taking: Vec<&str> = ALGORITHMS.iter().filter(|one| one.takes(&key)).map(Algorithm::name).collect();
            assert_eq!(taking.join(" "), names);
            for algorithm in &ALGORITHMS {
                assert!(!algorithm.has_signed(&key, b"message", &[0; 64]), "{algorithm:?}");
            }
        }
    }
}
