//! Statements about accounts, run by the administrator of the server, one behind the other. Each is carried out or
//! refused with a place inside the script, and one that is refused has changed nothing. There is always an
//! administrator who can log in. No token is told twice, and each lets its user in for as long as it is there, and to
//! no topic of another tenant. What is kept on disk is what is in force. Lines of the script are no tokens.

use std::sync::Arc;

use rivulet::accounts::Accounts;
use rivulet::accounts::token::is_mistyped;
use rivulet::catalog::Catalog;
use rivulet::service::{
    AccountAnswer, Action, Authorizer, Caller, Credentials, Resource, ResourceKind, ServiceError, Tenant,
};
use rivulet_sql::{AccountStatement, Statement, parse_script};

use super::sql::check_error;
use crate::{Target, scratch};

/// See the module.
pub const TARGET: Target = Target {
    name: "accounts",
    run,
    words: &[
        "CREATE USER ",
        "CREATE TENANT ",
        "CREATE TOKEN FOR ",
        "DROP USER ",
        "DROP TENANT ",
        "DROP TOKEN ",
        "ALTER TOKEN '",
        "' ROTATE",
        " GRACE INTERVAL '1 hour'",
        " EXPIRES IN INTERVAL '1 day'",
        "GRANT ALL TO ",
        "REVOKE ALL FROM ",
        "GRANT publish, subscribe ON TOPIC '",
        "GRANT read ON QUERY '",
        "REVOKE read ON QUERY '",
        " ADMIN",
        " IF NOT EXISTS ",
        " IF EXISTS ",
        "acme.ann",
        "default.admin",
        "'%u/#'",
        "acme/%u/%c/#",
        "rvt_",
        "\"",
        "'",
        "%",
        ";",
        ".",
    ],
    mutations: 400,
};

/// Longer scripts say nothing new.
const SCRIPT_BYTES_MAX: usize = 4 << 10;

/// The most statements of a script that are run.
const STATEMENTS_MAX: usize = 40;

/// Topics and filters that are asked for.
const TOPICS: [&str; 8] = ["acme/a", "acme2/a", "a", "default/a", "#", "+/a", "$SYS/a", "acme/#"];

fn run(bytes: &[u8]) {
    let Ok(script) = std::str::from_utf8(bytes) else { return };
    if script.len() > SCRIPT_BYTES_MAX {
        return;
    }
    let folder = scratch::folder();
    let catalog = Arc::new(Catalog::open(folder.path()).expect("a catalog can be made"));
    let accounts = Accounts::open(catalog.clone()).expect("it is empty");
    let operator = Caller::local_operator();
    let mut tokens = Vec::new();
    for statement in ["CREATE USER admin ADMIN", "CREATE TOKEN FOR admin", "CREATE TENANT acme", "CREATE USER acme.ann"]
    {
        let statements = parse_script(statement).expect("a statement");
        let [(Statement::Account(statement), _)] = &statements[..] else { panic!("{statements:?}") };
        tokens.extend(token_of(accounts.run(&operator, statement).expect("it is the first")));
    }
    let admin = log_in(&accounts, &tokens[0]).expect("the token is there");
    match parse_script(script) {
        Err(error) => check_error(&error, script),
        Ok(statements) => {
            for (statement, _) in statements.iter().take(STATEMENTS_MAX) {
                let Statement::Account(statement) = statement else { continue };
                check_text(statement);
                let before = told(&accounts, &admin);
                match accounts.run(&admin, statement) {
                    Ok(answer) => tokens.extend(token_of(answer)),
                    Err(error) => {
                        check_refusal(&error, script);
                        assert_eq!(told(&accounts, &admin), before, "what is refused changes nothing");
                    }
                }
                check_all(&accounts, &admin, &tokens);
            }
        }
    }
    for line in script.lines().map(str::trim).chain([script]) {
        let is_made = tokens.iter().any(|token| token == line);
        assert!(is_made || log_in(&accounts, line).is_none(), "{line:?} is no token");
        assert!(!is_mistyped(line) || !is_made);
    }
    let in_force = told(&accounts, &admin);
    drop(accounts);
    let again = Accounts::open(catalog).expect("what was written can be read");
    assert!(again.are_in_force());
    assert_eq!(told(&again, &admin), in_force);
}

