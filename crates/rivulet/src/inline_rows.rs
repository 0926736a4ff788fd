//! The rows of a reference table that stand in its statement: an address `data:,ROWS` (RFC 2397), in which `%25` is a
//! per cent sign and any other byte may stand as it is. So a table comes over the network, and lies in the catalog,
//! without a file of the server.

/// What such addresses begin with.
const PREFIX: &str = "data:";

/// The address of these rows.
pub(crate) fn address_of(rows: &str) -> String {
    format!("{PREFIX},{}", rows.replace('%', "%25"))
}

/// Whether an address is one of rows.
pub(crate) fn is_one(address: &str) -> bool {
    address.starts_with(PREFIX)
}

/// The rows in an address of them.
///
/// # Errors
/// It is none of those that are understood.
pub(crate) fn rows_of(address: &str) -> Result<Vec<u8>, &'static str> {
    let rest = address.strip_prefix(PREFIX).ok_or("it does not begin with 'data:'")?;
    let (kind, rows) = rest.split_once(',').ok_or("a comma stands before the rows: 'data:,ROWS'")?;
    if kind.split(';').any(|word| word.eq_ignore_ascii_case("base64")) {
        return Err("base64 is not understood: write the rows as text, 'data:,ROWS'");
    }
    let mut decoded = Vec::with_capacity(rows.len());
    let mut bytes = rows.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digits = [bytes.next(), bytes.next()].map(|digit| digit.and_then(|digit| char::from(digit).to_digit(16)));
        let [Some(high), Some(low)] = digits else {
            return Err("behind '%' stand two hexadecimal digits; '%25' is '%'");
        };
        decoded.push((high * 16 + low) as u8);
    }
    Ok(decoded)
}

/// The text of a statement for people: rows that are long are left out.
pub(crate) fn shown(text: &str, address: &str) -> String {
    /// Rows of so many bytes are shown.
    const SHOWN_BYTES_MAX: usize = 200;
    if !is_one(address) || address.len() <= SHOWN_BYTES_MAX {
        return text.to_owned();
    }
    text.replacen(&address.replace('\'', "''"), &format!("{PREFIX},... {} bytes", address.len()), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were() {
        for rows in ["", "a,b\n1,'x'\n", "100 %, 5%25,é\r\n"] {
            assert_eq!(rows_of(&address_of(rows)).as_deref(), Ok(rows.as_bytes()), "{rows}");
        }
        assert_eq!(rows_of("data:text/csv;charset=utf-8,a%0Ab%2c").as_deref(), Ok(&b"a\nb,"[..]));
        for wrong in ["file:x", "data:a", "data:;base64,YQ==", "data:,%", "data:,%2", "data:,%zz"] {
            assert!(rows_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn long_rows_are_not_shown() {
        let statement =
            |address: &str| format!("CREATE TABLE t (a TEXT) FROM '{}' FORMAT CSV", address.replace('\'', "''"));
        let short = address_of("it's");
        assert_eq!(shown(&statement(&short), &short), statement(&short));
        let long = address_of(&"it's\n".repeat(100));
        assert_eq!(shown(&statement(&long), &long), "CREATE TABLE t (a TEXT) FROM 'data:,... 506 bytes' FORMAT CSV");
    }
}
