//! Keys, and the requests for certificates that they sign.

use rcgen::{CertificateParams, DistinguishedName, Error, KeyPair};

use crate::scanner;

/// A new key (ECDSA P-256), as PEM.
pub(crate) fn new_key() -> Result<String, Error> {
    Ok(KeyPair::generate()?.serialize_pem())
}

/// A request for a certificate of those names and that key, as DER. The same key may sign it again after a crash.
pub(crate) fn request(names: &[String], key: &str) -> Result<Vec<u8>, Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(&KeyPair::from_pem(key)?)?.der().to_vec())
}

/// Looks whether a chain is what was asked for: a certificate of those names and that key.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check(chain: &str, names: &[String], key: &str) -> Result<(), String> {
    let key = KeyPair::from_pem(key).map_err(|error| format!("the key cannot be read: {error}"))?;
    let mine = rcgen::PublicKeyData::subject_public_key_info(&key);
    let certificate = scanner::certificate(chain.as_bytes()).map_err(|why| format!("the CA's answer {why}"))?;
    if scanner::public_key(chain.as_bytes())? != mine {
        return Err("the CA's certificate is for another key".to_owned());
    }
    match names.iter().find(|name| !certificate.names.contains(name)) {
        Some(missing) => Err(format!("the CA's certificate is not for {missing}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_taken_only_for_its_names_and_its_key() {
        let names = ["a.org".to_owned(), "www.a.org".to_owned()];
        let key = new_key().unwrap();
        let params = CertificateParams::new(names.clone()).unwrap();
        let chain = params.self_signed(&KeyPair::from_pem(&key).unwrap()).unwrap().pem();
        assert_eq!(check(&chain, &names, &key), Ok(()));
        let other = new_key().unwrap();
        assert!(check(&chain, &names, &other).unwrap_err().contains("another key"));
        assert!(check(&chain, &["b.org".to_owned()], &key).unwrap_err().contains("not for b.org"));
        assert!(check("an error page", &names, &key).unwrap_err().contains("holds no certificate"));
    }

    #[test]
    fn the_same_key_signs_again() {
        let key = new_key().unwrap();
        assert!(!request(&["a.org".to_owned()], &key).unwrap().is_empty());
        assert!(!request(&["a.org".to_owned()], &key).unwrap().is_empty());
    }
}