fn token_of(answer: AccountAnswer) -> Option<String> {
    match answer {
        AccountAnswer::Token { text, .. } => Some(text),
        _ => None,
    }
}

fn log_in(accounts: &Accounts, token: &str) -> Option<Caller> {
    let credentials = Credentials { secret: Some(token.as_bytes()), ..Credentials::default() };
    accounts.authenticate(&credentials).ok()
}

/// What is told of all accounts.
fn told(accounts: &Accounts, admin: &Caller) -> [AccountAnswer; 4] {
    use AccountStatement::{ShowGrants, ShowTenants, ShowTokens, ShowUsers};
    [ShowTenants, ShowUsers, ShowTokens(None), ShowGrants(None)].map(|statement| {
        let mut answer = accounts.run(admin, &statement).expect("a list is never refused");
        if let AccountAnswer::Tokens(tokens) = &mut answer {
            // These change by looking.
            tokens.iter_mut().for_each(|token| (token.last_used_s, token.has_expired) = (None, false));
        }
        answer
    })
}

fn check_refusal(error: &ServiceError, script: &str) {
    assert!(!error.message.is_empty());
    if let Some(line) = error.line {
        let text = script.split('\n').nth((line as usize).saturating_sub(1));
        let width = text.unwrap_or_else(|| panic!("there is no line {line}")).chars().count();
        assert!(error.column.is_none_or(|column| column as usize <= width + 1), "{error}");
    }
}

/// The text of a statement for the record is one, and the same as its own text.
fn check_text(statement: &AccountStatement) {
    let text = statement.text();
    // Of an id only what is no secret is written, and of ALL what it says.
    let Ok(again) = parse_script(&text) else { panic!("{text} cannot be read") };
    let [(Statement::Account(again), _)] = &again[..] else { panic!("{} statements in {text}", again.len()) };
    assert_eq!(again.text(), text);
    assert_eq!(std::mem::discriminant(again), std::mem::discriminant(statement), "{text}");
}

fn check_all(accounts: &Accounts, admin: &Caller, tokens: &[String]) {
    assert!(accounts.are_in_force(), "every door goes on asking");
    let all = told(accounts, admin);
    let [_, AccountAnswer::Users(users), AccountAnswer::Tokens(listed), _] = &all else { panic!("{all:?}") };
    let has_administrator = users.iter().any(|user| {
        let is_own = |token: &rivulet::service::TokenInfo| token.user == user.name && token.tenant == user.tenant;
        user.is_admin && user.tenant == "default" && listed.iter().any(is_own)
    });
    assert!(has_administrator, "an administrator can log in: {all:?}");
    let shown = format!("{all:?}");
    for token in tokens {
        let (id, secret) = (&token[4..20], &token[21..]);
        assert!(!shown.contains(secret), "a token is told once");
        let Some(caller) = log_in(accounts, token) else { continue };
        let info = listed.iter().find(|info| info.id == id).expect("one that lets in is in the list");
        assert_eq!((caller.tenant().as_str(), caller.name()), (&*info.tenant, &*info.user));
        if *caller.tenant() == Tenant::default() {
            continue;
        }
        for topic in TOPICS {
            let resource = Resource { kind: ResourceKind::Topic, name: Some(topic) };
            let may = |action| accounts.may(&caller, action, resource).is_ok();
            let is_own = topic.starts_with(&format!("{}/", caller.tenant()));
            assert!(is_own || !may(Action::Publish) && !may(Action::Subscribe), "{topic} by {info:?}");
        }
        let server = Resource { kind: ResourceKind::Server, name: None };
        assert!(accounts.may(&caller, Action::Administer, server).is_err(), "{info:?}");
    }
}
