//! Statements about tenants, users, tokens and rights.

use arrow::datatypes::IntervalMonthDayNano;
use datafusion_sql::sqlparser::tokenizer::Token;

use super::cursor::Cursor;
use crate::statement::{AccountStatement, GRANT_ACTIONS, GRANT_KINDS, GrantedRights, TenantLimit, UserName, limit_of};
use crate::{Literal, SqlError};

const LIMITS_HINT: &str = "write for example ALTER TENANT acme SET (queries => 1000, state_bytes => '1 GiB'), or \
                           ALTER TENANT acme RESET (queries)";

/// The words behind CREATE, DROP and ALTER with which such statements go on.
pub(super) const CREATED: [&str; 3] = ["TENANT", "USER", "TOKEN"];

/// The words behind SHOW.
pub(super) const SHOWN: [&str; 4] = ["TENANTS", "USERS", "TOKENS", "GRANTS"];

const GRANT_HINT: &str = "write for example GRANT read, subscribe ON QUERY 'home-7-%' TO alice, GRANT publish ON TOPIC \
                          'home/%u/#' TO alice, or GRANT ALL TO alice";

/// Whether one of `words` is next.
pub(super) fn is_next(cursor: &Cursor<'_>, words: &[&str]) -> bool {
    words.iter().any(|word| cursor.is_word(word))
}

/// Reads what follows CREATE.
pub(super) fn create(cursor: &mut Cursor<'_>) -> Result<AccountStatement, SqlError> {
    let what = cursor.expect_one_of(&CREATED)?;
    if what == 2 {
        cursor
            .expect_word("FOR")
            .map_err(|error| error.hint("write CREATE TOKEN FOR alice EXPIRES IN INTERVAL '90 days'"))?;
        let user = user(cursor)?;
        let expires_in_s = match cursor.eat_word("expires") {
            true => {
                cursor.expect_word("IN")?;
                Some(seconds(cursor)?)
            }
            false => None,
        };
        return Ok(AccountStatement::CreateToken { user, expires_in_s });
    }
    let if_not_exists = cursor.eat_words(&["if", "not", "exists"]);
    Ok(match what {
        0 => {
            let name = cursor.name("the name of a tenant")?;
            let limits = if cursor.eat_word("with") { limits(cursor)? } else { Vec::new() };
            AccountStatement::CreateTenant { name, if_not_exists, limits }
        }
        _ => {
            let user = user(cursor)?;
            AccountStatement::CreateUser { user, if_not_exists, is_admin: cursor.eat_word("admin") }
        }
    })
}

/// Reads what follows DROP.
pub(super) fn drop(cursor: &mut Cursor<'_>) -> Result<AccountStatement, SqlError> {
    let what = cursor.expect_one_of(&CREATED)?;
    let if_exists = cursor.eat_words(&["if", "exists"]);
    Ok(match what {
        0 => {
            let name = cursor.name("the name of a tenant")?;
            AccountStatement::DropTenant { name, if_exists, cascade: cursor.eat_word("cascade") }
        }
        1 => AccountStatement::DropUser { user: user(cursor)?, if_exists },
        _ => {
            let (id, position) = cursor.string("the id of a token in single quotes")?;
            AccountStatement::DropToken { id, if_exists, position }
        }
    })
}

/// Reads what follows ALTER: there are changes of tokens, and of the limits of a tenant.
pub(super) fn alter(cursor: &mut Cursor<'_>) -> Result<AccountStatement, SqlError> {
    if cursor.eat_word("tenant") {
        let name = cursor.name("the name of a tenant")?;
        let what = cursor.expect_one_of(&["SET", "RESET"]).map_err(|error| error.hint(LIMITS_HINT))?;
        let limits = if what == 0 { limits(cursor)? } else { names(cursor)? };
        return Ok(AccountStatement::AlterTenant { name, limits });
    }
    cursor.expect_word("TOKEN").map_err(|error| {
        error.hint(
            "rights of a user change with GRANT and REVOKE, a password with `rivulet user password`; a user is \
             dropped, and created anew",
        )
    })?;
    let (id, position) = cursor.string("the id of a token in single quotes")?;
    cursor.expect_word("ROTATE")?;
    let grace_s = if cursor.eat_word("grace") { seconds(cursor)? } else { 0 };
    Ok(AccountStatement::RotateToken { id, grace_s, position })
}

