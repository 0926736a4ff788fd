//! `rivulet tenant`, `user`, `token` and `grant`: accounts of a running server, or in the data folder of a stopped one.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use rivulet_sql::{AccountStatement, GrantedRights, Name, Position, SecretValue, TenantLimit, UserName, limit_of};
use serde_json::json;

use crate::accounts::Accounts;
use crate::api::types::{
    AccountChanged, Grant, GrantList, LimitChanges, NewPassword, NewTenant, NewToken, NewUser, Rotation, TenantLimits,
    TenantList, Token, TokenCreated, TokenList, User, UserList,
};
use crate::catalog::Catalog;
use crate::http_client::{Client, segment};
use crate::service::{AccountAnswer, Caller, Limit, LimitUse};
use crate::times::at;

use super::error::CliError;
use super::options::{Connection, Global, lifetime};
use super::output::{print_json, render, table};
use super::password;

/// Where the accounts are.
#[derive(Debug, clap::Args)]
pub(super) struct Where {
    #[command(flatten)]
    connection: Connection,
    /// Change this data folder of a stopped server instead; it makes the first administrator before the first start
    #[arg(long, global = true, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
}

/// Arguments of `rivulet tenant`.
#[derive(Debug, clap::Args)]
pub(super) struct TenantArguments {
    #[command(flatten)]
    place: Where,
    #[command(subcommand)]
    command: TenantCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TenantCommand {
    /// Create a tenant: a space of names for users and what they create
    Create {
        /// Its name
        name: String,
        /// Its limits, for example queries=1000 state_bytes=1GiB
        #[arg(value_name = "LIMIT=VALUE", value_parser = limit)]
        limits: Vec<TenantLimit>,
    },
    /// Set limits of a tenant, which may be the tenant default
    #[command(after_help = LIMITS)]
    Set {
        /// Its name
        name: String,
        /// Limits, for example queries=1000 state_bytes=1GiB; none removes one, as in streams=none
        #[arg(value_name = "LIMIT=VALUE", value_parser = limit, required = true)]
        limits: Vec<TenantLimit>,
    },
    /// Drop a tenant
    Drop {
        /// Its name
        name: String,
        /// Drop its users and all that it has, too
        #[arg(long)]
        cascade: bool,
    },
    /// List the tenants with their limits, and how much of them they use
    List,
}

/// What the limits are.
const LIMITS: &str = "\
Limits:
  applications          applications
  queries               queries of applications
  big_queries           big queries
  workers               workers on which one big query runs
  streams               readers of live results, and SELECT
  requests_per_second   HTTP requests a second
  events_per_second     messages a second that MQTT clients publish; over it they are slowed down
  bytes_per_second      bytes a second that MQTT clients send; over it they are slowed down
  bytes_out_per_second  bytes a second that MQTT clients get
  state_bytes           memory of queries and reference tables
  log_bytes             events in the log that no checkpoint has yet
  file_bytes            files in its folders, which its sinks write
  weight                its share of the workers' time, beside 100 of others";

/// Reads `queries=1000`.
fn limit(text: &str) -> Result<TenantLimit, String> {
    let (name, value) = text.split_once('=').ok_or("write the name of a limit, '=' and its value: queries=1000")?;
    let most = match value {
        "none" => None,
        value => Some(limit_of(value).ok_or("the value is a whole number, also as 64MiB or 1GiB, or none")?),
    };
    Ok((named(&name.to_lowercase()), most))
}

/// Arguments of `rivulet user`.
#[derive(Debug, clap::Args)]
pub(super) struct UserArguments {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    of: InTenant,
    #[command(subcommand)]
    command: UserCommand,
}

/// In which tenant a user is.
#[derive(Debug, clap::Args)]
struct InTenant {
    /// The tenant of the user; that of your token by default
    #[arg(long, global = true, value_name = "NAME")]
    tenant: Option<String>,
}

impl InTenant {
    fn user(&self, name: &str) -> UserName {
        UserName { tenant: self.tenant.as_deref().map(named), name: named(name) }
    }
}

#[derive(Debug, clap::Subcommand)]
enum UserCommand {
    /// Create a user, or a service that is one
    Create {
        /// Its name
        name: String,
        /// Give it all rights in its tenant; in the default tenant, on the whole server
        #[arg(long)]
        admin: bool,
    },
    /// Drop a user with its tokens and rights
    Drop {
        /// Its name
        name: String,
    },
    /// Give a user a password, which is read from the terminal or from standard input
    Password {
        /// Its name
        name: String,
        /// Take its password away instead
        #[arg(long)]
        remove: bool,
    },
    /// List the users
    List,
}

/// Arguments of `rivulet token`.
#[derive(Debug, clap::Args)]
pub(super) struct TokenArguments {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    of: InTenant,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    /// Create a token of a user, and print it this once
    Create {
        /// The user
        user: String,
        /// After how long it ends, for example 90d or 12h; never without
        #[arg(long, value_name = "TIME", value_parser = lifetime)]
        expires: Option<u64>,
    },
    /// Put another token in the place of one, and print it this once
    Rotate {
        /// The id of the token
        id: String,
        /// For how long the old one still holds, for example 1h
        #[arg(long, value_name = "TIME", value_parser = lifetime)]
        grace: Option<u64>,
    },
    /// Drop a token; connections that were made with it end
    Drop {
        /// Its id
        id: String,
    },
    /// List the tokens, without their secrets
    List {
        /// Only those of this user
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
    },
}

/// Arguments of `rivulet grant`.
#[derive(Debug, clap::Args)]
pub(super) struct GrantArguments {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    of: InTenant,
    #[command(subcommand)]
    command: GrantCommand,
}

/// Examples of `rivulet grant`.
pub(super) const EXAMPLES: &str = "Examples:
  rivulet grant add alice read,subscribe query 'home-7-%'
  rivulet grant add device publish topic 'home/%u/#'
  rivulet grant add bob all
  rivulet grant remove alice read,subscribe query 'home-7-%'";

#[derive(Debug, clap::Subcommand)]
enum GrantCommand {
    /// Give a user a right
    Add(RightArguments),
    /// Take a right from a user, as it was given; `all` takes every right
    Remove(RightArguments),
    /// List the rights
    List {
        /// Only those of this user
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
struct RightArguments {
    /// The user
    user: String,
    /// What it may do, with commas between: read, change, subscribe, publish, administer; or all alone
    actions: String,
    /// The kind of what it is about: application, query, table, source, sink, view, secret, topic or server
    kind: Option<String>,
    /// The names: a pattern as for LIKE, of topics a filter with %u for the user and %c for the client's id; every name
    /// without
    pattern: Option<String>,
}

impl RightArguments {
    fn grant(self, tenant: Option<String>) -> Grant {
        let Self { user, actions, kind, pattern } = self;
        let actions = actions.split(',').map(|action| action.trim().to_lowercase()).collect();
        Grant { user, tenant, actions, kind: kind.map(|kind| kind.to_lowercase()), pattern }
    }
}

pub(super) fn run_tenant(global: Global, arguments: TenantArguments) -> Result<(), CliError> {
    let statement = match arguments.command {
        TenantCommand::Create { name, limits } => {
            AccountStatement::CreateTenant { name: named(&name), if_not_exists: false, limits }
        }
        TenantCommand::Set { name, limits } => AccountStatement::AlterTenant { name: named(&name), limits },
        TenantCommand::Drop { name, cascade } => {
            AccountStatement::DropTenant { name: named(&name), if_exists: false, cascade }
        }
        TenantCommand::List => AccountStatement::ShowTenants,
    };
    carry_out(global, &arguments.place, &statement)
}

pub(super) fn run_user(global: Global, arguments: UserArguments) -> Result<(), CliError> {
    let UserArguments { place, of, command } = arguments;
    let statement = match command {
        UserCommand::Create { name, admin } => {
            AccountStatement::CreateUser { user: of.user(&name), if_not_exists: false, is_admin: admin }
        }
        UserCommand::Drop { name } => AccountStatement::DropUser { user: of.user(&name), if_exists: false },
        UserCommand::Password { name, remove } => {
            let password = match remove {
                true => None,
                false => Some(SecretValue(password::read_new(&format!("the new password of {name}: "))?)),
            };
            AccountStatement::SetPassword { user: of.user(&name), password }
        }
        UserCommand::List => AccountStatement::ShowUsers,
    };
    carry_out(global, &place, &statement)
}

pub(super) fn run_token(global: Global, arguments: TokenArguments) -> Result<(), CliError> {
    let TokenArguments { place, of, command } = arguments;
    let position = Position::default();
    let statement = match command {
        TokenCommand::Create { user, expires } => {
            AccountStatement::CreateToken { user: of.user(&user), expires_in_s: expires }
        }
        TokenCommand::Rotate { id, grace } => {
            AccountStatement::RotateToken { id, grace_s: grace.unwrap_or(0), position }
        }
        TokenCommand::Drop { id } => AccountStatement::DropToken { id, if_exists: false, position },
        TokenCommand::List { user } => AccountStatement::ShowTokens(user.map(|user| of.user(&user))),
    };
    carry_out(global, &place, &statement)
}

pub(super) fn run_grant(global: Global, arguments: GrantArguments) -> Result<(), CliError> {
    let GrantArguments { place, of, command } = arguments;
    let rights = |right: RightArguments| right.grant(of.tenant.clone()).rights();
    let statement = match command {
        GrantCommand::Add(right) => {
            let (rights, user) = rights(right)?;
            AccountStatement::Grant { rights, user }
        }
        GrantCommand::Remove(right) => {
            let (rights, user) = rights(right)?;
            AccountStatement::Revoke { rights, user }
        }
        GrantCommand::List { user } => AccountStatement::ShowGrants(user.map(|user| of.user(&user))),
    };
    carry_out(global, &place, &statement)
}

fn named(name: &str) -> Name {
    Name { text: name.to_owned(), position: Position::default() }
}

/// What a statement gives, wherever it was carried out.
enum Answer {
    Done(String),
    Token(TokenCreated),
    Tenants(TenantList),
    Users(UserList),
    Tokens(TokenList),
    Grants(GrantList),
}

impl From<AccountAnswer> for Answer {
    fn from(answer: AccountAnswer) -> Self {
        match answer {
            AccountAnswer::Done(message) => Self::Done(message),
            AccountAnswer::Token { text, info } => Self::Token(TokenCreated { token: text, info }),
            AccountAnswer::Tenants(tenants) => Self::Tenants(tenants.into()),
            AccountAnswer::Users(users) => Self::Users(UserList { users }),
            AccountAnswer::Tokens(tokens) => Self::Tokens(TokenList { tokens }),
            AccountAnswer::Grants(grants) => {
                Self::Grants(GrantList { grants: grants.into_iter().map(Grant::from).collect() })
            }
        }
    }
}

fn carry_out(global: Global, place: &Where, statement: &AccountStatement) -> Result<(), CliError> {
    let answer = match &place.data_dir {
        Some(folder) => {
            let is_there = Catalog::is_there(folder);
            let makes_one =
                matches!(statement, AccountStatement::CreateUser { .. } | AccountStatement::CreateTenant { .. });
            if place.connection.token.is_in_tenant() {
                return Err(CliError::new("--as-tenant and RIVULET_AS_TENANT are for a running server")
                    .with_hint("say the tenant of a user with --tenant"));
            }
            if matches!(statement, AccountStatement::DropTenant { cascade: true, .. }) {
                return Err(CliError::new("only a running server drops what a tenant has")
                    .with_hint("leave out --data-dir to ask the server, or leave out --cascade"));
            }
            if !is_there && !makes_one {
                return Err(CliError::new(format!("{} has no catalog", folder.display()))
                    .with_hint("name the data folder of the server: data_dir in its configuration"));
            }
            let accounts = Accounts::open(Arc::new(Catalog::open(folder).map_err(|error| {
                let hint = "a running server has its data folder for itself: leave out --data-dir to ask the server";
                match error {
                    crate::catalog::CatalogError::Locked { .. } => CliError::new(error.to_string()).with_hint(hint),
                    error => crate::service::ServiceError::from(error).into(),
                }
            })?))?;
            accounts.run(&Caller::local_operator(), statement)?.into()
        }
        None => ask(&place.connection.client()?, statement)?,
    };
    print(global, answer)
}

/// Has a server carry out a statement.
fn ask(client: &Client, statement: &AccountStatement) -> Result<Answer, CliError> {
    use AccountStatement as S;
    let tenant_of = |user: &UserName| user.tenant.as_ref().map(|tenant| tenant.text.clone());
    let done = |message: AccountChanged| Answer::Done(message.message);
    Ok(match statement {
        S::CreateTenant { name, limits, .. } => {
            let limits = limits.iter().filter_map(|(limit, most)| Some((limit.text.clone(), (*most)?))).collect();
            done(client.post_json("/api/v1/tenants", &NewTenant { name: name.text.clone(), limits })?)
        }
        S::AlterTenant { name, limits } => {
            let changes = LimitChanges(limits.iter().map(|(limit, most)| (limit.text.clone(), *most)).collect());
            done(client.patch_json(&format!("/api/v1/tenants/{}", segment(&name.text)), &changes)?)
        }
        S::DropTenant { name, cascade, .. } => {
            let parameters: &[_] = if *cascade { &[("cascade", "true")] } else { &[] };
            client.delete(&format!("/api/v1/tenants/{}", segment(&name.text)), parameters)?;
            Answer::Done(format!("tenant {name} dropped"))
        }
        S::ShowTenants => Answer::Tenants(client.get("/api/v1/tenants", &[])?),
        S::CreateUser { user, is_admin, .. } => {
            let new = NewUser { name: user.name.text.clone(), tenant: tenant_of(user), admin: *is_admin };
            done(client.post_json("/api/v1/users", &new)?)
        }
        S::DropUser { user, .. } => {
            client.delete(&format!("/api/v1/users/{}", segment(&user.name.text)), &in_tenant(user))?;
            Answer::Done(format!("user {} dropped", user.name))
        }
        S::SetPassword { user, password } => {
            let path = format!("/api/v1/users/{}/password", segment(&user.name.text));
            match password {
                Some(SecretValue(password)) => {
                    done(client.put_json(&path, &in_tenant(user), &NewPassword { password: password.clone() })?)
                }
                None => {
                    client.delete(&path, &in_tenant(user))?;
                    Answer::Done(format!("{} has no password", user.name))
                }
            }
        }
        S::ShowUsers => Answer::Users(client.get("/api/v1/users", &[])?),
        S::CreateToken { user, expires_in_s } => {
            let (user, tenant) = (user.name.text.clone(), tenant_of(user));
            let new = NewToken { user, tenant, expires_in_s: *expires_in_s };
            Answer::Token(client.post_json("/api/v1/tokens", &new)?)
        }
        S::RotateToken { id, grace_s, .. } => {
            let path = format!("/api/v1/tokens/{}/rotate", segment(id));
            Answer::Token(client.post_json(&path, &Rotation { grace_s: *grace_s })?)
        }
        S::DropToken { id, .. } => {
            client.delete(&format!("/api/v1/tokens/{}", segment(id)), &[])?;
            Answer::Done(format!("token {id} dropped"))
        }
        S::ShowTokens(user) => Answer::Tokens(client.get("/api/v1/tokens", &list_of(user.as_ref()))?),
        S::Grant { rights, user } => done(client.post_json("/api/v1/grants", &right_of(rights, user))?),
        S::Revoke { rights, user } => done(client.post_json("/api/v1/grants/revoke", &right_of(rights, user))?),
        S::ShowGrants(user) => Answer::Grants(client.get("/api/v1/grants", &list_of(user.as_ref()))?),
    })
}

/// The parameters of a request about a user that is in a path.
fn in_tenant(user: &UserName) -> Vec<(&'static str, &str)> {
    user.tenant.iter().map(|tenant| ("tenant", tenant.text.as_str())).collect()
}

/// The parameters of a list: of one user, or of all.
fn list_of(user: Option<&UserName>) -> Vec<(&'static str, &str)> {
    let Some(user) = user else { return Vec::new() };
    std::iter::once(("user", user.name.text.as_str())).chain(in_tenant(user)).collect()
}

fn right_of(rights: &GrantedRights, user: &UserName) -> Grant {
    let (actions, kind, pattern) = match rights {
        GrantedRights::All => (vec!["all".into()], None, None),
        GrantedRights::Some { actions, kind, pattern, .. } => (actions.clone(), Some(kind.clone()), pattern.clone()),
    };
    let tenant = user.tenant.as_ref().map(|tenant| tenant.text.clone());
    Grant { user: user.name.text.clone(), tenant, actions, kind, pattern }
}

fn print(global: Global, answer: Answer) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    let time = |seconds: Option<u64>| match seconds.and_then(|seconds| i64::try_from(seconds).ok()) {
        Some(seconds) => at(seconds.saturating_mul(1_000_000)),
        None => "-".to_owned(),
    };
    match answer {
        Answer::Done(message) if global.json => print_json(&mut out, &json!({ "message": message }))?,
        Answer::Done(message) => eprintln!("{message}"),
        Answer::Token(made) if global.json => print_json(&mut out, &made)?,
        Answer::Token(made) => {
            let end = match made.info.expires_s {
                Some(_) => format!(" and ends at {}", time(made.info.expires_s)),
                None => String::new(),
            };
            eprintln!("token {} of {}{end}; this is the only time that it is shown:", made.info.id, made.info.user);
            writeln!(out, "{}", made.token)?;
        }
        Answer::Tenants(list) if global.json => print_json(&mut out, &list.limits)?,
        Answer::Tenants(list) => writeln!(out, "{}", tenants(&list.limits))?,
        Answer::Users(list) if global.json => print_json(&mut out, &list.users)?,
        Answer::Users(list) => {
            let row = |user: User| {
                let shown = |is: bool| if is { "yes" } else { "-" }.to_owned();
                let (admin, password) = (shown(user.is_admin), shown(user.has_password));
                [user.tenant, user.name, admin, password, user.tokens.to_string(), user.grants.to_string()]
            };
            let rows = list.users.into_iter().map(row);
            writeln!(out, "{}", table(["tenant", "name", "admin", "password", "tokens", "grants"], &[4, 5], rows))?;
        }
        Answer::Tokens(list) if global.json => print_json(&mut out, &list.tokens)?,
        Answer::Tokens(list) => {
            let row = |token: Token| {
                let end = if token.has_expired { " (expired)" } else { "" };
                let expires = format!("{}{end}", time(token.expires_s));
                [token.tenant, token.user, token.id, time(Some(token.created_s)), expires, time(token.last_used_s)]
            };
            let headers = ["tenant", "user", "id", "created", "expires", "last used"];
            writeln!(out, "{}", table(headers, &[], list.tokens.into_iter().map(row)))?;
        }
        Answer::Grants(list) if global.json => print_json(&mut out, &list.grants)?,
        Answer::Grants(list) => {
            let shown = |text: Option<String>| text.unwrap_or_else(|| "-".into());
            let row = |grant: Grant| {
                let actions = grant.actions.join(", ");
                [shown(grant.tenant), grant.user, actions, shown(grant.kind), shown(grant.pattern)]
            };
            let headers = ["tenant", "user", "actions", "kind", "pattern"];
            writeln!(out, "{}", table(headers, &[], list.grants.into_iter().map(row)))?;
        }
    }
    Ok(())
}

/// Tenants as a table: of limits those that some tenant has or uses.
fn tenants(list: &[TenantLimits]) -> String {
    let used = |tenant: &TenantLimits, limit: Limit| {
        let used = tenant.limits.get(limit.name()).copied().unwrap_or_default();
        LimitUse { limit, used: used.used, most: used.most }
    };
    let is_shown = |limit: &Limit| {
        list.iter()
            .map(|tenant| used(tenant, *limit))
            .any(|one| one.most.is_some() || one.used.is_some_and(|used| used > 0))
    };
    let shown: Vec<Limit> = Limit::ALL.into_iter().filter(is_shown).collect();
    let headers = std::iter::once("name").chain(shown.iter().map(|limit| limit.name())).map(str::to_owned);
    let row = |tenant: &TenantLimits| {
        let limits = shown.iter().map(|limit| used(tenant, *limit).text());
        std::iter::once(tenant.name.clone()).chain(limits).collect()
    };
    render(headers.collect(), &[], list.iter().map(row))
}
