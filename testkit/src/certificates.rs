use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use crate::process::Watchdog;
use crate::{Backend, Unavailable};

/// An authority of one's own that signs certificates, for servers that speak TLS and for their
/// clients. All are files, made by `openssl`, in a folder that goes when this is dropped or this
/// process ends.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    _watchdog: Watchdog,
}

/// A certificate and the key to it.
#[non_exhaustive]
#[derive(Debug)]
pub struct Identity {
    /// The file with the certificate.
    pub certificate: PathBuf,
    /// The file with the key, which only this user may read: see
    /// [`Server::add_file`](crate::Server::add_file).
    pub key: PathBuf,
}

const OF_THE_AUTHORITY: &str = "\
[req]
distinguished_name = subject
x509_extensions = extensions
[subject]
[extensions]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
";

impl Authority {
    /// A new authority at each call.
    ///
    /// # Errors
    /// [`Unavailable`] if `openssl` is missing, which the tests of `backend` need, or fails.
    pub fn new(backend: &'static Backend) -> Result<Self, Unavailable> {
        let make = || {
            let (watchdog, folder) = Watchdog::with_folder()?;
            let authority = Self { folder, _watchdog: watchdog };
            let settings = authority.write("authority.conf", OF_THE_AUTHORITY)?;
            // No two have the same name, as with real ones.
            let name = format!("authority {:016x}", fastrand::u64(..));
            let mut request = authority.request("authority", &name);
            request.args(["-x509", "-days", "2", "-config"]).arg(settings);
            run(request.arg("-out").arg(authority.certificate()))?;
            Ok(authority)
        };
        make().map_err(|error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                Unavailable::Missing { backend: backend.id(), programs: &["openssl"] }
            }
            _ => Unavailable::Failed {
                backend: backend.id(),
                reason: error.to_string(),
                log: String::new(),
            },
        })
    }

    /// The file with the certificate of the authority itself, for those who are to trust it.
    pub fn certificate(&self) -> PathBuf {
        self.path("authority.pem")
    }

    /// What a server at this host, a name or an address, shows.
    ///
    /// # Errors
    /// If `openssl` fails.
    pub fn server(&self, host: &str) -> io::Result<Identity> {
        let kind = if host.parse::<IpAddr>().is_ok() { "IP" } else { "DNS" };
        self.sign(host, &format!("extendedKeyUsage = serverAuth\nsubjectAltName = {kind}:{host}\n"))
    }

    /// What a client of this name shows.
    ///
    /// # Errors
    /// If `openssl` fails.
    pub fn client(&self, name: &str) -> io::Result<Identity> {
        self.sign(name, "extendedKeyUsage = clientAuth\n")
    }

    fn sign(&self, name: &str, extensions: &str) -> io::Result<Identity> {
        let settings = format!("{name}.conf");
        let settings = self.write(&settings, "[req]\ndistinguished_name = subject\n[subject]\n")?;
        let extensions = self.write(&format!("{name}.ext"), extensions)?;
        let request = self.path(&format!("{name}.csr"));
        let certificate = self.path(&format!("{name}.pem"));
        let mut requesting = self.request(name, name);
        run(requesting.arg("-config").arg(settings).arg("-out").arg(&request))?;
        let mut signing = Command::new("openssl");
        signing.args(["x509", "-req", "-days", "2", "-CAcreateserial", "-CA"]);
        signing.arg(self.certificate()).arg("-CAkey").arg(self.path("authority.key"));
        signing.arg("-extfile").arg(extensions).arg("-in").arg(request);
        run(signing.arg("-out").arg(&certificate))?;
        Ok(Identity { certificate, key: self.path(&format!("{name}.key")) })
    }

    /// The beginning of a command that makes a key and asks for a certificate.
    fn request(&self, file: &str, name: &str) -> Command {
        let mut command = Command::new("openssl");
        command.args(["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        command.args(["-nodes", "-subj", &format!("/CN={name}"), "-keyout"]);
        command.arg(self.path(&format!("{file}.key")));
        command
    }

    fn write(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!("openssl ended with {}: {said}", output.status)))
        }
    }
}
