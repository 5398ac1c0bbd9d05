//! `memoird cert`: a private certificate authority and certificates for development.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::{Span, Timestamp, tz::TimeZone};
use memoird_cli::output;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};

use serde_json::json;

use crate::exit::{CliError, Exit};
use crate::process;

/// Validity in days, the longest that clients accept.
const VALID_DAYS: i64 = 397;
/// Prefix of the URI with a tenant's id.
const TENANT_URI: &str = "spiffe://memoird.invalid/tenant/";

/// Create a certificate authority and certificates for development
///
/// Writes ca.pem, server.pem with server-key.pem, and for each tenant client-TENANT.pem with its
/// key. Keys are readable by their owner only. Existing files are not overwritten. The private key
/// of the authority is not stored.
#[derive(Args)]
pub(crate) struct CertArgs {
    /// Output directory
    dir: PathBuf,
    /// Host name or address that clients use for the daemon
    #[arg(long = "name", value_name = "NAME", default_values = ["localhost", "127.0.0.1", "::1"])]
    names: Vec<String>,
    /// Tenant to create a client certificate for; the id is its DNS name, the last segment of its
    /// URI and the common name
    #[arg(long = "tenant", value_name = "TENANT")]
    tenants: Vec<String>,
}

struct Output {
    path: PathBuf,
    text: String,
    is_secret: bool,
}

pub(crate) fn run(args: &CertArgs, json: bool) -> Result<(), CliError> {
    let outputs = certificates(args)
        .map_err(|error| CliError::usage(format!("cannot create a certificate: {error}")))?;
    fs::create_dir_all(&args.dir).map_err(CliError::io(format!(
        "cannot create {}",
        args.dir.display()
    )))?;
    if let Some(there) = outputs.iter().find(|output| output.path.exists()) {
        let problem = format!("{} is there already", there.path.display());
        return Err(CliError::failed(Exit::CannotCreate, problem));
    }
    let mut files = Vec::new();
    for output in outputs {
        let file = output.path.display().to_string();
        write(&output).map_err(CliError::io(format!("cannot write {file}")))?;
        files.push(file);
    }
    output::print_as(json, &json!({ "files": files }), &files.join("\n"))
}

fn certificates(args: &CertArgs) -> Result<Vec<Output>, rcgen::Error> {
    let mut authority_params = params("memoird development CA", Vec::new())?;
    authority_params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority_params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(authority_params, KeyPair::generate()?)?;
    let mut outputs = vec![output(&args.dir, "ca.pem", authority.pem())];
    let server = ExtendedKeyUsagePurpose::ServerAuth;
    let mut wanted = vec![("server".to_owned(), args.names.clone(), server)];
    for tenant in &args.tenants {
        let name = format!("client-{tenant}");
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        wanted.push((name, vec![tenant.clone()], client));
    }
    for (name, names, purpose) in wanted {
        let common_name = names.first().cloned().unwrap_or_default();
        let mut of_one = params(&common_name, names)?;
        if purpose == ExtendedKeyUsagePurpose::ClientAuth {
            let uri = format!("{TENANT_URI}{common_name}").as_str().try_into()?;
            of_one.subject_alt_names.push(SanType::URI(uri));
        }
        of_one.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        of_one.extended_key_usages = vec![purpose];
        of_one.use_authority_key_identifier_extension = true;
        let key_pair = KeyPair::generate()?;
        let certificate = of_one.signed_by(&key_pair, &authority)?;
        outputs.push(output(&args.dir, &format!("{name}.pem"), certificate.pem()));
        let key = output(
            &args.dir,
            &format!("{name}-key.pem"),
            key_pair.serialize_pem(),
        );
        outputs.push(Output {
            is_secret: true,
            ..key
        });
    }
    Ok(outputs)
}

/// Common parameters, with a validity that starts yesterday.
fn params(common_name: &str, names: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let today = Timestamp::from_millisecond(process::wall_clock().as_ms()).unwrap_or_default();
    let day = |days: i64| {
        let date = today
            .to_zoned(TimeZone::UTC)
            .date()
            .saturating_add(Span::new().days(days));
        let month = u8::try_from(date.month()).unwrap_or(1);
        let day = u8::try_from(date.day()).unwrap_or(1);
        date_time_ymd(date.year().into(), month, day)
    };
    params.not_before = day(-1);
    params.not_after = day(VALID_DAYS);
    Ok(params)
}

fn output(dir: &Path, name: &str, text: String) -> Output {
    Output {
        path: dir.join(name),
        text,
        is_secret: false,
    }
}

fn write(output: &Output) -> std::io::Result<()> {
    let mode = if output.is_secret { 0o600 } else { 0o644 };
    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&output.path);
    file?.write_all(output.text.as_bytes())
}