/// Reads what follows SHOW.
pub(super) fn show(cursor: &mut Cursor<'_>) -> Result<AccountStatement, SqlError> {
    let what = cursor.expect_one_of(&SHOWN)?;
    let of = if what >= 2 && cursor.eat_word("for") { Some(user(cursor)?) } else { None };
    Ok(match what {
        0 => AccountStatement::ShowTenants,
        1 => AccountStatement::ShowUsers,
        2 => AccountStatement::ShowTokens(of),
        _ => AccountStatement::ShowGrants(of),
    })
}

/// Reads what follows GRANT.
pub(super) fn grant(cursor: &mut Cursor<'_>) -> Result<AccountStatement, SqlError> {
    let rights = rights(cursor)?;
    cursor.expect_word("TO").map_err(|error| error.hint(GRANT_HINT))?;
    Ok(AccountStatement::Grant { rights, user: user(cursor)? })
}

/// Reads what follows REVOKE.
pub(super) fn revoke(cursor: &mut Cursor<'_>) -> Result<AccountStatement, SqlError> {
    let rights = rights(cursor)?;
    cursor.expect_word("FROM").map_err(|error| error.hint("write what SHOW GRANTS shows, and FROM alice"))?;
    Ok(AccountStatement::Revoke { rights, user: user(cursor)? })
}

fn rights(cursor: &mut Cursor<'_>) -> Result<GrantedRights, SqlError> {
    let position = cursor.position();
    if cursor.eat_word("all") {
        return Ok(GrantedRights::All);
    }
    let capitals = GRANT_ACTIONS.map(str::to_uppercase);
    let words: Vec<&str> = capitals.iter().map(String::as_str).chain(["ALL"]).collect();
    let mut actions: Vec<String> = Vec::new();
    loop {
        let here = cursor.position();
        let action = cursor.expect_one_of(&words).map_err(|error| match error.hint {
            Some(_) => error,
            None => error.hint(GRANT_HINT),
        })?;
        let Some(action) = GRANT_ACTIONS.get(action) else {
            return Err(SqlError::new(here, "ALL stands alone").hint(GRANT_HINT));
        };
        if actions.iter().any(|known| known == action) {
            return Err(SqlError::new(here, format!("{action} stands twice")));
        }
        actions.push((*action).to_owned());
        if !cursor.eat(&Token::Comma) {
            break;
        }
    }
    cursor.expect_word("ON").map_err(|error| error.hint(GRANT_HINT))?;
    let capitals = GRANT_KINDS.map(str::to_uppercase);
    let kind = cursor.expect_one_of(&capitals.each_ref().map(String::as_str))?;
    let pattern = match cursor.peek() {
        Token::SingleQuotedString(_) => Some(cursor.string("a pattern of names in single quotes")?.0),
        _ => None,
    };
    Ok(GrantedRights::Some { actions, kind: GRANT_KINDS[kind].to_owned(), pattern, position })
}

fn user(cursor: &mut Cursor<'_>) -> Result<UserName, SqlError> {
    let first = cursor.name("the name of a user")?;
    match cursor.eat(&Token::Period) {
        true => Ok(UserName { tenant: Some(first), name: cursor.name("the name of a user")? }),
        false => Ok(UserName { tenant: None, name: first }),
    }
}

/// Reads `(queries => 1000, state_bytes => '1 GiB', streams => NULL)`.
fn limits(cursor: &mut Cursor<'_>) -> Result<Vec<TenantLimit>, SqlError> {
    let given = cursor.values_to_set("the name of a limit", false, "SET (queries => 1000)")?;
    let limit = |(name, value, position): (crate::Name, Literal, crate::Position)| {
        let most = match &value {
            Literal::Null => Some(None),
            Literal::Integer(most) => u64::try_from(*most).ok().map(Some),
            Literal::Text(text) => limit_of(text).map(Some),
            _ => None,
        };
        let refused = || {
            SqlError::new(position, format!("the limit {name} is a whole number, or NULL for none")).hint(LIMITS_HINT)
        };
        Ok((name.clone(), most.ok_or_else(refused)?))
    };
    given.into_iter().map(limit).collect()
}

/// Reads `(queries, streams)`.
fn names(cursor: &mut Cursor<'_>) -> Result<Vec<TenantLimit>, SqlError> {
    cursor.expect(&Token::LParen).map_err(|error| error.hint(LIMITS_HINT))?;
    let mut names: Vec<TenantLimit> = Vec::new();
    loop {
        let name = cursor.name("the name of a limit")?;
        if names.iter().any(|(known, _)| known.text == name.text) {
            return Err(SqlError::new(name.position, format!("'{name}' is given twice")));
        }
        names.push((name, None));
        if !cursor.eat(&Token::Comma) {
            break;
        }
    }
    cursor.expect(&Token::RParen)?;
    Ok(names)
}

/// Reads an INTERVAL of whole seconds; a month has 30 days.
fn seconds(cursor: &mut Cursor<'_>) -> Result<u64, SqlError> {
    let position = cursor.position();
    let refused = || SqlError::new(position, "expected INTERVAL of a second or more").hint("write INTERVAL '90 days'");
    let (Literal::Interval(IntervalMonthDayNano { months, days, nanoseconds }), _) = cursor.literal()? else {
        return Err(refused());
    };
    let days = i64::from(months) * 30 + i64::from(days);
    let seconds = days * 86_400 + nanoseconds / 1_000_000_000;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::super::parse_script;
    use crate::{AccountStatement, GrantedRights, Statement, UserName};

    fn one(text: &str) -> AccountStatement {
        match parse_script(text).unwrap_or_else(|error| panic!("{}", error.render(text))).pop() {
            Some((Statement::Account(statement), _)) => statement,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn texts(user: &UserName) -> (Option<&str>, &str) {
        (user.tenant.as_ref().map(|tenant| tenant.text.as_str()), &user.name.text)
    }

    #[test]
    fn statements_about_accounts_are_read() {
        let AccountStatement::CreateUser { user, if_not_exists: true, is_admin: true } =
            one("create user if not exists ACME.\"Ann@x\" admin")
        else {
            panic!("no user")
        };
        assert_eq!(texts(&user), (Some("acme"), "Ann@x"));
        let token = one("CREATE TOKEN FOR alice EXPIRES IN INTERVAL '90 days'");
        assert!(matches!(&token, AccountStatement::CreateToken { expires_in_s: Some(7_776_000), .. }), "{token:?}");
        assert!(matches!(one("CREATE TOKEN FOR alice"), AccountStatement::CreateToken { expires_in_s: None, .. }));
        let rotated = one("ALTER TOKEN 'ab' ROTATE GRACE INTERVAL 1 HOUR");
        assert!(matches!(&rotated, AccountStatement::RotateToken { id, grace_s: 3600, .. } if id == "ab"));
        assert!(matches!(one("DROP TOKEN IF EXISTS 'ab'"), AccountStatement::DropToken { if_exists: true, .. }));
        let AccountStatement::Grant { rights, user } = one("GRANT read, SUBSCRIBE ON query 'home-7-%' TO alice") else {
            panic!("no grant")
        };
        let GrantedRights::Some { actions, kind, pattern, position } = rights else { panic!("not all") };
        assert_eq!(
            (actions, kind.as_str(), pattern.as_deref()),
            (vec!["read".to_owned(), "subscribe".to_owned()], "query", Some("home-7-%"))
        );
        assert_eq!((position.column, texts(&user)), (7, (None, "alice")));
        for kind in crate::GRANT_KINDS {
            let text = format!("REVOKE change ON {} FROM alice", kind.to_uppercase());
            assert!(matches!(one(&text), AccountStatement::Revoke { .. }), "{text}");
        }
        let all = one("REVOKE ALL FROM alice");
        assert!(matches!(all, AccountStatement::Revoke { rights: GrantedRights::All, .. }));
        assert_eq!(one("SHOW TENANTS"), AccountStatement::ShowTenants);
        assert_eq!(one("SHOW USERS"), AccountStatement::ShowUsers);
        assert_eq!(one("SHOW TOKENS"), AccountStatement::ShowTokens(None));
        assert!(matches!(one("SHOW GRANTS FOR acme.ann"), AccountStatement::ShowGrants(Some(_))));
        assert!(matches!(one("DROP TENANT acme"), AccountStatement::DropTenant { cascade: false, .. }));
        let all = one("DROP TENANT acme CASCADE");
        assert!(matches!(all, AccountStatement::DropTenant { cascade: true, .. }));
        assert_eq!(all.text(), "DROP TENANT acme CASCADE");
    }

    #[test]
    fn limits_of_a_tenant_are_read() {
        let of = |text: &str| {
            let (AccountStatement::CreateTenant { limits, .. } | AccountStatement::AlterTenant { limits, .. }) =
                one(text)
            else {
                panic!("{text}")
            };
            limits.into_iter().map(|(name, most)| (name.text, most)).collect::<Vec<_>>()
        };
        assert_eq!(of("CREATE TENANT acme"), []);
        let both = [("queries".to_owned(), Some(1000)), ("state_bytes".to_owned(), Some(3 << 30))];
        assert_eq!(of("CREATE TENANT IF NOT EXISTS acme WITH (queries => 1000, state_bytes => '3 GiB')"), both);
        assert_eq!(of("alter tenant acme set (QUERIES => 1000, state_bytes => 3221225472)"), both);
        let none = [("queries".to_owned(), None), ("streams".to_owned(), None)];
        assert_eq!(of("ALTER TENANT acme SET (queries => NULL, streams => NULL)"), none);
        assert_eq!(of("ALTER TENANT acme RESET (queries, streams)"), none);
        assert_eq!(of("ALTER TENANT default SET (streams => '7')"), [("streams".to_owned(), Some(7))]);
        let altered = one("ALTER TENANT \"A b\" SET (queries => 1, streams => NULL)");
        assert_eq!(altered.text(), "ALTER TENANT \"A b\" SET (queries => 1, streams => NULL)");
        assert_eq!(altered.tenant().map(|name| name.text.as_str()), Some("A b"));
        assert_eq!(one("CREATE TENANT a WITH (queries => 1)").text(), "CREATE TENANT a WITH (queries => 1)");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, column, message, hint) in [
            ("GRANT fly ON QUERY TO alice", 7, "expected READ, CHANGE, SUBSCRIBE, PUBLISH, ADMINISTER or ALL", "write"),
            ("GRANT raed ON QUERY TO alice", 7, "found 'raed'", "did you mean 'READ'?"),
            ("GRANT read, ALL TO alice", 13, "ALL stands alone", "GRANT ALL TO alice"),
            ("GRANT read, read ON QUERY TO a", 13, "read stands twice", ""),
            ("GRANT read ON QUEUE TO alice", 15, "found 'QUEUE'", "'QUERY'"),
            ("GRANT read ON QUERY 'a' FROM alice", 25, "expected TO", "GRANT read"),
            ("CREATE TOKEN alice", 14, "expected FOR", "CREATE TOKEN FOR"),
            ("CREATE TOKEN FOR a EXPIRES IN 90", 31, "expected INTERVAL", "90 days"),
            ("CREATE TOKEN FOR a EXPIRES IN INTERVAL '-1 day'", 31, "expected INTERVAL", "90 days"),
            ("ALTER USER alice ADMIN", 7, "expected TOKEN", "GRANT and REVOKE"),
            ("ALTER TENANT acme", 18, "expected SET or RESET", "queries => 1000"),
            ("ALTER TENANT acme SET (queries => 1, queries => 2)", 38, "given twice", ""),
            ("ALTER TENANT acme RESET (queries, queries)", 35, "given twice", ""),
            ("ALTER TENANT acme SET (queries => -1)", 35, "a whole number, or NULL", "queries => 1000"),
            ("ALTER TENANT acme SET (queries => 1.5)", 35, "a whole number, or NULL", "queries => 1000"),
            ("ALTER TENANT acme SET (state_bytes => '1 TB')", 39, "a whole number, or NULL", "'1 GiB'"),
            ("CREATE USER 'alice'", 13, "the name of a user", "\"alice\""),
            ("CREATE USER alice ADMINN", 19, "expected the end", "did you mean 'ADMIN'?"),
        ] {
            let error = parse_script(text).expect_err(text);
            assert_eq!(error.column, column, "{text}: {error}");
            assert!(error.message.contains(message), "{text}: {}", error.message);
            assert!(error.hint.unwrap_or_default().contains(hint), "{text}");
        }
    }
}
